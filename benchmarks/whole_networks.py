"""Whole networks at once: parts of a batch, many small layers, a recurrent network, two processes.

Run with `.venv/bin/python -m benchmarks.whole_networks` (or with the names of some of its tables).
"""

import os
import sys
import time

from benchmarks.side_by_side import HEATS, KEEP_FREED_MEMORY, fastest, race, table

HERE = "benchmarks.whole_networks"


def parts(kind: str, count: int, once: bool):
    """A batch of 32 images of 256 channels on 8×8 pixels, in parts, through four layers."""
    import torch
    from torch import nn

    from orthogonium import build_once
    from orthogonium.layers import AdaptiveOrthoConv2d

    make = nn.Conv2d if kind == "plain" else AdaptiveOrthoConv2d
    model = nn.Sequential(*[make(256, 256, 3, padding=1, padding_mode="zeros") for _ in range(4)])
    images = torch.randn(32, 256, 8, 8).chunk(count)

    def passes():
        for x in images:
            model(x).sum().backward()

    def run():
        model.zero_grad()
        if once:
            with build_once(model):
                passes()
        else:
            passes()

    return run


def builds(channels: int, together: bool):
    """The weights of 32 equal 3×3 layers, forward and backward."""
    import torch
    from torch import nn

    from orthogonium.building.builds import build, sources
    from orthogonium.layers import AdaptiveOrthoConv2d

    layers = nn.ModuleList([AdaptiveOrthoConv2d(channels, channels, 3, bias=False) for _ in range(32)])
    grads = [torch.randn(channels, channels, 3, 3) for _ in layers]
    parameters = list(layers.parameters())

    def run():
        weights = build(sources(layers)) if together else [layer.weight for layer in layers]
        torch.autograd.grad(weights, parameters, grads)

    return run


def recurrent(kind: str, batch: int, steps: int = 200, units: int = 128):
    """A training step of a recurrent network."""
    from contextlib import nullcontext

    import torch
    from torch import nn

    from orthogonium import build_once
    from orthogonium.layers import OrthoLinear

    cell = (nn.Linear if kind == "plain" else OrthoLinear)(units, units)
    inputs = torch.randn(steps, batch, units)

    def run():
        cell.zero_grad()
        with build_once(cell) if kind == "once" else nullcontext():
            h = torch.zeros(batch, units)
            for x in inputs:
                h = torch.tanh(cell(h) + x)
            h.sum().backward()

    return run


def preset(kind: str):
    """A training step of `cifar10-cpu-30min`, or of its copy with plain weights."""
    from orthogonium.recipes.presets import PRESETS

    recipe = PRESETS["cifar10-cpu-30min"]
    return _model_step(recipe.model, (3, 32, 32), 10, kind, recipe.batch_size, recipe.model_options)


def residual(kind: str, batch: int):
    """A training step of `aocnet_v1` on images of 224×224 pixels."""
    return _model_step("aocnet_v1", (3, 224, 224), 1000, kind, batch)


def _model_step(name: str, shape: tuple, classes: int, kind: str, batch: int, options: dict | None = None):
    import torch

    from orthogonium import build_together
    from orthogonium.layers import freeze
    from orthogonium.models import create_model

    model = create_model(name, shape, classes, **(options or {}))
    if kind == "plain":
        model = freeze(model).requires_grad_()
    elif kind == "together":
        build_together(model)
    x, y = torch.randn(batch, *shape), torch.randint(classes, (batch,))

    def run():
        model.zero_grad()
        torch.nn.functional.cross_entropy(model.train()(x), y).backward()

    return run


def seconds_of_builds(shared: bool, channels: int, layers: int) -> float:
    """Builds and averages of gradients, in the slower of two processes with one thread each."""
    import tempfile

    import torch.multiprocessing as mp

    os.environ.update(KEEP_FREED_MEMORY)
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_build_in_process, args=(folder, shared, channels, layers), nprocs=2)
        times = [float(open(f"{folder}/{rank}").read()) for rank in range(2)]
    return max(times)


