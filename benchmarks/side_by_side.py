"""Time several contestants in one run, in turns, so that a busy machine slows all of them alike.

A contestant is a function that sets up its case and returns the function to time. Ours live in one process, those of
the published library (`.peer`), which has the same package name, in another.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".peer"
PEER_VERSION = "0.0.4"
# package → what pip installs, and the folder it has for itself
PEERS = {
    "orthogonium": (f"orthogonium=={PEER_VERSION}", PEER),
    "einops": ("einops", PEER),  # which Cayley convolutions of the published library need
    "geotorch": ("geotorch", ROOT / ".geotorch"),
    "deel": ("deel-torchlip", ROOT / ".deel-torchlip"),
}
# By default glibc may return large blocks to the system at every call, by chance: page faults cost up to a third of a
# step.
KEEP_FREED_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**40)}
HEATS = 3
NOT_INSTALLED = 3  # exit code of a benchmark whose peer is not to be had
_differences: list[float] = []  # how far times of one contestant have differed since the last table
TURN = 0.2  # seconds that a contestant repeats its job for: the first call after the others' turns finds cold caches


def chosen_device() -> str:
    """What `--device` says: the device on which benchmarks make their tensors and time."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--device", default="cpu")
    return parser.parse_known_args()[0].device


def synchronize(device: str) -> None:
    """Wait until the device has done what it was asked to."""
    if device != "cpu":
        import torch

        torch.accelerator.synchronize()


def timed(job: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds that a job takes until the device has done all of it, and what it returns."""
    synchronize(device)
    start = time.perf_counter()
    result = job()
    synchronize(device)
    return time.perf_counter() - start, result


def peak_memory(job: Callable[[], Any]) -> int:
    """The most bytes that the tensors of a job hold at once, on the CPU."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        job()
    results = record.profiler.kineto_results  # type: ignore[union-attr]
    return max(itertools.accumulate(event.nbytes() for event in results.events() if event.name() == "[memory]"))


def is_quick() -> bool:
    """Whether `--quick` was given: one heat, few rounds, small cases. Such times are good for a look only."""
    return "--quick" in sys.argv


def install(package: str) -> bool:
    """Put a peer into a folder of its own; False, and a line that says so, if it is not to be had."""
    requirement, folder = PEERS[package]
    if (folder / package).exists():
        return True
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", str(folder), requirement], capture_output=True, text=True)
    if done.returncode:
        print(f"{requirement} is left out: it cannot be installed from the registry.", flush=True)
    return done.returncode == 0


def install_peer() -> None:
    """The published library, without which there is nothing to compare with."""
    if not install("orthogonium"):
        sys.exit(NOT_INSTALLED)


def beside(ours: float, theirs: float, why: str) -> str:
    """How many times faster we are than a peer; where we are not, by more than times differ by themselves, `why`."""
    ratio = theirs / ours
    if 0.95 <= ratio < 1:
        return f"{ratio:.2f}×, within the spread"
    return f"{ratio:.1f}×" if ratio >= 1 else f"{ratio:.2f}×, behind: {why}"


def in_process(peer: bool, function: str, *arguments, limit: float | None = None):
    """What a function ("module:function") returns in a process of its own, with our library or the published one.

    None if it takes more than `limit` seconds.
    """
    context = multiprocessing.get_context("spawn")
    end, other = context.Pipe()
    process = context.Process(target=_answer, args=(other, peer, function, arguments, chosen_device()), daemon=True)
    process.start()
    other.close()  # so that the end of the process is noticed
    if not end.poll(limit):
        process.kill()
        process.join()
        return None
    result = end.recv()
    process.join()
    return result


def use_device(device: str) -> None:
    """Make tensors there from now on. A default device makes every call of torch slower, and CPUs need none."""
    if device != "cpu":
        import torch

        torch.set_default_device(device)


def _answer(connection, peer: bool, function: str, arguments, device: str) -> None:
    if peer:
        sys.path.insert(0, str(PEER))
    use_device(device)
    connection.send(named(function)(*arguments))


def named(function: str):
    """The function "module:function"."""
    module, name = function.split(":")
    return getattr(importlib.import_module(module), name)


def _serve(connection, peer: bool, contestants: dict[str, tuple[str, dict]], threads: int, device: str) -> None:
    if peer:
        sys.path.insert(0, str(PEER))
    import torch

    torch.set_num_threads(threads)
    use_device(device)
    jobs = {}
    for name, (contestant, arguments) in contestants.items():
        torch.manual_seed(0)
        jobs[name] = named(contestant)(**arguments)
        jobs[name]()
    connection.send("ready")
    while (name := connection.recv()) is not None:
        begin, best = time.perf_counter(), float("inf")
        while time.perf_counter() < begin + TURN:
            seconds, result = timed(jobs[name], device)
            best = min(best, seconds)
        connection.send((best, result))


def race(
    contestants: dict[str, tuple[bool, str, dict]], rounds: int, threads: int = 2
) -> dict[str, tuple[float, object]]:
    """Time of the fastest call of each contestant, `name: (is it the peer, "module:function", arguments)`.

    With it comes what the contestant returned last. All start anew in each heat: where memory happens to lie makes a
    network faster or slower by 10% for as long as it lives.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.update(KEEP_FREED_MEMORY)
    heats = 1 if is_quick() else min(HEATS, rounds)
    each = 1 if is_quick() else -(-rounds // HEATS)
    found = [_heat(contestants, each, threads) for _ in range(heats)]
    return {name: (fastest([heat[name][0] for heat in found]), found[-1][name][1]) for name in contestants}


def _heat(contestants: dict, rounds: int, threads: int) -> dict[str, tuple[float, object]]:
    context = multiprocessing.get_context("spawn")
    ends = {}
    for peer in {peer for peer, _, _ in contestants.values()}:
        end, other = context.Pipe()
        cases = {name: (function, arguments) for name, (p, function, arguments) in contestants.items() if p == peer}
        context.Process(target=_serve, args=(other, peer, cases, threads, chosen_device()), daemon=True).start()
        ends[peer] = end
    for end in ends.values():
        end.recv()
    best: dict[str, tuple[float, object]] = {}
    for _ in range(rounds):
        for name, (peer, _, _) in contestants.items():
            if len(ends) > 1:
                time.sleep(0.3)  # idle threads of the other process spin for a while
            ends[peer].send(name)
            seconds, result = ends[peer].recv()
            best[name] = (min(seconds, best.get(name, (seconds, None))[0]), result)
    for end in ends.values():
        end.send(None)
    return best


def fastest(times: Sequence[float]) -> float:
    """The least of several times of one contestant, whose spread the table will tell."""
    if len(times) > 1:
        _differences.append(max(times) / min(times) - 1)
    return min(times)


def table(header: list[str], rows: list[list[object]], measured: str = f"{HEATS} starts") -> None:
    """Print a Markdown table, and how far the times that it is from have differed, each measured so often."""
    for row in [header, ["---"] * len(header), *rows]:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)
    if _differences:
        print(f"\nThe slowest of {measured} took up to {max(_differences):.0%} longer than the fastest.", flush=True)
        _differences.clear()
