"""The one table of methods: `METHODS`. Façades, tests, benchmarks and the tables of the documentation read it.

Layers are named by their place below `orthogonium.layers` ("module:class"), since methods do not import layers.
A new method is a file here, its layers, and one entry below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orthogonium.linalg import EXP_ORTHO_PARAMS


@dataclass(frozen=True)
class Method:
    """What a method promises, supports and costs, and the layers that apply it."""

    name: str  # what `method=` of the façades takes
    paper: str  # authors and year
    guarantee: Literal["orthogonal", "lipschitz"]  # all singular values 1, or 1-Lipschitz
    padding: str  # where the guarantee holds
    cost: str  # flops of building a 3×3 kernel of c channels, forward
    conv: Mapping[int, str] = field(default_factory=dict)  # dims → layer with the arguments of `nn.ConvNd`, or some
    conv_transpose: Mapping[int, str] = field(default_factory=dict)  # dims → layer, as `nn.ConvTransposeNd`
    linear: str | None = None  # layer with the arguments of `nn.Linear`
    linear_options: Mapping[str, Any] = field(default_factory=dict)  # that make `linear` apply this method
    conv_options: Mapping[str, Any] = field(default_factory=dict)  # of `conv` beside those of torch, with their values
    rename: Mapping[str, str] = field(default_factory=dict)  # torch's name of an argument → that of the layers
    square: bool = False  # whether inputs and outputs have the same number of channels or features
    activated: bool = False  # whether the layers contain their activation, so that they are not linear
    further: tuple[str, ...] = ()  # layers which the façades do not build
    stride: bool = True  # whether strides other than 1 are supported; likewise dilations and groups
    dilation: bool = True
    groups: bool = True

    @property
    def layers(self) -> tuple[str, ...]:
        """All layers of this method."""
        dense = () if self.linear is None else (self.linear,)
        return (*self.conv.values(), *self.conv_transpose.values(), *dense, *self.further)


def _family(layer: str) -> dict[int, str]:
    return {dims: layer.format(dims) for dims in (1, 2, 3)}


_ENTRIES = (
    Method(
        "aoc",
        "Boissin et al. 2025",
        "orthogonal",
        "circular; 1-Lipschitz with zeros",
        "36 c³",
        conv=_family("conv.aoc:AdaptiveOrthoConv{}d"),
        conv_transpose=_family("conv.aoc:AdaptiveOrthoConvTranspose{}d"),
        linear="linear:OrthoLinear",
    ),
    Method(
        "bcop",
        "Li et al. 2019",
        "orthogonal",
        "circular; 1-Lipschitz with zeros",
        "36 c³",
        conv=_family("conv.bcop:FastBlockConv{}d"),
        conv_transpose={**_family("conv.bcop:FastBlockConvTranspose{}d"), 2: "conv.bcop:FastBlockConvTranspose2D"},
        linear="linear:OrthoLinear",
        stride=False,
    ),
    Method(
        "rko",
        "Serrurier et al. 2021",
        "lipschitz",
        "circular or zeros; orthogonal if circular and kernel ≤ stride",
        "60 c³",
        conv=_family("conv.rko:RKOConv{}d"),
        conv_transpose={**_family("conv.rko:RKOConvTranspose{}d"), 2: "conv.rko:RkoConvTranspose2d"},
        linear="linear:OrthoLinear",
    ),
    Method(
        "soc",
        "Singla & Feizi 2021; explicit kernel: Boissin et al. 2025",
        "lipschitz",
        "circular or zeros; singular values ≥ 1 − 6.1e-3 (order 4) if circular",
        "570 c³",
        conv=_family("conv.soc:AdaptiveSOCConv{}d"),
        conv_transpose=_family("conv.soc:AdaptiveSOCConvTranspose{}d"),
        linear="linear:OrthoLinear",
        linear_options={"ortho_params": EXP_ORTHO_PARAMS},
        conv_options={"padding_to": "kernel"},
    ),
    Method(
        "aol",
        "Prach & Lampert 2022",
        "lipschitz",
        "circular or zeros",
        "80 c³",
        conv=_family("conv.aol:AOLConv{}d"),
        conv_transpose=_family("conv.aol:AOLConvTranspose{}d"),
        linear="linear:AOLLinear",
    ),
    Method(
        "spectral",
        "Delattre et al. 2023",
        "lipschitz",
        "circular or zeros",
        "26 000 c³",
        conv=_family("conv.spectral:SpectralConv{}d"),
        conv_transpose=_family("conv.spectral:SpectralConvTranspose{}d"),
        linear="linear:SpectralLinear",
    ),
    Method(
        "sll",
        "Araujo et al. 2023",
        "lipschitz",
        "circular or zeros",
        "as aol, on the inner channels",
        conv={dims: f"conv.sll:SDPBasedLipschitzResBlock{'' if dims == 2 else f'{dims}d'}" for dims in (1, 2, 3)},
        conv_options={"inner_dim_factor": 2.0},
        rename={"in_channels": "cin"},
        square=True,
        activated=True,
        further=("sll:SDPBasedLipschitzDense", "conv.sll:AOCLipschitzResBlock"),
        stride=False,
    ),
    Method(
        "sll-aoc",
        "Araujo et al. 2023; fused with orthogonal kernels: Boissin et al. 2025",
        "lipschitz",
        "circular or zeros",
        "as sll and two aoc kernels",
        conv={dims: f"conv.sll:SLLxAOCLipschitzResBlock{'' if dims == 2 else f'{dims}d'}" for dims in (1, 2, 3)},
        conv_options={"inner_dim_factor": 2.0},
        rename={"in_channels": "cin", "out_channels": "cout"},
        activated=True,
    ),
    Method(
        "sandwich",
        "Wang & Manchester 2023; on orthogonal kernels: Boissin et al. 2025",
        "lipschitz",
        "circular or zeros",
        "aoc from in + out to out channels",
        conv=_family("conv.sandwich:SandwichConv{}d"),
        linear="sandwich:SandwichLinear",
        activated=True,
    ),
    Method(
        "cpl",
        "Meunier et al. 2022",
        "lipschitz",
        "circular or zeros",
        "Gram iteration on a frequency grid",
        conv=_family("conv.cpl:CPLConv{}d"),
        linear="cpl:CPLLinear",
        rename={"in_channels": "channels", "in_features": "features"},
        square=True,
        activated=True,
        stride=False,
    ),
)

METHODS: dict[str, Method] = {entry.name: entry for entry in _ENTRIES}
"""All methods by name."""


def markdown_table() -> str:
    """`METHODS` as a table for the documentation; "activation" marks layers that contain theirs.

    >>> print(markdown_table().splitlines()[0])
    | method | paper | guarantee | padding | stride | dilation | groups | transposed | 1-D | 3-D | dense | activation |
    cost (3×3) |
    """
    header = "method paper guarantee padding stride dilation groups transposed 1-D 3-D dense activation".split()
    rows = [[*header, "cost (3×3)"], ["---"] * (len(header) + 1)]
    for m in METHODS.values():
        marks = (m.stride, m.dilation, m.groups, m.conv_transpose, 1 in m.conv, 3 in m.conv, m.linear, m.activated)
        guarantee = {"orthogonal": "orthogonal", "lipschitz": "1-Lipschitz"}[m.guarantee]
        rows.append([f"`{m.name}`", m.paper, guarantee, m.padding, *("✓" if x else "" for x in marks), m.cost])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
