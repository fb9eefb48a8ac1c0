"""A network with layers of many kinds, and inputs for it."""

import pytest
import torch
from torch import nn

from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from tests.building.passes import move


class Network(nn.Module):
    """Convolutions, dense layers and one that is applied many times."""

    def __init__(self):
        super().__init__()
        self.stem = AdaptiveOrthoConv2d(3, 4, 3, stride=2)
        self.block = nn.Sequential(AdaptiveOrthoConv2d(4, 4, 3), nn.ReLU(), AdaptiveOrthoConv2d(4, 4, 3))
        self.recurrent = OrthoLinear(36, 36)
        self.head = nn.Linear(36, 5)

    def features(self, x):
        return self.block(self.stem(x)).flatten(1)

    def forward(self, x):
        x = self.features(x)
        for _ in range(3):
            x = self.recurrent(x).relu()
        return self.head(x)


@pytest.fixture
def model():
    return move(Network().double())


@pytest.fixture
def inputs():
    return [torch.randn(2, 3, 6, 6).double() for _ in range(4)]


def raw_parameters(model):
    return [p for name, p in model.named_parameters() if "parametrizations" in name]
