"""Large and tall orthogonal matrices, forward and backward, against torch's own parametrization and geotorch.

Both as they are called by default and by the fastest of their maps for the shape. Run with
`.venv/bin/python -m benchmarks.large_matrices`. geotorch is installed into `.geotorch` for this alone.
"""

import importlib
import sys

from benchmarks.side_by_side import (
    PEERS,
    beside,
    chosen_device,
    fastest,
    in_process,
    install,
    peak_memory,
    table,
    timed,
)

SIZES = [(2048, 2048), (4096, 4096), (30000, 50), (50, 30000)]
CALLS = 2
LIMIT, LIMIT_OF_SUITED = 6.0, 20.0  # seconds to make the layer, count its memory and call it twice
OURS = "OrthoLinear"
WHY = "a Cayley transform takes about as many flops, more of them in the factorization of one matrix"


def contestants(rows: int, columns: int, geotorch: bool) -> list[str]:
    """Ours first, then the peers by default and with the map that suits the shape."""
    fastest = "cayley" if rows == columns else "householder"
    others = ["geotorch", "geotorch, cayley"] if geotorch else []
    return [OURS, "torch", f"torch, {fastest}", *others]


def cost(kind: str, rows: int, columns: int, device: str) -> tuple[list[float], float]:
    """Seconds of some calls, and the most memory that the tensors of a call hold at once, in MB."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    library, _, choice = kind.partition(", ")
    if kind == OURS:
        from orthogonium.layers import OrthoLinear

        layer: nn.Module = OrthoLinear(columns, rows, bias=False)
    elif library == "torch":
        options = {"orthogonal_map": choice, "use_trivialization": False} if choice else {}
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(columns, rows, bias=False), **options)
    else:
        sys.path.insert(0, str(PEERS["geotorch"][1]))
        layer = nn.Linear(columns, rows, bias=False)
        importlib.import_module("geotorch").orthogonal(layer, "weight", triv=choice or "expm")
    gradient = torch.randn(rows, columns)

    def call() -> None:
        layer.zero_grad()
        layer.weight.backward(gradient)

    memory = peak_memory(call) / 2**20  # the first call, which is not timed
    return [timed(call, device)[0] for _ in range(CALLS)], memory


if __name__ == "__main__":
    has_geotorch = install("geotorch")
    rows = []
    for size in SIZES:
        ours = float("nan")
        for kind in contestants(*size, has_geotorch):
            suited = kind.endswith("cayley") and size[0] == size[1]
            limit = None if kind == OURS else LIMIT_OF_SUITED if suited else LIMIT
            found = in_process(False, "benchmarks.large_matrices:cost", kind, *size, chosen_device(), limit=limit)
            if found is None:
                rows.append([f"{size[0]} × {size[1]}", kind, f"stopped after {limit:.0f} s", "", ""])
                continue
            calls, memory = found
            seconds = fastest(calls)
            ours = seconds if kind == OURS else ours
            ratio = "" if kind == OURS else beside(ours, seconds, WHY)
            rows.append([f"{size[0]} × {size[1]}", kind, f"{seconds:.3f} s", ratio, f"{memory:.0f} MB"])
    table(["matrix", "", "forward + backward", "ours is faster by", "memory"], rows, f"{CALLS} calls")
