"""The table of constrained layers: one line gives a layer the whole contract suite."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import orthogonium.linalg as linalg
from orthogonium.layers import OrthoLinear, SpectralLinear, UnitNormLinear
from orthogonium.layers.conv import aoc, aol, bcop, circle, rko, soc, spectral
from orthogonium.layers.linear import AOLLinear
from tests.oracle import plain_conv


def _vectors(layer: nn.Module) -> Tensor:
    return torch.randn(3, layer.in_features)


def _images(layer: nn.Module) -> Tensor:
    return torch.randn(3, layer.in_channels, *(6,) * layer.dims)


@dataclass
class Case:
    cls: type
    arguments: dict
    counterpart: type = nn.Linear
    input: Callable[[nn.Module], Tensor] = _vectors

    def make(self, **options):
        return self.cls(**self.arguments, **options)


def _dense(cls, in_features=6, out_features=4, **arguments):
    return Case(cls, {"in_features": in_features, "out_features": out_features, **arguments})


def _conv(cls, in_channels=4, out_channels=6, kernel_size=3, **arguments):
    arguments = {"in_channels": in_channels, "out_channels": out_channels, "kernel_size": kernel_size, **arguments}
    return Case(cls, arguments, plain_conv(cls.dims, "Transpose" in cls.__name__), _images)


LAYERS = {
    **{
        f"OrthoLinear-{name}": _dense(OrthoLinear, ortho_params=getattr(linalg, f"{name}_ORTHO_PARAMS"))
        for name in ["DEFAULT", "POLAR", "BJORCK", "BJORCK_PASS_THROUGH", "EXP", "CAYLEY", "QR", "CHOLESKY"]
    },
    "OrthoLinear-tall": _dense(OrthoLinear, 4, 6),
    "UnitNormLinear": _dense(UnitNormLinear),
    "SpectralLinear": _dense(SpectralLinear),
    "AOC": _conv(aoc.AdaptiveOrthoConv2d),
    "AOC-strided": _conv(aoc.AdaptiveOrthoConv2d, stride=2),
    "AOC-strided-columns": _conv(aoc.AdaptiveOrthoConv2d, 2, 12, stride=2),
    "AOC-thin": _conv(aoc.AdaptiveOrthoConv2d, 14, 2),
    "AOC-thin-strided": _conv(aoc.AdaptiveOrthoConv2d, 16, 1, stride=2),
    "AOC-grouped-zeros": _conv(aoc.AdaptiveOrthoConv2d, 4, 4, 2, groups=2, padding=1, padding_mode="zeros"),
    "AOC-qr": _conv(aoc.AdaptiveOrthoConv2d, stride=2, ortho_params=linalg.QR_ORTHO_PARAMS),
    "AOC-1d": _conv(aoc.AdaptiveOrthoConv1d, 4, 4, 5, dilation=2),
    "AOC-3d": _conv(aoc.AdaptiveOrthoConv3d, 2, 3, (2, 3, 1), bias=False),
    "AOC-transpose": _conv(aoc.AdaptiveOrthoConvTranspose2d, 6, 4, stride=2, padding=1, output_padding=1),
    "AOC-transpose-circular": _conv(
        aoc.AdaptiveOrthoConvTranspose2d, 6, 4, stride=2, padding="same", padding_mode="circular"
    ),
    "RKO": _conv(rko.RKOConv2d, stride=2),
    "BCOP": _conv(bcop.FastBlockConv2d),
    "AOLLinear": _dense(AOLLinear),
    "AOLLinear-tall": _dense(AOLLinear, 4, 6, niter=3),
    "AOL": _conv(aol.AOLConv2d, padding=1),
    "AOL-strided-columns": _conv(aol.AOLConv2d, 1, 12, stride=2, padding=1, niter=2),
    "AOL-depthwise": _conv(aol.AOLConv2d, 4, 4, groups=4, padding=1, niter=2),
    "AOL-1d": _conv(aol.AOLConv1d, 4, 4, 4, groups=2, dilation=2, padding=3),
    "AOL-3d": _conv(aol.AOLConv3d, 2, 3, (2, 3, 1), bias=False),
    "AOL-transpose": _conv(aol.AOLConvTranspose2d, 6, 4, stride=2, padding=1, output_padding=1),
    "AOL-transpose-circular": _conv(
        aol.AOLConvTranspose2d, 6, 4, stride=2, padding="same", padding_mode="circular", niter=2
    ),
    "SOC": _conv(soc.AdaptiveSOCConv2d),
    "SOC-depthwise": _conv(soc.AdaptiveSOCConv2d, 4, 4, groups=4, order=3),
    "SOC-strided": _conv(soc.AdaptiveSOCConv2d, stride=2, niter=2),
    "SOC-strided-columns": _conv(soc.AdaptiveSOCConv2d, 2, 12, stride=2, niter=0),
    "SOC-1x1": _conv(soc.AdaptiveSOCConv2d, 4, 4, 1, padding_mode="zeros"),
    "SOC-1d": _conv(soc.AdaptiveSOCConv1d, 6, 4, 5, dilation=2, order=8),
    "SOC-3d": _conv(soc.AdaptiveSOCConv3d, 2, 2, (1, 3, 3), bias=False, order=3),
    "SOC-transpose-circular": _conv(
        soc.AdaptiveSOCConvTranspose2d, 6, 4, stride=2, padding="same", padding_mode="circular"
    ),
    "Spectral": _conv(spectral.SpectralConv2d, padding=1),
    "Spectral-strided-grouped": _conv(spectral.SpectralConv2d, stride=2, groups=2, padding="same", niter=4),
    "Spectral-residual": _conv(
        spectral.SpectralConv2d, 4, 4, residual=True, padding="same", padding_mode="circular", niter=3
    ),
    "Spectral-1d": _conv(spectral.SpectralConv1d, 4, 4, 4, groups=4, dilation=2, padding=3),
    "Spectral-3d": _conv(spectral.SpectralConv3d, 2, 3, (2, 3, 1), bias=False, niter=2),
    "Spectral-transpose": _conv(spectral.SpectralConvTranspose2d, 6, 4, stride=2, padding=1, output_padding=1),
    "Cayley-strided-grouped": _conv(circle.CayleyConv2d, 4, 6, 4, stride=2, groups=2, image_size=6),
    "Cayley-1d": _conv(circle.CayleyConv1d, 6, 4, image_size=6),
    "LOT-strided-columns": _conv(circle.LOTConv2d, 1, 6, stride=2, image_size=6, bias=False),
    "BRO-1d": _conv(circle.BROConv1d, 4, 6, stride=2, groups=2, rank=1, image_size=6),
    "ECO": _conv(circle.ECOConv2d, image_size=6),
}