def _build_in_process(rank: int, folder: str, shared: bool, channels: int, layers: int) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from orthogonium import build_once
    from orthogonium.building import builds
    from orthogonium.layers import AdaptiveOrthoConv2d

    torch.set_num_threads(1)
    builds._FEWEST_IN_PARTS = 10**9  # ranks share whole weights: each builds all of these, too
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.ModuleList([AdaptiveOrthoConv2d(channels, channels, 3, bias=False) for _ in range(layers)])
    grads = [torch.randn(channels, channels, 3, 3) for _ in model]
    best = float("inf")
    for _ in range(8):  # the first ones touch new memory
        model.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        with build_once(model, dist.group.WORLD if shared else None):
            for layer, grad in zip(model, grads, strict=True):
                layer.weight.backward(grad)
        if not shared:  # what it does beside: the mean of all gradients
            works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
            for p, work in zip(model.parameters(), works, strict=True):
                work.wait()
                p.grad /= 2
        best = min(best, time.perf_counter() - start)
    with open(f"{folder}/{rank}", "w") as file:
        file.write(str(best))
    dist.destroy_process_group()


def _times(function: str, cases: dict[str, dict], rounds: int) -> dict[str, float]:
    contestants = {name: (False, f"{HERE}:{function}", arguments) for name, arguments in cases.items()}
    return {name: seconds for name, (seconds, _) in race(contestants, rounds).items()}


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def parts_table() -> None:
    cases = {
        f"{kind} {count} {once}": {"kind": kind, "count": count, "once": once}
        for kind, count, once in [
            ("plain", 1, False),
            ("plain", 4, False),
            ("ours", 1, False),
            ("ours", 4, False),
            ("ours", 4, True),
        ]
    }
    t = _times("parts", cases, 8)
    rows = []
    for name, one, four in [
        ("nn.Conv2d", "plain 1 False", "plain 4 False"),
        ("orthogonal", "ours 1 False", "ours 4 False"),
        ("orthogonal, build_once", "ours 1 False", "ours 4 True"),
    ]:
        rows.append([name, _ms(t[one]), _ms(t[four]), f"{t[four] / t[one]:.2f}"])
    table(["4 layers of 256 channels, 8×8", "1 × 32 images", "4 × 8 images", "ratio"], rows)


def builds_table() -> None:
    rows = []
    for channels in (16, 32, 64):
        cases = {str(b): {"channels": channels, "together": b} for b in (False, True)}
        t = _times("builds", cases, 8)
        rows.append([channels, _ms(t["False"]), _ms(t["True"]), f"{t['False'] / t['True']:.1f}×"])
    table(["32 3×3 kernels, channels", "one by one", "together", "faster by"], rows)


def recurrent_table() -> None:
    rows = []
    for batch in (32, 128):
        t = _times("recurrent", {kind: {"kind": kind, "batch": batch} for kind in ("plain", "always", "once")}, 8)
        rows.append([batch, *(_ms(t[k]) for k in ("plain", "always", "once")), f"{t['once'] / t['plain']:.2f}"])
    table(
        ["RNN, 200 steps of 128 units, batch", "nn.Linear", "OrthoLinear", "build_once", "build_once / nn.Linear"], rows
    )


def preset_table() -> None:
    t = _times("preset", {kind: {"kind": kind} for kind in ("plain", "ours", "together")}, 8)
    rows = [[kind, _ms(t[kind]), f"{t[kind] / t['plain']:.2f}"] for kind in t]
    table(["cifar10-cpu-30min, batch 128", "training step", "over plain"], rows)


def residual_table() -> None:
    kinds = ("plain", "ours")
    t = {b: _times("residual", {kind: {"kind": kind, "batch": b} for kind in kinds}, 6) for b in (1, 32)}
    rows = [[b, *(_ms(t[b][k]) for k in kinds), f"{t[b]['ours'] / t[b]['plain']:.2f}"] for b in t]
    table(["aocnet_v1, 224×224, batch", *kinds, "ours / plain"], rows)
    image = (t[32]["plain"] - t[1]["plain"]) / 31
    fixed = t[1]["ours"] - t[1]["plain"]
    print(f"What does not depend on the batch: {_ms(fixed)}, as much as {fixed / image:.1f} images of {_ms(image)}.")


def shares_table() -> None:
    starts = [{shared: seconds_of_builds(shared, 512, 8) for shared in (False, True)} for _ in range(HEATS)]
    t = {shared: fastest([start[shared] for start in starts]) for shared in (False, True)}
    row = ["8 3×3 kernels of 512 channels", _ms(t[False]), _ms(t[True]), f"{t[True] / t[False]:.2f}"]
    table(["2 processes of one thread", "each builds all", "shared", "ratio"], [row])


TABLES = {
    name.removesuffix("_table"): function for name, function in list(globals().items()) if name.endswith("_table")
}

if __name__ == "__main__":
    named = [name for name in sys.argv[1:] if name in TABLES]
    for name in named or TABLES:
        TABLES[name]()
