"""The published import path of the activations."""

from orthogonium.layers.activations import (
    Abs,
    CReLU,
    FullSort,
    GroupSort,
    HouseHolder,
    HouseHolder_Order_2,
    MaxMin,
    NActivation,
    ReLUMaxMin,
    SoftHuber,
)

__all__ = [
    "Abs",
    "CReLU",
    "FullSort",
    "GroupSort",
    "HouseHolder",
    "HouseHolder_Order_2",
    "MaxMin",
    "NActivation",
    "ReLUMaxMin",
    "SoftHuber",
]
