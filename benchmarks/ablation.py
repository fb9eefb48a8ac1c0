"""What each fast path gains: a whole network with all of them, against the same network without one.

Run with `.venv/bin/python -m benchmarks.ablation`. A path that gains less than 5% is not worth its lines.
"""

from unittest import mock

from benchmarks.network import evaluation, training
from benchmarks.side_by_side import race, table


def plainly(function, *inputs):
    """Instead of `evaluate`: operators that torch differentiates."""
    return function.plain(*inputs)


def without(path: str | None, job: str, **arguments):
    """The job, with one path switched off during each of its calls."""
    import torch

    switches = {
        "in turn": ("orthogonium.layers.conv.execution.FEWEST_CHANNELS", 10**9),
        "memcmp": ("orthogonium.layers.parametrization._same_values", torch.equal),
        "wrap": ("orthogonium.layers.conv.padding._recorded", lambda x: False),
        "gram schmidt": ("orthogonium.linalg.triangular.evaluate", plainly),
        "gram": ("orthogonium.kernels.fourier.evaluate", plainly),
    }
    run = {"training": training, "evaluation": evaluation}[job](**arguments)
    if path is None:
        return run

    def switched():
        with mock.patch(*switches[path]):
            run()

    return switched


ROWS = [  # what it is, switch, job, kind of network, padding, batch
    ("factors applied in turn", "in turn", "training", "ours", "zeros", 16),
    ("`memcmp` instead of `torch.equal` for stale weights", "memcmp", "evaluation", "ours", "zeros", 1),
    ("derivative of circular padding by hand", "wrap", "training", "ours", "circular", 16),
    ("derivative of Gram–Schmidt by hand", "gram schmidt", "training", "ours", "zeros", 16),
    ("derivative of Gram kernels by hand (AOL)", "gram", "training", "aol", "zeros", 16),
]

if __name__ == "__main__":
    rows = []
    for name, path, job, kind, mode, batch in ROWS:
        arguments = {"job": job, "kind": kind, "mode": mode, "batch": batch}
        cases = {
            who: (False, "benchmarks.ablation:without", {"path": switch, **arguments})
            for who, switch in (("with", None), ("without", path))
        }
        times = {k: v[0] for k, v in race(cases, rounds=12).items()}
        gain = f"{times['without'] / times['with'] - 1:+.0%}"
        rows.append([name, job, batch, mode, *(f"{1e3 * times[k]:.0f} ms" for k in ("with", "without")), gain])
    table(["", "", "batch", "padding", "with", "without", "time without it"], rows)
