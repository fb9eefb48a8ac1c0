"""Long runs over many processes, and their summary."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, TimeoutError, as_completed

import torch

from tests.certification.fuzz.examine import PATIENCE, Outcome, examine, patience, program


def _one(seed: int, every: int) -> tuple[int, Outcome]:
    with patience(PATIENCE):
        return seed, examine(program(seed), thorough=seed % every == 0)


def _alone() -> None:
    """Each process has one thread."""
    torch.set_num_threads(1)


def run(modules: int, seed: int, minutes: float, processes: int, every: int) -> list[tuple[int, Outcome]]:
    """Examine programs of consecutive seeds until there are enough, or time is up."""
    until, found = time.monotonic() + 60 * minutes, []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_alone) as pool:
        tasks = [pool.submit(_one, at, every) for at in range(seed, seed + modules)]
        try:
            for task in as_completed(tasks, timeout=60 * minutes):
                at, outcome = task.result()
                found.append((at, outcome))
                if outcome.kind == "unsound":
                    print(f"unsound: seed {at}: {outcome.reason}", flush=True)
                if time.monotonic() > until:
                    break
        except TimeoutError:
            pass  # the time is up
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def summary(found: Sequence[tuple[int, Outcome]], shown: int = 5) -> str:
    """What a run has found, in the words of the table of requirements."""
    of = {kind: [] for kind in ("bounded", "refused", "refuted", "crashed", "unsound")}
    for seed, outcome in found:
        of[outcome.kind].append((seed, outcome))
    right = [o for _, o in of["refused"] if o.program.tags]
    wrong = [(seed, o.reason) for seed, o in of["refused"] if not o.program.tags]
    answered = len(of["bounded"]) + len(of["unsound"])
    possible = len(found) - len(right)
    tags = Counter(tag for o in right for tag in sorted(o.program.tags)[:1])
    ratios = [o.quotient / o.bound for _, o in of["bounded"] if o.bound > 0]
    tight = [o.bound / o.quotient for _, o in of["bounded"] if o.quotient > 0]
    seconds = [o.seconds for _, o in found]
    share, fair = answered / max(1, len(found)), answered / max(1, possible)
    reasons = ", ".join(f"{n} {tag}" for tag, n in tags.most_common()) or "none"
    lines = [
        f"modules   {len(found)}",
        f"bounded   {answered}, {share:.1%} of all, {fair:.1%} of those that are not refused rightly",
        f"refused   {len(right)} rightly ({reasons}), {len(wrong)} others",
        f"refuted   {len(of['refuted'])} by the certifier itself",
        f"crashed   {len(of['crashed'])}",
        f"unsound   {len(of['unsound'])}",
        f"largest quotient / bound  {max(ratios, default=0):.9f}",
        f"median bound / quotient   {statistics.median(tight) if tight else 0:.3f}",
        f"seconds for a bound       median {statistics.median(seconds):.3f}, largest {max(seconds):.2f}"
        if seconds
        else "",
        "",
        "Refused though there is a bound:",
        *(
            f"{n:6d}  {reason}  (seed {next(seed for seed, of_this in wrong if of_this == reason)})"
            for reason, n in Counter(reason for _, reason in wrong).most_common(40)
        ),
    ]
    for kind in ("crashed", "refuted"):
        lines += ["", f"{kind.capitalize()}:"] + [f"  seed {s}: {o.reason[:150]}" for s, o in of[kind][: 4 * shown]]
    for seed, outcome in of["unsound"][:shown]:
        lines += ["", f"UNSOUND: seed {seed}: {outcome.reason}", outcome.program.source]
    lines += [f"unsound seed {seed}: {outcome.reason}" for seed, outcome in of["unsound"][shown:]]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 1 if some bound or certificate is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.certification.fuzz", description=__doc__)
    parser.add_argument("--modules", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--every", type=int, default=20, help="audit and attack each so manieth module")
    parser.add_argument("--show", action="store_true", help="print the program of the seed, and what is found")
    options = parser.parse_args(arguments)
    if options.show:
        shown = examine(program(options.seed), thorough=True)
        print(
            shown.program.source, f"\n{shown.kind} {shown.reason} bound {shown.bound:.9g} quotient {shown.quotient:.9g}"
        )
        return int(shown.kind == "unsound")
    began = time.monotonic()
    found = run(options.modules, options.seed, options.minutes, options.processes, options.every)
    print(summary(found), f"\n{time.monotonic() - began:.0f} s, seeds from {options.seed}", sep="\n")
    return int(any(outcome.kind == "unsound" for _, outcome in found))
