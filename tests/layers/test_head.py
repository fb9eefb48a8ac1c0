from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import remove_parametrizations

from orthogonium.layers.head import check_last_linear_layer_type
from orthogonium.layers.linear import OrthoLinear, SpectralLinear, UnitNormLinear

HEADS = [(OrthoLinear, "global"), (SpectralLinear, "global"), (UnitNormLinear, "classwise"), (nn.Linear, "unknown")]


class Nested(nn.Module):
    def __init__(self, head):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), OrthoLinear(12, 8), nn.ReLU())
        self.classifier = nn.ModuleDict({"deep": nn.Sequential(OrderedDict(out=head, drop=nn.Identity()))})


@pytest.mark.parametrize(("head", "expected"), HEADS)
def test_head_is_found_wherever_it_is(head, expected):
    assert check_last_linear_layer_type(head(8, 4)) == expected
    assert check_last_linear_layer_type(nn.Sequential(OrthoLinear(12, 8), head(8, 4))) == expected
    assert check_last_linear_layer_type(Nested(head(8, 4))) == expected
    assert check_last_linear_layer_type(nn.Sequential(nn.Sequential(Nested(head(8, 4))), nn.ReLU())) == expected
    assert check_last_linear_layer_type(torch.compile(Nested(head(8, 4)), backend="eager")) == expected
    assert check_last_linear_layer_type(nn.DataParallel(Nested(head(8, 4)))) == expected


def test_models_without_a_known_head():
    assert check_last_linear_layer_type(nn.Sequential(nn.ReLU())) == "unknown"
    assert check_last_linear_layer_type(nn.Sequential(UnitNormLinear(3, 3), nn.Conv2d(3, 4, 1))) == "unknown"


def test_a_layer_used_twice_counts_where_it_is_last():
    shared = UnitNormLinear(4, 4)
    assert check_last_linear_layer_type(nn.Sequential(shared, OrthoLinear(4, 4), shared)) == "classwise"


@pytest.mark.parametrize(("head", "expected"), HEADS)
def test_exported_heads_are_believed_only_while_their_weight_keeps_the_bound(head, expected):
    layer = head(8, 4)
    if head is not nn.Linear:
        remove_parametrizations(layer, "weight")
    assert check_last_linear_layer_type(layer) == expected
    with torch.no_grad():
        layer.weight.mul_(1.1)
    assert check_last_linear_layer_type(layer) == "unknown"
