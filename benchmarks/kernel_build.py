"""Building the kernel of an orthogonal convolution, forward and backward, against the published library.

Run with `.venv/bin/python -m benchmarks.kernel_build`.
"""

from benchmarks.side_by_side import PEER_VERSION, beside, install_peer, is_quick, race, table


def build(channels: int):
    import torch

    from orthogonium.layers.conv.AOC import AdaptiveOrthoConv2d

    layer = AdaptiveOrthoConv2d(channels, channels, kernel_size=3)
    gradient = torch.randn(channels, channels, 3, 3)

    def run():
        layer.zero_grad()
        layer.weight.backward(gradient)

    return run


def products(channels: int):
    """50 products of square matrices: about the flops of a build, at the speed of bare matrix products."""
    import torch

    a = torch.randn(channels, channels)
    b = torch.randn(channels, channels)

    def run():
        for _ in range(50):
            torch.mm(a, b)

    return run


if __name__ == "__main__":
    install_peer()
    rows = []
    for channels in (64, 256) if is_quick() else (64, 128, 256, 512):
        arguments = {"channels": channels}
        cases = {
            "peer": (True, "benchmarks.kernel_build:build", arguments),
            "ours": (False, "benchmarks.kernel_build:build", arguments),
            "products": (False, "benchmarks.kernel_build:products", arguments),
        }
        times = {k: v[0] for k, v in race(cases, rounds=9).items()}
        rows.append(
            [
                f"{channels} → {channels}",
                f"{1e3 * times['peer']:.1f} ms",
                f"{1e3 * times['ours']:.1f} ms",
                beside(times["ours"], times["peer"], "small operators cost more than the arithmetic"),
                f"{times['ours'] / times['products']:.2f}",
            ]
        )
    table(["3×3", f"published {PEER_VERSION}", "ours", "faster by", "time / 50 products"], rows)
