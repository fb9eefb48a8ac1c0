"""The default orthogonalization against twelve Björck steps with power iteration of the published library.

Run with `.venv/bin/python -m benchmarks.orthogonalize`.
"""

from benchmarks.side_by_side import PEER_VERSION, beside, install_peer, is_quick, race, table


def make(peer: bool, size: int, batch: int = 4, preset: str = "DEFAULT_ORTHO_PARAMS"):
    """Forward and backward on Gaussian matrices; returns the largest deviation of a singular value from 1."""
    import torch

    from orthogonium import reparametrizers as r

    shape = (batch, size, size)
    if peer:
        stages = [r.BatchedPowerIteration(weight_shape=shape, power_it_niter=3)]
        stages.append(r.BatchedBjorckOrthogonalization(weight_shape=shape, niters=12))
    else:
        params = getattr(r, preset)
        stages = [params.spectral_normalizer(weight_shape=shape), params.orthogonalizer(weight_shape=shape)]
    module = torch.nn.Sequential(*stages)
    w = torch.nn.Parameter(torch.randn(shape))
    gradient = torch.randn(shape)

    def run():
        w.grad = None
        module(w).backward(gradient)

    def final():
        run()
        with torch.no_grad():
            return (torch.linalg.svdvals(module(w).double()) - 1).abs().max().item()

    run.deviation = final
    return run


def deviation(**arguments):
    return make(**arguments).deviation


if __name__ == "__main__":
    install_peer()
    presets = ["DEFAULT", "QR", "CAYLEY", "EXP", "POLAR", "BJORCK"]
    rows = []
    for size in (256,) if is_quick() else (256, 512):
        cases = {"peer": (True, "benchmarks.orthogonalize:make", {"peer": True, "size": size})}
        for name in presets:
            arguments = {"peer": False, "size": size, "preset": f"{name}_ORTHO_PARAMS"}
            cases[name] = (False, "benchmarks.orthogonalize:make", arguments)
        times = race(cases, rounds=3)
        errors = race({k: (p, "benchmarks.orthogonalize:deviation", a) for k, (p, _, a) in cases.items()}, rounds=1)
        for name in cases:
            label = f"published {PEER_VERSION}: Björck-12, power iteration" if name == "peer" else name
            why = "it takes more steps; the published ones end with some singular values near 0"
            ratio = "" if name == "peer" else beside(times[name][0], times["peer"][0], why)
            rows.append([f"4 × {size}²", label, f"{1e3 * times[name][0]:.1f} ms", ratio, f"{errors[name][1]:.0e}"])
    table(["matrices", "method", "forward + backward", "faster by", "max abs(σ − 1)"], rows)
