"""Operators, launches, flops and bytes of a training step, for each layer kind and for whole models.

On an accelerator each launch of a kernel costs 5 µs or more, whatever it computes, so that these numbers say what to
expect of one without having it. Run with `.venv/bin/python -m benchmarks.launches`.
"""

import math
from collections import Counter

from benchmarks.side_by_side import PEER_VERSION, in_process, install_peer, named, table

CHANNELS = 64  # of single layers
# Operators that launch nothing: they only describe memory that is there, or read a shape.
_VIEWS = (
    "view",
    "alias",
    "detach",
    "expand",
    "permute",
    "transpose",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "split",
)
_VIEWS += ("unbind", "as_strided", "t.", "diagonal", "unfold", "narrow", "lift", "empty", "_local_scalar")


def counts(contestant: str, arguments: dict) -> dict[str, float]:
    """Of one call of a contestant, after one that is not counted."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_flatten
    from torch.utils.flop_counter import FlopCounterMode

    class Count(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.total = Counter()

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            name = function.__name__
            self.total["dispatches"] += 1
            if not name.removeprefix("_").startswith(_VIEWS):
                self.total["launches"] += 1
                tensors = [t for t in tree_flatten((args, kwargs, result))[0] if isinstance(t, torch.Tensor)]
                self.total["bytes"] += sum(t.numel() * t.element_size() for t in tensors)
                self.total["flops"] += _solve_flops(name, tensors)
            return result

    torch.manual_seed(0)
    job = named(contestant)(**arguments)
    job()
    count, flops = Count(), FlopCounterMode(display=False)
    with flops, count:
        job()
    return {**count.total, "flops": count.total["flops"] + flops.get_total_flops()}


def _solve_flops(name: str, tensors: list) -> float:
    """Of factorizations and triangular solves, which torch's counter leaves out."""
    if "cholesky" in name:
        return math.prod(tensors[0].shape) * tensors[0].shape[-1] / 3
    if "triangular" in name:
        side, right = sorted(tensors[:2], key=lambda t: t.numel())
        return math.prod(right.shape) * side.shape[-1]
    return 0.0


def _pass_as_on_accelerators() -> None:
    """A processor looks at how many passes a matrix needs; accelerators take three. They take the weight as a whole.

    Products by oneDNN, which torch's counter of flops does not know, are for processors, too. Each count has its own
    process.
    """
    from orthogonium.layers.conv import execution
    from orthogonium.linalg import multiply, triangular

    multiply._HALF_IDLE = False
    triangular.may_look = lambda x: False
    execution.FEWEST_ALONG_AXES = 10**9


def layer(kind: str, channels: int, peer: bool):
    """Building the weight of a layer, forward and backward."""
    import torch

    from orthogonium.layers import OrthoLinear
    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

    if not peer:
        _pass_as_on_accelerators()
    if kind == "dense":
        built = OrthoLinear(channels, channels, bias=False)
    else:
        stride = 2 if kind == "strided" else 1
        built = AdaptiveOrthoConv2d(channels, channels * stride, kernel_size=3, stride=stride, padding=1, bias=False)
    gradient = torch.randn(built.weight.shape)

    def run():
        built.zero_grad()
        built.weight.backward(gradient)

    return run


def network(depth: int, channels: int, way: str):
    """A training step of a network of equal 3×3 layers, on one image."""
    import torch
    from torch import nn

    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

    if way in ("ours", "together"):
        _pass_as_on_accelerators()
    make = nn.Conv2d if way == "plain" else AdaptiveOrthoConv2d
    model = nn.Sequential(*[make(channels, channels, 3, padding=1, padding_mode="zeros") for _ in range(depth)])
    x = torch.randn(1, channels, 32, 32)
    if way == "together":
        from orthogonium import build_together

        build_together(model)

    def run():
        model.zero_grad()
        model(x).sum().backward()

    return run


def _row(name: str, counted: dict, cube: int) -> list[object]:
    flops = f"{counted['flops'] / cube:.0f} c³" if cube else f"{counted['flops'] / 1e9:.2f} G"
    return [name, counted["dispatches"], counted["launches"], flops, f"{counted['bytes'] / 2**20:.1f} MB"]


if __name__ == "__main__":
    install_peer()
    rows = []
    for kind in ("3×3", "strided", "dense"):
        for peer, who in ((True, f"published {PEER_VERSION}"), (False, "ours")):
            arguments = {"kind": kind, "channels": CHANNELS, "peer": peer}
            found = in_process(peer, "benchmarks.launches:counts", "benchmarks.launches:layer", arguments)
            rows.append(_row(f"{kind}, {who}", found, CHANNELS**3))
    for way, peer in (("plain", False), ("published", True), ("ours", False), ("together", False)):
        found = in_process(
            peer, "benchmarks.launches:counts", "benchmarks.launches:network", {"depth": 16, "channels": 64, "way": way}
        )
        rows.append(_row(f"16 layers of 64 channels, {way}", found, 0))
    table(["forward + backward", "dispatches", "launches", "flops", "bytes read and written"], rows)
