"""Note [Products] of `linalg/products.py`, on a processor that rounds where torch allows it."""

import threading

import pytest
import torch
from torch._dynamo.backends.common import aot_autograd

from orthogonium import linalg
from orthogonium.linalg.evaluation import full_precision, products_are_rounded
from orthogonium.linalg.products import full_products
from tests.tf32 import BY_LIBRARY, SETTINGS, TF32, round_to_tf32, settings_of_products


def settings():
    if not BY_LIBRARY:
        return torch.get_float32_matmul_precision()
    return [torch._C._get_fp32_precision_getter(*where) for where in SETTINGS]


def _set(library, operator, value):
    return lambda: torch._C._set_fp32_precision_setter(library, operator, value)


WAYS = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "allow_tf32": lambda: setattr(torch.backends.cuda.matmul, "allow_tf32", True),
}
if BY_LIBRARY:
    WAYS |= {
        "all": _set("generic", "all", "tf32"),
        "cuda": _set("cuda", "all", "tf32"),
        "cuda.matmul": _set("cuda", "matmul", "tf32"),
        "mkldnn.matmul": _set("mkldnn", "matmul", "bf16"),
    }
ways = pytest.mark.parametrize("way", WAYS)
PRESETS = ["DEFAULT", "POLAR", "BJORCK", "EXP", "CAYLEY", "QR", "CHOLESKY"]


@pytest.fixture(autouse=True)
def _as_before():
    with settings_of_products():
        yield


def test_the_emulation_rounds():
    x = torch.randn(64, 64)
    assert 2**-13 < ((round_to_tf32(x) - x) / x).abs().max() <= 2**-11
    with TF32() as mode:
        exact = x @ x
        torch.set_float32_matmul_precision("high")
        rounded = x @ x
    assert mode.rounded == 1
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-5 < error < 1e-3


def value_and_gradient(preset, w):
    module = getattr(linalg, f"{preset}_ORTHO_PARAMS").build(w.shape)
    w.requires_grad_()
    y = module(w)
    (gradient,) = torch.autograd.grad(y.sin().sum(), w)
    return y.detach(), gradient


@ways
@pytest.mark.parametrize("preset", PRESETS)
def test_orthogonalizers_do_not_notice(preset, way):
    w = torch.randn(24, 16)
    expected = value_and_gradient(preset, w)
    WAYS[way]()
    before = settings()
    with TF32() as mode:
        found = value_and_gradient(preset, w)
    assert mode.rounded == 0
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    assert settings() == before and products_are_rounded()


@ways
def test_second_derivatives(way):
    w = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    WAYS[way]()
    assert torch.autograd.gradgradcheck(linalg.cayley, w)
    x = w.detach().float().requires_grad_()
    with TF32() as mode:
        hessian = torch.autograd.functional.hessian(lambda x: linalg.cayley(x).sin().sum(), x)
    assert mode.rounded == 0
    expected = torch.autograd.functional.hessian(lambda x: linalg.cayley(x).sin().sum(), w)
    torch.testing.assert_close(hessian.double(), expected, rtol=1e-4, atol=1e-4)


@ways
def test_settings_survive_exceptions(way):
    WAYS[way]()
    before = settings()
    seen = []

    def fail(x):
        seen.append(products_are_rounded())
        raise ZeroDivisionError

    for wants in (True, False):
        with pytest.raises(ZeroDivisionError):
            full_precision(fail)(torch.zeros(2, 2, requires_grad=wants))
    assert seen == [False, False] and settings() == before

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(products_are_rounded())
            raise ZeroDivisionError

    y = full_precision(Fails.apply)(torch.zeros(2, 2, requires_grad=True))
    assert products_are_rounded()
    with pytest.raises(ZeroDivisionError):
        y.sum().backward()
    assert seen == [False] * 3 and settings() == before


@pytest.mark.skipif(not BY_LIBRARY, reason="this torch has one setting for all")
def test_a_setting_that_follows_its_library_still_does():
    torch.backends.fp32_precision = "tf32"
    linalg.cholesky(torch.randn(4, 4))
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    torch.backends.fp32_precision = "ieee"
    assert torch.backends.cuda.matmul.fp32_precision == "ieee"


def test_threads_share_a_hold():
    torch.set_float32_matmul_precision("high")
    inside, leave = threading.Event(), threading.Event()
    found = []

    def other():
        with full_products():
            inside.set()
            leave.wait(10)
            found.append(products_are_rounded())

    thread = threading.Thread(target=other)
    with full_products():
        thread.start()
        inside.wait(10)
    leave.set()
    thread.join()
    assert found == [False]
    assert torch.get_float32_matmul_precision() == "high"


def on_tf32(graph, _):
    """A backend whose compiled graphs run on the processor that rounds."""

    def run(args):
        with TF32() as mode:
            result = graph(*args)
        assert mode.rounded == 0
        return result

    run._boxed_call = True
    return run


@pytest.mark.parametrize("preset", ["DEFAULT", "POLAR", "EXP", "CAYLEY"])
def test_compiled_derivatives_keep_their_precision(preset):
    torch.compiler.reset()
    module = getattr(linalg, f"{preset}_ORTHO_PARAMS").build((12, 16))
    w = torch.randn(12, 16, requires_grad=True)
    exact = w.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(module(exact).sin().sum(), exact)
    compiled = torch.compile(module, fullgraph=True, backend=aot_autograd(fw_compiler=on_tf32, bw_compiler=on_tf32))
    compiled(w)  # a graph for the default settings
    torch.set_float32_matmul_precision("high")
    y = compiled(w)
    torch.testing.assert_close(y.double() @ y.double().mT, torch.eye(12, dtype=torch.float64), rtol=0, atol=2e-6)
    (found,) = torch.autograd.grad(y.sin().sum(), w)
    assert (found - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize("preset", ["DEFAULT", "POLAR", "EXP", "CAYLEY"])
def test_transforms_keep_their_precision(preset):
    module = getattr(linalg, f"{preset}_ORTHO_PARAMS").build((5, 6))
    w = torch.randn(3, 5, 6)
    gradient = torch.func.grad(lambda w: module(w).sin().sum())
    expected = torch.vmap(gradient)(w.double())
    torch.set_float32_matmul_precision("high")
    with TF32() as mode:
        found = torch.vmap(gradient)(w)
    assert mode.rounded == 0
    assert (found - expected).norm() <= 1e-5 * expected.norm()
