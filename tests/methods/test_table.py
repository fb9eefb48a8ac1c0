"""The table of methods: every line holds, and every layer it names keeps the contracts."""

import pytest
import torch
from torch import nn

from orthogonium.layers.lipschitz import layer_class
from orthogonium.layers.parametrization import Constrained
from orthogonium.methods import METHODS
from tests.contracts.blocks import BLOCKS
from tests.contracts.table import LAYERS


@pytest.mark.parametrize("name", METHODS)
def test_layers_exist(name):
    for path in METHODS[name].layers:
        cls = layer_class(path)
        assert issubclass(cls, nn.Module) and cls.__doc__ and path.endswith(f":{cls.__name__}")


@pytest.mark.parametrize("name", METHODS)
def test_a_layer_of_each_kind_is_in_the_contract_suite(name):
    covered = {case.cls for case in (*LAYERS.values(), *BLOCKS.values())}
    method = METHODS[name]
    for group in (method.conv.values(), [method.linear] if method.linear else (), method.further):
        group = [layer_class(path) for path in group]
        assert not group or covered & set(group)


@pytest.mark.parametrize("name", [n for n, m in METHODS.items() if m.conv and not m.activated])
def test_flags_tell_what_is_accepted(name):
    method = METHODS[name]
    for dims, path in method.conv.items():
        cls = layer_class(path)
        options = {"padding": "same"}
        supported = {"stride": method.stride, "dilation": method.dilation, "groups": method.groups}
        for argument, expected in supported.items():
            if expected:
                layer = cls(4, 4, 3, **{argument: 2}, **options)
                assert isinstance(layer, Constrained) and getattr(layer, argument) in (2, (2,) * dims)
            else:
                with pytest.raises(ValueError, match=argument):
                    cls(4, 4, 3, **{argument: 2}, **options)
        layer = cls(4, 4, 3, padding="same", padding_mode="circular")
        if method.guarantee == "orthogonal":
            assert layer.guarantee.kind == "orthogonal"
        assert layer(torch.randn(1, 4, *[5] * dims)).shape == (1, 4, *[5] * dims)
