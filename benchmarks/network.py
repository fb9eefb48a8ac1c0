"""A training step, evaluation and memory of an 8-layer VGG, against the same network of `nn.Conv2d`.

Run with `.venv/bin/python -m benchmarks.network`.
"""

from benchmarks.side_by_side import is_quick, peak_memory, race, table

WIDTHS = [(64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)]


def network(kind: str, mode: str):
    from torch import nn

    from orthogonium.layers import AdaptiveOrthoConv2d, AOLConv2d

    make = {"plain": nn.Conv2d, "ours": AdaptiveOrthoConv2d, "aol": AOLConv2d}[kind]
    layers, channels = [], 3
    for width, stride in WIDTHS:
        layers += [make(channels, width, 3, stride=stride, padding=1, padding_mode=mode), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def training(kind: str, mode: str, batch: int):
    import torch

    model = network(kind, mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(batch, 3, 64, 64), torch.randint(10, (batch,))

    def run():
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return run


def memory(kind: str, mode: str, batch: int):
    """Most bytes that tensors hold at once, from the making of the network to the end of its third step."""

    def three_steps():
        step = training(kind, mode, batch)
        for _ in range(3):
            step()

    peak = peak_memory(three_steps)
    return lambda: peak / 2**20


def evaluation(kind: str, mode: str, batch: int):
    import torch

    model = network(kind, mode).eval()
    x = torch.randn(batch, 3, 64, 64)

    def run():
        with torch.no_grad():
            model(x)

    return run


def compare(job: str, mode: str, batch: int, rounds: int):
    arguments = {"mode": mode, "batch": batch}
    cases = {k: (False, f"benchmarks.network:{job}", {"kind": k, **arguments}) for k in ("plain", "ours")}
    if job == "memory":  # in processes of their own: one's garbage is not to be counted as the other's
        return {k: race({k: case}, rounds)[k] for k, case in cases.items()}
    return race(cases, rounds)


if __name__ == "__main__":
    rows = []
    cases = [("training", 16, 6), ("training", 64, 3)]
    cases += [("evaluation", 1, 9), ("evaluation", 16, 9), ("evaluation", 64, 6)]
    for job, batch, rounds in [cases[0], cases[2]] if is_quick() else cases:
        for mode in ("zeros",) if is_quick() else ("circular", "zeros"):
            result = compare(job, mode, batch, rounds)
            plain, ours = result["plain"][0], result["ours"][0]
            row = [job, batch, mode, f"{1e3 * plain:.0f} ms", f"{1e3 * ours:.0f} ms", f"{ours / plain:.3f}"]
            if job == "training" and batch == 16:
                peak = {k: v[1] for k, v in compare("memory", mode, batch, 1).items()}
                row.append(f"{peak['plain']:.0f} → {peak['ours']:.0f} MB ({peak['ours'] / peak['plain'] - 1:+.1%})")
            rows.append(row)
    table(
        ["", "batch", "padding", "nn.Conv2d", "orthogonal", "ratio", "peak memory"],
        [r + [""] * (7 - len(r)) for r in rows],
    )
