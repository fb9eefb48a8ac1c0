"""Evaluation of single wide layers on small images, whose weight is laid out for the processor once, against `nn.Conv2d`.

Run with `.venv/bin/python -m benchmarks.wide_layers`.
"""

from benchmarks.side_by_side import race, table


def evaluation(kind: str, channels: int, size: int, batch: int):
    import torch

    from orthogonium.layers import AdaptiveOrthoConv2d

    make = {"ours": AdaptiveOrthoConv2d, "plain": torch.nn.Conv2d}[kind]
    layer = make(channels, channels, 3, padding=1, padding_mode="zeros").eval()
    x = torch.randn(batch, channels, size, size)

    def run():
        with torch.no_grad():
            layer(x)

    return run


if __name__ == "__main__":
    rows = []
    for channels, size in [(256, 4), (256, 8), (512, 4), (512, 8), (1024, 4), (1024, 8)]:
        row: list[object] = [f"{channels} → {channels}", f"{size}×{size}"]
        for batch in (1, 16):
            arguments = {"channels": channels, "size": size, "batch": batch}
            cases = {
                k: (False, "benchmarks.wide_layers:evaluation", {"kind": k, **arguments}) for k in ("plain", "ours")
            }
            times = {k: v[0] for k, v in race(cases, rounds=16).items()}
            row.append(
                f"{1e3 * times['plain']:.2f} → {1e3 * times['ours']:.2f} ms ({times['plain'] / times['ours']:.2f}×)"
            )
        rows.append(row)
    table(["3×3", "images", "batch 1", "batch 16"], rows)
