"""Passes over a network whose weights are built as always, or once, and their gradients."""

from copy import deepcopy

import torch

from orthogonium import build_once

DIGITS = {torch.float64: 1e-12, torch.float32: 1e-5}


def loss_of(model, x):
    """Depends on each output in a way of its own: sums of squares would cancel, as orthogonal layers keep norms."""
    y = model(x)
    weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(y.numel())).to(y.dtype)
    return (weights * y.sin()).sum()


def accumulate(model, inputs):
    for x in inputs:
        loss_of(model, x).backward()


def move(model):
    """Away from raw parameters that are orthogonal, where some derivatives are zero."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.03 * torch.randn_like(p))
    return model


def gradients(model):
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same_gradients(ours, plain, tolerance):
    """Up to rounding, parameter by parameter; None where None."""
    assert ours.keys() == plain.keys()
    for name, expected in plain.items():
        assert (expected is None) == (ours[name] is None), name
        if expected is not None and expected.numel():
            error = (ours[name] - expected).norm() / expected.norm()
            assert error <= tolerance, f"{name}: {error:.1e}"


def plain_gradients(model, inputs):
    """Of a copy whose weights are built as always."""
    plain = deepcopy(model)
    accumulate(plain, inputs)
    return gradients(plain)


def assert_once_is_plain(model, inputs, tolerance):
    """Four passes in a block and four passes without one."""
    assert_same_in_a_block(model, lambda model: accumulate(model, inputs), tolerance)


def assert_same_in_a_block(model, passes, tolerance):
    """The same gradients of what `passes` does with a model, in a block and without one."""
    plain = deepcopy(model)
    passes(plain)
    with build_once(model):
        passes(model)
    assert_same_gradients(gradients(model), gradients(plain), tolerance)
