"""Orthogonalizing matrices: our presets beside the published library, torch's `orthogonal` and geotorch.

Run with `.venv/bin/python -m benchmarks.orthogonalize`. The published library takes twelve Björck steps after power
iteration, on batches. The maps of the others are those of dense layers, each compared with ours of its kind: torch's
Cayley transform of batches fails on CPUs (its LU factorization does, with several threads).
"""

import importlib
import sys

from benchmarks.side_by_side import PEER_VERSION, PEERS, beside, install, install_peer, is_quick, race, table

HERE = "benchmarks.orthogonalize"
PRESETS = ["DEFAULT", "QR", "CAYLEY", "EXP", "POLAR", "BJORCK"]
MAPS = {  # of other libraries → ours of its kind
    "torch, cayley": "CAYLEY",
    "torch, matrix_exp": "EXP",
    "torch, householder": "DEFAULT",
    "geotorch, cayley": "CAYLEY",
    "geotorch, expm": "EXP",
}
WHY = {
    "CAYLEY": "ours bounds its input and removes rounding by two more products",
    "EXP": "ours takes all squarings, whatever the norm",
    "DEFAULT": "small operators cost more than the arithmetic",
}


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
    return jobs(w, lambda: module(w))


def make_layer(kind: str, size: int):
    """The same for the weight of a dense layer, as it is initialized: of ours, if `kind` is a preset."""
    import torch

    if kind in PRESETS:
        from orthogonium import layers
        from orthogonium import reparametrizers as r

        layer = layers.OrthoLinear(size, size, bias=False, ortho_params=getattr(r, f"{kind}_ORTHO_PARAMS"))
    else:
        layer = torch.nn.Linear(size, size, bias=False)
        library, _, choice = kind.partition(", ")
        if library == "torch":
            options = {"orthogonal_map": choice, "use_trivialization": False}
            torch.nn.utils.parametrizations.orthogonal(layer, **options)
        else:
            sys.path.insert(0, str(PEERS["geotorch"][1]))
            importlib.import_module("geotorch").orthogonal(layer, "weight", triv=choice)
    (w,) = layer.parameters()
    return jobs(w, lambda: layer.weight)


def jobs(w, orthogonalized):
    """The function to time, and as its attribute one that returns the largest deviation of a singular value from 1."""
    import torch

    gradient = torch.randn(w.shape)

    def run():
        w.grad = None
        orthogonalized().backward(gradient)

    def final():
        run()
        with torch.no_grad():
            return (torch.linalg.svdvals(orthogonalized().double()) - 1).abs().max().item()

    run.deviation = final
    return run


def deviation(**arguments):
    return (make_layer if "kind" in arguments else make)(**arguments).deviation


def measured(cases: dict[str, tuple[bool, str, dict]]) -> tuple[dict[str, float], dict[str, object]]:
    """Seconds, and deviations of singular values."""
    times = {name: seconds for name, (seconds, _) in race(cases, rounds=3).items()}
    found = race({k: (peer, f"{HERE}:deviation", a) for k, (peer, _, a) in cases.items()}, rounds=1)
    return times, {name: result for name, (_, result) in found.items()}


def batches(size: int) -> list[list[object]]:
    """Rows of our presets, compared with the published library."""
    published = f"published {PEER_VERSION}: Björck-12, power iteration"
    cases = {published: (True, f"{HERE}:make", {"peer": True, "size": size})}
    for name in PRESETS:
        cases[name] = (False, f"{HERE}:make", {"peer": False, "size": size, "preset": f"{name}_ORTHO_PARAMS"})
    times, errors = measured(cases)
    why = "it takes more steps; the published ones end with some singular values near 0"
    ratios = {name: beside(times[name], times[published], why) for name in PRESETS}
    return [
        [f"4 × {size}²", name, f"{1e3 * t:.1f} ms", ratios.get(name, ""), f"{errors[name]:.0e}"]
        for name, t in times.items()
    ]


def dense_layers(size: int, maps: list[str]) -> list[list[object]]:
    """Rows of the maps of others, compared with ours of their kind."""
    kinds = [*dict.fromkeys(MAPS.values()), *maps]
    times, errors = measured({kind: (False, f"{HERE}:make_layer", {"kind": kind, "size": size}) for kind in kinds})
    ratios = {kind: f"{MAPS[kind]}: {beside(times[MAPS[kind]], times[kind], WHY[MAPS[kind]])}" for kind in maps}
    return [
        [f"{size}²", kind, f"{1e3 * t:.1f} ms", ratios.get(kind, ""), f"{errors[kind]:.0e}"]
        for kind, t in times.items()
    ]


if __name__ == "__main__":
    install_peer()
    has_geotorch = install("geotorch")
    maps = [kind for kind in MAPS if has_geotorch or kind.startswith("torch")]
    rows = [row for size in ((256,) if is_quick() else (256, 512)) for row in batches(size)]
    rows += [row for size in ((256,) if is_quick() else (64, 256, 512)) for row in dense_layers(size, maps)]
    table(["matrices", "method", "forward + backward", "faster by", "max abs(σ − 1)"], rows)
