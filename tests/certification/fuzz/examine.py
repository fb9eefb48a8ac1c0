"""What the certifier says of a program, against what the judge finds."""

from __future__ import annotations

import contextlib
import math
import random
import signal
import time
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from orthogonium import audit, certify, lipschitz_bound
from orthogonium.attacks import l2_pgd
from orthogonium.certification import RefutedError, TraceError, UnboundedError
from orthogonium.errors import NumericalWarning, ShapeError
from tests.certification.fuzz.grammar import GROUPS
from tests.certification.fuzz.judge import Judge
from tests.certification.fuzz.program import Program, write

PATIENCE = 60  # seconds for one program


@dataclass(frozen=True)
class Outcome:
    """Of one program.

    Attributes:
        kind: "bounded", "refused", "refuted" (the certifier contradicts itself), "crashed" or "unsound".
        reason: of anything but "bounded".
        bound: by the certifier; infinite if there is none.
        quotient: the largest one found.
        program: that was examined.
        seconds: for the bound alone.
    """

    kind: str
    reason: str
    bound: float
    quotient: float
    program: Program
    seconds: float


class Late(Exception):
    """The certifier has not answered."""


@contextlib.contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise `Late` after so many seconds."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def program(seed: int) -> Program:
    """The program of a seed."""
    return write(random.Random(seed), GROUPS)


def examine(program: Program, *, thorough: bool = False) -> Outcome:
    """Bound it and try to refute the bound; `thorough` also audits it and attacks certificates."""
    model, began = program.load(), time.perf_counter()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    bound, quotient, seconds = math.inf, math.nan, 0.0

    def outcome(kind: str, reason: str = "") -> Outcome:
        return Outcome(kind, reason, bound, quotient, program, seconds or time.perf_counter() - began)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bound = lipschitz_bound(model, program.shape).value
            seconds = time.perf_counter() - began
            if not all(torch.equal(t, state[name]) for name, t in model.state_dict().items() if not t.isnan().any()):
                return outcome("unsound", "the certifier has changed the model")
            if not math.isfinite(bound):
                return outcome("unsound", f"the bound is {bound}")
            verdict = Judge(model, program.shape, program.dtype).verdict(bound)
            against, quotient = verdict.against, verdict.quotient
            if against is None and thorough:
                against = _audited(model, program, bound) or _attacked(model, program)
    except RefutedError as error:
        return outcome("refuted", str(error))
    except (UnboundedError, TraceError, ShapeError) as error:
        return outcome("refused", _summary(error))
    except Late:
        return outcome("crashed", f"no answer within {PATIENCE} seconds")
    except Exception as error:  # of any kind: it is no answer, and is reported with the program that caused it
        frames = [
            f for f in traceback.extract_tb(error.__traceback__) if "orthogonium" in f.filename or "fuzz/" in f.filename
        ]
        place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "?"
        return outcome("crashed", f"{place}: {type(error).__name__}: {error}")
    return outcome("unsound" if against else "bounded", against or "")


def _summary(error: Exception) -> str:
    """The reason without the values that differ from program to program."""
    if isinstance(error, UnboundedError):
        node = error.nodes[0]
        return f"{node.operation}: {node.reason.split(':')[0][:60]}"
    return f"{type(error).__name__}: {str(error)[:70]}"


def _audited(model: nn.Module, program: Program, bound: float) -> str | None:
    found = audit(model, program.shape).lipschitz_bound
    return None if math.isclose(found, bound, rel_tol=1e-6) else f"the audit says {found:.9g}, the bound is {bound:.9g}"


class Classifier(nn.Module):
    """The outputs of a program as logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).flatten(1)


def _attacked(model: nn.Module, program: Program) -> str | None:
    """Whether certificates break at 0.999 of their radius, or at another size of the batch."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, *program.shape, generator=generator, dtype=torch.float64)
    x = (x * torch.logspace(-2, 2, len(x), dtype=torch.float64).reshape(-1, *[1] * len(program.shape))).to(
        program.dtype
    )
    logits = Classifier(model).eval()
    with torch.no_grad():
        out = logits(x.clone())
    if out.shape[1] < 2 or not out.isfinite().all():
        return None
    labels = out.argmax(1)
    radii = certify(logits, [(x.clone(), labels)]).radii
    claimed = radii > 0
    if not claimed.any() or not radii[claimed].isfinite().all():
        return None if not claimed.any() else "a certified radius is not finite"
    return broken(logits, x[claimed], labels[claimed], radii[claimed])


def broken(
    logits: nn.Module, x: Tensor, labels: Tensor, radii: Tensor, *, steps: int = 15, noise: int = 64
) -> str | None:
    """A certificate that does not hold: without a perturbation, one at a time; with noise; by an attack."""
    near = 0.999 * radii.to(x.dtype)
    candidates = {"no perturbation": x}
    generator = torch.Generator().manual_seed(1)
    for i in range(noise):
        random = torch.randn(x.shape, generator=generator, dtype=torch.float64).flatten(1)
        length = (0.5, 0.75, 1.0, 1.0)[i % 4] * near.double() / random.norm(dim=1)
        candidates[f"noise {i}"] = (x.double() + (length[:, None] * random).reshape(x.shape)).to(x.dtype)
    with contextlib.suppress(RuntimeError), warnings.catch_warnings():  # programs that have no gradient
        warnings.simplefilter("ignore", NumericalWarning)  # of radii too small to search
        candidates["an attack"] = l2_pgd(lambda z: logits(z * 1), x, labels, near, steps=steps, restarts=2)
    for name, points in candidates.items():
        with torch.no_grad():
            out = torch.cat([logits(z.clone()) for z in points.split(1 if name == "no perturbation" else len(x))])
        distance = (points.double() - x.double()).flatten(1).norm(dim=1)
        wrong = (out.amax(1) > out.gather(1, labels[:, None])[:, 0]) & (distance < radii)
        if wrong.any():
            i = int(wrong.nonzero()[0])
            return f"{int(wrong.sum())} broken: {name}, distance {distance[i]:.6g}, certified {radii[i]:.6g}"
    return None
