"""Time to build the kernels of AOL, adaptive SOC and Cayley, forward and backward, beside the published library.

Run with `.venv/bin/python -m benchmarks.methods_build`. Also shows the largest singular value that each kernel has on a
circular image. Cayley convolutions of the published library have no weight: theirs and ours are applied to an image.
"""

import importlib

from benchmarks.side_by_side import PEER_VERSION, beside, in_process, install, install_peer, is_quick, race, table

HERE = "benchmarks.methods_build"

# (name, module, class, options of ours, options of the peer); the peer's SOC has order 3 by default, ours 4.
CASES = [
    ("AOL, 1 step", "AOL", "AOLConv2D", {"niter": 1}, {"niter": 1}),
    ("AOL, 2 steps", "AOL", "AOLConv2D", {"niter": 2}, {"niter": 2}),
    ("SOC, order 3", "adaptiveSOC", "AdaptiveSOCConv2d", {"order": 3}, {}),
    ("SOC, order 4 against 3", "adaptiveSOC", "AdaptiveSOCConv2d", {}, {}),
]

WHY = {
    "AOL": "the same arithmetic, and a few percent from run to run",
    "SOC": "it has a term less where orders differ, and its σ is above 1",
    "Cay": "ours bounds its input and removes rounding by two more products",
}


def make(module: str, name: str, channels: int, options: dict):
    """A layer of either library, in whose process this runs."""
    return getattr(importlib.import_module(f"orthogonium.layers.conv.{module}"), name)(channels, channels, 3, **options)


def build(module: str, name: str, channels: int, options: dict):
    """The weight, forward and backward."""
    layer = make(module, name, channels, options)

    def run():
        weight = layer.weight
        (weight * weight.detach()).sum().backward()

    return run


def largest_singular_value(module: str, name: str, options: dict) -> float:
    import torch

    torch.manual_seed(0)
    weight = make(module, name, 8, options).weight.detach().double()
    symbol = torch.fft.fft2(weight, s=(32, 32)).permute(2, 3, 0, 1)
    return torch.linalg.svdvals(symbol).max().item()


def cayley(peer: bool, channels: int):
    """Forward and backward of a Cayley convolution on an image of 32×32, most of which is its kernel."""
    import torch

    layer = cayley_layer(peer, channels)
    x = torch.randn(1, channels, 32, 32)

    def run():
        layer.zero_grad()
        layer(x).square().sum().backward()

    return run


def cayley_layer(peer: bool, channels: int):
    module, name = ("legacy.cayley_ortho_conv", "Cayley") if peer else ("layers", "CayleyConv2d")
    return getattr(importlib.import_module(f"orthogonium.{module}"), name)(
        channels, channels, kernel_size=3, bias=False
    )


def largest_of_cayley(peer: bool) -> float:
    """The largest singular value, by the images of impulses."""
    import torch

    torch.manual_seed(0)
    impulses = torch.zeros(8, 8, 32, 32)
    impulses[range(8), range(8), 0, 0] = 1.0
    symbol = torch.fft.fft2(cayley_layer(peer, 8)(impulses).detach().double()).permute(2, 3, 1, 0)
    return torch.linalg.svdvals(symbol).max().item()


def compared(label: str, channels: int, function: str, arguments: dict, sigma: list[float]) -> list[object]:
    """A row: `arguments` are those of ours and of the peer, by whether it is the peer."""
    cases = {str(peer): (peer, f"{HERE}:{function}", given) for peer, given in arguments.items()}
    (ours, _), (theirs, _) = race(cases, rounds=3, threads=1).values()
    times = [f"{1e3 * t:.1f} ms" for t in (ours, theirs)]
    return [label, channels, *times, beside(ours, theirs, WHY[label[:3]]), *(f"{value:.6f}" for value in sigma)]


def main() -> None:
    install_peer()
    rows = []
    for label, module, name, *options in CASES:
        given = dict(zip((False, True), options, strict=True))
        sigma = [in_process(peer, f"{HERE}:largest_singular_value", module, name, given[peer]) for peer in given]
        for channels in (128,) if is_quick() else (128, 256):
            layer = {"module": module, "name": name, "channels": channels}
            arguments = {peer: {**layer, "options": given[peer]} for peer in given}
            rows.append(compared(label, channels, "build", arguments, sigma))
    if install("einops"):
        sigma = [in_process(peer, f"{HERE}:largest_of_cayley", peer) for peer in (False, True)]
        for channels in (32,) if is_quick() else (32, 64):
            arguments = {peer: {"peer": peer, "channels": channels} for peer in (False, True)}
            rows.append(compared("Cayley, an image of 32×32", channels, "cayley", arguments, sigma))
    ratio = [f"published {PEER_VERSION}", "ratio", "σ_max, ours", "σ_max, published"]
    table(["kernel, one thread", "channels", "ours", *ratio], rows)


if __name__ == "__main__":
    main()
