"""The one table of methods: `METHODS`. Façades, tests, benchmarks and the tables of the documentation read it.

Our layers are named by their path, since methods do not import layers. A new method is a file here, its layers, and
an entry in both tables below; methods of other packages are registered (Note [Methods from outside] of `registry.py`).
"""

from __future__ import annotations

from typing import Any

from orthogonium.linalg import CAYLEY_ORTHO_PARAMS, EXP_ORTHO_PARAMS, POLAR_ORTHO_PARAMS, OrthoParams
from orthogonium.methods.registry import Method, MethodTable


def _layer(place: str) -> str:
    return f"orthogonium.layers.{place}"


def _family(place: str, on_images: str | None = None) -> dict[int, str]:
    """Layers of 1 to 3 dimensions; the one on images may have a name of its own."""
    return {dims: _layer(on_images if dims == 2 and on_images else place.format(dims)) for dims in (1, 2, 3)}


def _linear(
    conv: str, transpose_on_images: str | None = None, dense: str = "linear:OrthoLinear", **options: Any
) -> dict[str, Any]:
    """Convolutions `…Conv{}d` with their transposes `…ConvTranspose{}d`, and the dense layer."""
    transposes = _family(conv.replace("Conv{}d", "ConvTranspose{}d"), transpose_on_images)
    return {"conv": _family(conv), "conv_transpose": transposes, "linear": _layer(dense), **options}


def _circle(name: str, **linear_options: OrthoParams) -> dict[str, Any]:
    """Convolutions of `conv/circle.py`, and the preset that does the same to the matrix of a dense layer."""
    layers = {"conv": _family(f"conv.circle:{name}Conv{{}}d"), "linear": _layer("linear:OrthoLinear")}
    return {**layers, "linear_options": linear_options, "dilation": False}


def _block(conv: str, on_images: str | None = None, dense: str | None = None, **options: Any) -> dict[str, Any]:
    """Blocks that contain their activation."""
    return {"conv": _family(conv, on_images), "linear": dense and _layer(dense), "activated": True, **options}


EITHER = "circular or zeros"
CIRCULAR = "circular; 1-Lipschitz with zeros"
CIRCLE = "circular; a kernel as large as the n × n image, another for each size"
TILES = f"{EITHER}; orthogonal if circular and kernel ≤ stride"
SERIES = f"{EITHER}; singular values ≥ 1 − 6.1e-3 (order 4) if circular"
AOC = "orthogonal kernels: Boissin et al. 2025"

_ROWS: tuple[tuple[Any, ...], ...] = (  # name, paper, guarantee, padding, cost
    ("aoc", "Boissin et al. 2025", "orthogonal", CIRCULAR, "36 c³"),
    ("bcop", "Li et al. 2019", "orthogonal", CIRCULAR, "36 c³"),
    ("rko", "Serrurier et al. 2021", "lipschitz", TILES, "60 c³"),
    ("soc", "Singla & Feizi 2021; explicit kernel: Boissin et al. 2025", "lipschitz", SERIES, "570 c³"),
    ("aol", "Prach & Lampert 2022", "lipschitz", EITHER, "80 c³"),
    ("spectral", "Delattre et al. 2023", "lipschitz", EITHER, "1 000 c³; 19 000 c³ on accelerators"),
    ("cayley", "Trockman & Kolter 2021", "orthogonal", CIRCLE, "24 n² c³"),
    ("lot", "Xu et al. 2022", "orthogonal", CIRCLE, "340 n² c³"),
    ("bro", "Lai et al. 2025", "orthogonal", CIRCLE, "7 n² c³"),
    ("eco", "Yu et al. 2022", "orthogonal", CIRCLE, "1 800 c³ if 3 divides n"),
    ("sll", "Araujo et al. 2023", "lipschitz", EITHER, "as aol, on the inner channels"),
    ("sll-aoc", f"Araujo et al. 2023; fused with {AOC}", "lipschitz", EITHER, "as sll and two aoc kernels"),
    ("sandwich", f"Wang & Manchester 2023; on {AOC}", "lipschitz", EITHER, "aoc from in + out to out channels"),
    ("cpl", "Meunier et al. 2022", "lipschitz", EITHER, "Gram iteration on a frequency grid"),
)
_LAYERS = {  # and options: the other fields of `Method`
    "aoc": _linear("conv.aoc:AdaptiveOrthoConv{}d"),
    "bcop": _linear("conv.bcop:FastBlockConv{}d", "conv.bcop:FastBlockConvTranspose2D"),
    "rko": _linear("conv.rko:RKOConv{}d", "conv.rko:RkoConvTranspose2d"),
    "soc": _linear(
        "conv.soc:AdaptiveSOCConv{}d",
        linear_options={"ortho_params": EXP_ORTHO_PARAMS},
        conv_options={"padding_to": "kernel"},
    ),
    "aol": _linear("conv.aol:AOLConv{}d", dense="linear:AOLLinear"),
    "spectral": _linear("conv.spectral:SpectralConv{}d", dense="linear:SpectralLinear"),
    "cayley": _circle("Cayley", ortho_params=CAYLEY_ORTHO_PARAMS),
    "lot": _circle("LOT", ortho_params=POLAR_ORTHO_PARAMS),
    "bro": _circle("BRO"),
    "eco": _circle("ECO", ortho_params=EXP_ORTHO_PARAMS),
    "sll": _block(
        "conv.sll:SDPBasedLipschitzResBlock{}d",
        "conv.sll:SDPBasedLipschitzResBlock",
        conv_options={"inner_dim_factor": 2.0},
        square=True,
        further=(_layer("sll:SDPBasedLipschitzDense"), _layer("conv.sll:AOCLipschitzResBlock")),
        stride=False,
    ),
    "sll-aoc": _block(
        "conv.sll:SLLxAOCLipschitzResBlock{}d",
        "conv.sll:SLLxAOCLipschitzResBlock",
        conv_options={"inner_dim_factor": 2.0},
    ),
    "sandwich": _block("conv.sandwich:SandwichConv{}d", dense="sandwich:SandwichLinear"),
    "cpl": _block("conv.cpl:CPLConv{}d", dense="cpl:CPLLinear", square=True, stride=False),
}
BUILT_IN = tuple(Method(*row, **_LAYERS[row[0]]) for row in _ROWS)

METHODS = MethodTable(BUILT_IN)
"""All methods by name, ours and registered ones."""


def register_method(method: Method) -> Method:
    """Add your own method to `METHODS`: façades, models, `convert` and the command then accept its name.

    Its layers are classes, or "package.module:Class"; the other fields are shown in tables. Packages can declare an
    entry point in the group "orthogonium.methods" instead.

    >>> from orthogonium.layers import AdaptiveOrthoConv2d, LipschitzConv2d
    >>> from orthogonium.methods import METHODS, Method, register_method
    >>> mine = Method("mine", "Me 2026", "orthogonal", "circular", "36 c³", conv={2: AdaptiveOrthoConv2d})
    >>> _ = register_method(mine)
    >>> isinstance(LipschitzConv2d(4, 8, 3, method="mine"), AdaptiveOrthoConv2d)
    True
    >>> del METHODS["mine"]
    """
    return METHODS.add(method)
