"""Random programs: source text of a module, assembled statement by statement, each tried before it is kept."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

SHAPES = (
    (4,), (6,), (9,), (2, 4), (4, 4), (3, 6), (4, 8), (2, 4, 4), (4, 3, 3), (3, 4, 4), (1, 6, 6), (2, 2, 3, 3),
)  # fmt: skip
LARGEST = 96  # entries of a sample
HEADER = """\
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import layers as ol
from tests.certification.fuzz import pieces

torch.default_generator.manual_seed({seed})
torch.set_default_dtype({dtype})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kind", torch.zeros(()))
{init}

    def forward(self, x):
{body}
        return x


model, shape = Model().eval(), {shape}
"""


class Unfit(Exception):
    """This statement does not go with a tensor of this shape."""


@dataclass(frozen=True)
class Group:
    """Statements of one kind.

    Attributes:
        weight: how often one of them is drawn.
        statements: each writes lines for a draft; x is the tensor they act on.
        tag: why a refusal is right, if it is: "no constant", "composed" (Lipschitz only as a whole), "control flow",
            "batch" (samples depend on each other) or "rounding" (to a coarser format than that of the model).
    """

    weight: float
    statements: Sequence[Callable[[Draft], str]]
    tag: str | None = None


@dataclass(frozen=True)
class Program:
    """A module as text, the shape of its input without the batch, and the reasons to refuse it."""

    source: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    tags: frozenset[str]

    def load(self) -> nn.Module:
        """The module, always with the same weights."""
        return _run(self.source)["model"]


@dataclass
class Draft:
    """A program while it is written: draws what statements need, from the shape at hand."""

    rng: random.Random
    shape: tuple[int, ...]
    init: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    saved: dict[str, tuple[int, ...]] = field(default_factory=dict)
    layers: list[str] = field(default_factory=list)
    tags: list[str] = field(default_factory=list)

    def tagged(self, tag: str, text: str) -> str:
        """A text with a reason to be refused."""
        self.tags.append(tag)
        return text

    @property
    def rank(self) -> int:
        """Of x, with its batch."""
        return len(self.shape) + 1

    def pick(self, *options: Any) -> Any:
        return options[self.rng.randrange(len(options))]

    def axis(self) -> int:
        """Any but the batch, counted from either end."""
        axis = self.rng.randrange(1, self.rank)
        return self.pick(axis, axis - self.rank)

    def axes(self) -> str:
        chosen = self.rng.sample(range(1, self.rank), self.rng.randint(1, self.rank - 1))
        return f"({', '.join(map(str, chosen))},)"

    def length(self, axis: int) -> int:
        return self.shape[axis - 1 if axis > 0 else axis]

    def scalar(self) -> float:
        return self.pick(-3.0, -1.0, -0.5, 0.1, 0.5, 2.0, 2.5, 3.0)

    def split(self, axis: int = 1) -> int:
        """Where to cut an axis into two pieces."""
        if self.length(axis) < 2:
            raise Unfit
        return self.rng.randrange(1, self.length(axis))

    def indices(self, axis: int, count: int | None = None) -> str:
        """Positions along an axis, with repeats."""
        count = count or self.rng.randint(1, self.length(axis) + 1)
        return str([self.rng.randrange(self.length(axis)) for _ in range(count)])

    def spatial(self, *ranks: int) -> int:
        """Number of axes after the channels: 1, 2 or 3."""
        if self.rank not in (3, 4, 5) or (ranks and self.rank - 2 not in ranks):
            raise Unfit
        return self.rank - 2

    def divisor(self, n: int) -> int:
        return self.pick(*[k for k in range(1, n + 1) if n % k == 0])

    def layer(self, text: str) -> str:
        """A submodule, now and then one that is there already."""
        same = [name for name, of in zip(self.layers, self.init, strict=True) if of.endswith(f" = {text}")]
        if same and self.rng.random() < 0.5:
            return same[0]
        name = f"self.m{len(self.layers)}"
        self.layers.append(name)
        self.init.append(f"{name} = {text}")
        return name

    def buffer(self, text: str) -> str:
        """A constant of the module."""
        name = f"c{len(self.layers)}"
        self.layers.append(f"self.{name}")
        self.init.append(f'self.register_buffer("{name}", {text})')
        return f"self.{name}"

    def constant(self, *shape: int, scale: float = 1.0) -> str:
        return self.buffer(f"{scale:.3g} * torch.randn{tuple(shape)}")

    def matrix(self, rows: int, columns: int) -> str:
        return self.constant(rows, columns, scale=1 / math.sqrt(max(rows, columns)))

    def mask(self, *shape: int) -> str:
        return self.buffer(f"torch.rand{tuple(shape)} > 0.5")

    def same(self) -> str:
        """Another value of the shape of x."""
        names = [name for name, shape in self.saved.items() if shape == self.shape]
        return self.pick(*names, "torch.tanh(x)", "x.flip(1)", "(0.5 * x)", "x")

    def text(self, seed: int, shape: tuple[int, ...], dtype: torch.dtype) -> str:
        init = "\n".join(8 * " " + line for line in self.init) or 8 * " " + "pass"
        body = "\n".join(8 * " " + line for text in self.body for line in text.splitlines()) or 8 * " " + "x = x * 1"
        return HEADER.format(seed=seed, dtype=dtype, init=init, body=body, shape=shape)


def write(rng: random.Random, groups: dict[str, Group], statements: tuple[int, int] = (2, 12)) -> Program:
    """Draw a program that runs on batches of any size."""
    shape = rng.choice(SHAPES)
    dtype = torch.float32 if rng.random() < 0.08 else torch.float64
    seed, wanted = rng.randrange(2**16), rng.randint(*statements)
    names, weights = list(groups), [group.weight for group in groups.values()]
    draft = Draft(rng, shape)
    for _ in range(6 * wanted):
        group = groups[rng.choices(names, weights)[0]]
        before = dataclasses.replace(
            draft,
            init=[*draft.init],
            body=[*draft.body],
            saved={**draft.saved},
            layers=[*draft.layers],
            tags=[*draft.tags],
        )
        with contextlib.suppress(Unfit):
            draft.body.append(rng.choice(group.statements)(draft))
            draft.tags += [group.tag] if group.tag else []
            if rng.random() < 0.15:
                name = f"s{len(draft.saved)}"
                draft.body.append(f"{name} = x")
                draft.saved[name] = ()
            found = _tried(draft.text(seed, shape, dtype), shape, dtype)
            if found is not None:
                draft.shape = found
                draft.saved = {name: size or found for name, size in draft.saved.items()}
                if len(draft.body) - len(draft.saved) >= wanted:
                    break
                continue
        draft = before
    return Program(draft.text(seed, shape, dtype), shape, dtype, frozenset(draft.tags))


def _tried(source: str, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[int, ...] | None:
    """The shape of the output of a sample, or None if this is no program to go on with."""
    generator = torch.Generator().manual_seed(0)
    try:
        model = _run(source)["model"]
        outputs = []
        for batch in (2, 1, 5):
            x = torch.randn(batch, *shape, generator=generator, dtype=torch.float64).to(dtype)
            with torch.no_grad():
                outputs.append(model(x))
    except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError, AssertionError, AttributeError):
        return None  # a statement that torch rejects for this shape: draw another one
    for batch, out in zip((2, 1, 5), outputs, strict=True):
        if not isinstance(out, torch.Tensor) or out.dtype != dtype or out.dim() < 2 or len(out) != batch:
            return None
        if not 1 <= out[0].numel() <= LARGEST or not out.isfinite().all() or out.abs().max() > 1e4:
            return None
    return tuple(outputs[0].shape[1:]) if outputs[2].ne(outputs[2][:1]).any() else None  # constants end a program


def _run(source: str) -> dict[str, Any]:
    with _kept_settings(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        namespace: dict[str, Any] = {"__name__": "fuzzed"}
        exec(compile(source, "<fuzzed>", "exec"), namespace)
        return namespace


@contextlib.contextmanager
def _kept_settings() -> Iterator[None]:
    dtype = torch.get_default_dtype()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(dtype)
