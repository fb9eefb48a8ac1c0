"""A training step of one convolution beside those of other libraries, and the singular values it ends with.

Run with `.venv/bin/python -m benchmarks.peers`. deel-torchlip and the published library are installed into folders of
their own.
σ is that of the matrix of the layer on images of 12×12 pixels with 8 channels, after 20 training steps.
"""

from __future__ import annotations

import sys

from benchmarks.side_by_side import PEER_VERSION, PEERS, beside, in_process, install, is_quick, race, table

HERE = "benchmarks.peers"
PUBLISHED = f"orthogonium {PEER_VERSION}, AOC"
# name → what it is compared with, of the same kind
OURS = {"AOC": "orthogonal", "RKO": "a reshaped kernel", "spectral": "scaled as a whole"}
KINDS = {
    PUBLISHED: "AOC",
    "deel-torchlip, SpectralConv2d": "RKO",
    "deel-torchlip, FrobeniusConv2d": "spectral",
    "torch, spectral_norm": "spectral",
}
WHY = {
    PUBLISHED: "small operators cost more than the arithmetic",
    "deel-torchlip, SpectralConv2d": "by less than starts of one contestant differ",
    "deel-torchlip, FrobeniusConv2d": "it divides by the Frobenius norm: most singular values are far below 1",
    "torch, spectral_norm": "it takes a step of a power iteration on the reshaped kernel: σ is not bounded by 1",
}


def make(kind: str, channels: int):
    """A 3×3 convolution that keeps channels and pixels, with zero padding."""
    from torch import nn

    arguments = {"kernel_size": 3, "padding": 1, "padding_mode": "zeros", "bias": False}
    if kind.startswith("deel"):
        sys.path.insert(0, str(PEERS["deel"][1]))
        from deel import torchlip

        return getattr(torchlip, kind.partition(", ")[2])(channels, channels, **arguments)
    if kind == "torch, spectral_norm":
        return nn.utils.parametrizations.spectral_norm(nn.Conv2d(channels, channels, **arguments))
    if kind == "nn.Conv2d":
        return nn.Conv2d(channels, channels, **arguments)
    if kind in (PUBLISHED, "AOC"):
        from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

        return AdaptiveOrthoConv2d(channels, channels, **arguments)
    from orthogonium.layers import LipschitzConv2d

    return LipschitzConv2d(channels, channels, method=kind.lower(), **arguments)


def step(kind: str, channels: int, batch: int = 16, pixels: int = 32):
    """Forward and backward."""
    import torch

    layer = make(kind, channels).train()
    x = torch.randn(batch, channels, pixels, pixels)

    def run():
        layer.zero_grad()
        layer(x).square().sum().backward()

    return run


def spectrum(kind: str) -> tuple[float, float]:
    """Smallest and largest singular value after training."""
    import torch

    torch.manual_seed(0)
    layer = make(kind, 8).train()
    optimizer = torch.optim.SGD(layer.parameters(), 1.0)
    x, target = torch.randn(2, 8, 8, 12, 12)
    for _ in range(20):
        optimizer.zero_grad()
        (layer(x) - target).square().mean().backward()
        optimizer.step()
    layer.eval()
    with torch.no_grad():
        responses = layer(torch.eye(8 * 144).view(-1, 8, 12, 12)).flatten(1)
    sigma = torch.linalg.svdvals(responses.double())
    return sigma[-1].item(), sigma[0].item()


def main() -> None:
    there = {"orthogonium": install("orthogonium"), "deel": install("deel")}
    peers = [kind for kind in KINDS if kind == PUBLISHED and there["orthogonium"]]
    peers += [kind for kind in KINDS if kind.startswith("deel") and there["deel"]] + ["torch, spectral_norm"]
    kinds = ["nn.Conv2d", *OURS, *peers]
    sigma = {kind: in_process(kind == PUBLISHED, f"{HERE}:spectrum", kind) for kind in kinds}
    rows = []
    for channels in (64,) if is_quick() else (64, 256):
        cases = {kind: (kind == PUBLISHED, f"{HERE}:step", {"kind": kind, "channels": channels}) for kind in kinds}
        times = {kind: seconds for kind, (seconds, _) in race(cases, rounds=6).items()}
        for kind in kinds:
            own = KINDS.get(kind)
            ratio = "" if own is None else f"{own}: {beside(times[own], times[kind], WHY[kind])}"
            name = f"ours, {kind} ({OURS[kind]})" if kind in OURS else kind
            over = f"{times[kind] / times['nn.Conv2d']:.2f}"
            low, high = sigma[kind]
            rows.append([channels, name, f"{1e3 * times[kind]:.1f} ms", over, f"{low:.3f} to {high:.3f}", ratio])
    table(["channels", "3×3, 16 images of 32×32", "step", "over nn.Conv2d", "σ", "ours is faster by"], rows)


if __name__ == "__main__":
    main()
