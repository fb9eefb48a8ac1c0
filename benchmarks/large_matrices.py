"""Large and tall orthogonal matrices, forward and backward, against torch's own parametrization and geotorch.

Run with `.venv/bin/python -m benchmarks.large_matrices`. geotorch is installed into `.geotorch` for this alone.
"""

import importlib
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.side_by_side import chosen_device, in_process, table, timed

SIZES = [(2048, 2048), (4096, 4096), (30000, 50), (50, 30000)]
GEOTORCH = Path(__file__).parents[1] / ".geotorch"


def install_geotorch() -> None:
    if not GEOTORCH.exists():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(GEOTORCH)]
        subprocess.run([*command, "geotorch"], check=True)


def cost(kind: str, rows: int, columns: int, calls: int, device: str) -> tuple[float, float]:
    """Seconds of the fastest call, and the most memory of the process beyond what it took to make the layer, in MB."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "OrthoLinear":
        from orthogonium.layers import OrthoLinear

        layer: nn.Module = OrthoLinear(columns, rows, bias=False)
    elif kind == "torch":
        layer = nn.utils.parametrizations.orthogonal(nn.Linear(columns, rows, bias=False))
    else:
        sys.path.insert(0, str(GEOTORCH))
        layer = nn.Linear(columns, rows, bias=False)
        importlib.import_module("geotorch").orthogonal(layer, "weight")
    gradient = torch.randn(rows, columns)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    best = float("inf")
    for _ in range(calls):
        layer.zero_grad()
        best = min(best, timed(lambda: layer.weight.backward(gradient), device)[0])
    return best, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    install_geotorch()
    rows = []
    for size in SIZES:
        for kind in ("OrthoLinear", "torch", "geotorch"):
            seconds, memory = in_process(False, "benchmarks.large_matrices:cost", kind, *size, 3, chosen_device())
            rows.append([f"{size[0]} × {size[1]}", kind, f"{seconds:.3f} s", f"{memory:.0f} MB"])
    table(["matrix", "", "forward + backward", "memory"], rows)
