"""What each fast path gains: a whole network with all of them, against the same network without one.

Run with `.venv/bin/python -m benchmarks.ablation`. A path that gains less than 5% is not worth its lines. What counts
is the processor time of one thread, which other processes hardly change (on another device, and for paths that are
about the other threads, time); both networks take turns.
"""

import os
import time
from unittest import mock

import torch
from torch import nn

from benchmarks.network import evaluation, training
from benchmarks.side_by_side import chosen_device, fastest, table, timed, use_device
from benchmarks.whole_networks import preset, residual
from orthogonium.training.memory import keep_freed_memory

TURNS = 3
MOST_ROUNDS = 20  # of a turn, which has one at least
ENOUGH = 2.0  # seconds for the rounds of a turn, but for the first
ALL_THREADS = {"memcmp"}  # one thread compares, while convolutions use all


def plainly(function, *inputs):
    """Instead of `evaluate`: operators that torch differentiates."""
    return function.plain(*inputs)


def small(kind: str, mode: str, batch: int):
    """A training step of eight 3×3 layers of 64 channels on 8×8 pixels."""
    from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveSOCConv2d

    make = {"ours": AdaptiveOrthoConv2d, "soc": AdaptiveSOCConv2d}[kind]
    model = nn.Sequential(*(make(64, 64, 3, padding="same", padding_mode=mode) for _ in range(8)))
    x = torch.randn(batch, 64, 8, 8)

    def run():
        model.zero_grad()
        model(x).square().sum().backward()

    return run


def whole_image(kind: str, mode: str, batch: int):
    """A training step of two layers of 16 channels on 16×16 pixels, with kernels as large."""
    from orthogonium.layers import CayleyConv2d

    model = nn.Sequential(*(CayleyConv2d(16, 16, 3, padding_mode=mode, image_size=16) for _ in range(2)))
    x = torch.randn(batch, 16, 16, 16)

    def run():
        model.zero_grad()
        model(x).square().sum().backward()

    return run


def cifar10(kind: str, mode: str, batch: int):
    """A training step of the preset `cifar10-cpu-30min`, which determines all but the kind."""
    return preset(kind)


def large_images(kind: str, mode: str, batch: int):
    """A training step of `aocnet_v1` on 224×224 pixels, which determines all but the kind and the batch."""
    return residual(kind, batch)


SWITCHES = {  # path → what is replaced, and by what
    "along axes": ("orthogonium.layers.conv.execution.FEWEST_ALONG_AXES", 10**9),
    "in turn": ("orthogonium.layers.conv.execution.FEWEST_CHANNELS", 10**9),
    "raw bases": ("orthogonium.layers.conv.execution.MOST_FOR_SPANS", -1),
    "strides without rows": ("orthogonium.linalg.in_turn.FEWEST_WITHOUT_ROWS", 10**9),
    "series": ("orthogonium.layers.conv.execution.FEWEST_IN_SERIES", 10**9),
    "dense without W": ("orthogonium.layers.linear._FEWEST_NUMBERS", 10**12),
    "frequencies": ("orthogonium.layers.conv.execution.exports_to_onnx", lambda: True),
    "memcmp": ("orthogonium.layers.eval_cache.same_values", torch.equal),
    "wrap": ("orthogonium.layers.conv.padding.has_values", lambda *tensors: False),
    "oneDNN": ("orthogonium.linalg.multiply._HALF_IDLE", False),
    "gram schmidt": ("orthogonium.linalg.triangular.evaluate", plainly),
    "three taps": ("orthogonium.methods.bcop.composition._has_three_taps", lambda bases, counts: False),
    "gram": ("orthogonium.kernels.fourier.evaluate", plainly),
    "exchange": ("orthogonium.layers.activations.sorting.has_values", lambda *tensors: False),
}


def without(path: str | None, job: str, **arguments):
    """The job, with one path switched off during each of its calls."""
    jobs = {"training": training, "evaluation": evaluation, "small network": small, "whole images": whole_image}
    jobs |= {"preset": cifar10, "`aocnet_v1`": large_images}
    run = jobs[job](**arguments)
    if path is None:
        return run

    def switched():
        with mock.patch(*SWITCHES[path]):
            run()

    return switched


ROWS = [  # what it is, switch, job, kind of network, padding, batch
    ("convolving along one axis after the other", "along axes", "training", "ours", "zeros", 64),
    ("convolving along one axis after the other", "along axes", "evaluation", "ours", "zeros", 16),
    ("factors applied in turn", "in turn", "training", "ours", "zeros", 8),
    ("raw bases, and rotations as reflections, for few pixels", "raw bases", "training", "ours", "zeros", 4),
    ("matrices of strides without their rows", "strides without rows", "`aocnet_v1`", "ours", "zeros", 1),
    ("the series of SOC, term by term", "series", "small network", "soc", "circular", 64),
    ("wide dense layers without their rows", "dense without W", "preset", "ours", "zeros", 128),
    ("Fourier transforms for kernels as large as the image", "frequencies", "whole images", "cayley", "circular", 16),
    ("`memcmp` instead of `torch.equal` for stale weights", "memcmp", "evaluation", "ours", "zeros", 1),
    ("products by oneDNN (processors of AMD with wide units)", "oneDNN", "training", "ours", "zeros", 16),
    ("derivative of circular padding by hand", "wrap", "training", "ours", "circular", 16),
    ("derivative of Gram–Schmidt by hand", "gram schmidt", "training", "ours", "zeros", 16),
    ("taps of 3×3 kernels at once, derivative by hand", "three taps", "small network", "ours", "circular", 4),
    ("`MaxMin` by hand", "exchange", "preset", "ours", "zeros", 128),
    ("derivative of Gram kernels by hand (AOL)", "gram", "training", "aol", "zeros", 16),
]


def fastest_of_turn(jobs: dict, wall: bool) -> dict[str, float]:
    """Seconds of the fastest call of each job, in as many rounds as there is time for."""
    best = dict.fromkeys(jobs, float("inf"))
    start, rounds = time.monotonic(), 0
    while rounds < 1 or (rounds < MOST_ROUNDS and time.monotonic() - start < ENOUGH):
        rounds += 1
        for name, job in jobs.items():
            begin = time.thread_time()
            elapsed, _ = timed(job, chosen_device())
            best[name] = min(best[name], elapsed if wall else time.thread_time() - begin)
    return best


if __name__ == "__main__":
    use_device(chosen_device())
    keep_freed_memory()  # as the other benchmarks and `fit` do
    rows = []
    for name, path, job, kind, mode, batch in ROWS:
        parallel = path in ALL_THREADS
        torch.set_num_threads((os.cpu_count() or 1) if parallel else 1)
        jobs = {
            key: without(p, job, kind=kind, mode=mode, batch=batch) for key, p in (("with", None), ("without", path))
        }
        for warm_up in jobs.values():
            warm_up()
        turns = [fastest_of_turn(jobs, wall=parallel or chosen_device() != "cpu") for _ in range(TURNS)]
        times = {key: fastest([turn[key] for turn in turns]) for key in jobs}
        cost = f"{times['without'] / times['with'] - 1:+.0%}"
        shown = [f"{1e3 * times[key]:.{1 if times['with'] < 0.1 else 0}f} ms" for key in jobs]
        rows.append([f"{name}, all threads" if parallel else name, job, batch, mode, *shown, cost])
    table(["", "", "batch", "padding", "with", "without", "time without it"], rows, f"{TURNS} turns")
