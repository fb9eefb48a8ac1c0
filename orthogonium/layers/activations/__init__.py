"""1-Lipschitz activations, most of them gradient-norm preserving, one family per file."""

from orthogonium.layers.activations.elementwise import Abs, CReLU, NActivation, SoftHuber
from orthogonium.layers.activations.householder import HouseHolder, HouseHolder_Order_2
from orthogonium.layers.activations.sorting import FullSort, GroupSort, MaxMin, ReLUMaxMin

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
