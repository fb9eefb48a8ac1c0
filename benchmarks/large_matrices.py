"""Large and tall orthogonal matrices, forward and backward, against torch's own parametrization and geotorch.

Run with `.venv/bin/python -m benchmarks.large_matrices`. geotorch is installed into `.geotorch` for this alone.
"""

import importlib
import resource
import sys

from benchmarks.side_by_side import PEERS, beside, chosen_device, in_process, install, table, timed

SIZES = [(2048, 2048), (4096, 4096), (30000, 50), (50, 30000)]
CALLS = 2
LIMIT = 20.0  # seconds for the layer and its calls: torch's matrix exponential of 4096² would take minutes
OURS = "OrthoLinear"
WHY = "the reason has not been looked for"


def cost(kind: str, rows: int, columns: int, device: str) -> tuple[float, float]:
    """Seconds of the fastest call, and the most memory of the process beyond what it took to make the layer, in MB."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == OURS:
        from orthogonium.layers import OrthoLinear

        layer: nn.Module = OrthoLinear(columns, rows, bias=False)
    elif kind == "torch":
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(columns, rows, bias=False))
    else:
        sys.path.insert(0, str(PEERS["geotorch"][1]))
        layer = nn.Linear(columns, rows, bias=False)
        importlib.import_module("geotorch").orthogonal(layer, "weight")
    gradient = torch.randn(rows, columns)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = float("inf")
    for _ in range(CALLS):
        layer.zero_grad()
        best = min(best, timed(lambda: layer.weight.backward(gradient), device)[0])
    return best, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    kinds = [OURS, "torch", *(["geotorch"] if install("geotorch") else [])]
    rows = []
    for size in SIZES:
        ours = float("nan")
        for kind in kinds:
            limit = None if kind == OURS else LIMIT
            found = in_process(False, "benchmarks.large_matrices:cost", kind, *size, chosen_device(), limit=limit)
            if found is None:
                rows.append([f"{size[0]} × {size[1]}", kind, f"over {LIMIT:.0f} s, stopped", "", ""])
                continue
            seconds, memory = found
            ours = seconds if kind == OURS else ours
            ratio = "" if kind == OURS else beside(ours, seconds, WHY)
            rows.append([f"{size[0]} × {size[1]}", kind, f"{seconds:.3f} s", ratio, f"{memory:.0f} MB"])
    table(["matrix", "", "forward + backward", "ours is faster by", "memory"], rows)
