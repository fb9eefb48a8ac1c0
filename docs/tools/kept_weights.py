"""The table of docs/converting.md: what becomes of trained weights that `convert` keeps, on scikit-learn's digits.

Trains plain networks of 16 channels, converts them, and trains the results: a few minutes.
"""

import torch
from torch import nn

import orthogonium
from orthogonium.data import load_dataset


def plain(convolutions: int) -> nn.Module:
    """3×3 convolutions of 16 channels with batch normalization; two of them stride."""
    layers: list[nn.Module] = []
    for index in range(convolutions):
        stride = 2 if index in (0, convolutions // 2) else 1
        layers += [nn.Conv2d(16 if index else 1, 16, 3, stride, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10))


def train(model: nn.Module, factor: float, lr: float, steps: int = 100) -> nn.Module:
    """Adam on the cross-entropy of logits times `factor`."""
    torch.manual_seed(1)
    digits = load_dataset("digits").train
    optimizer = torch.optim.Adam(model.parameters(), lr)
    model.train()
    for _ in range(steps):
        chosen = torch.randint(len(digits.labels), (128,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(digits.pixels[chosen]) * factor, digits.labels[chosen]).backward()
        optimizer.step()
    return model.eval()


def outputs(model: nn.Module) -> tuple[float, float]:
    """The spread of logits around the mean of each sample, and the accuracy, on all test images."""
    test = load_dataset("digits").test
    with torch.no_grad():
        logits = model(test.pixels)
    right = (logits.argmax(1) == test.labels).float().mean().item()
    return (logits - logits.mean(1, keepdim=True)).std().item(), right


def certified(model: nn.Module) -> str:
    """Accuracy and median certified radius, which is 0 where the prediction is wrong."""
    test = load_dataset("digits").test
    found = orthogonium.certify(model, [(test.pixels, test.labels)])
    return f"{found.accuracy:.1%}, {found.radii.clamp_min(0).median().item():.2g}"


def main() -> None:
    """A row for each depth and each way to start."""
    print("| convolutions | weights | spread of logits | at first | logits × 10, lr 1e-2 | logits / spread, lr 1e-3 |")
    print("|---|---|---|---|---|---|")
    for convolutions in (2, 6, 10):
        torch.manual_seed(0)
        network = train(plain(convolutions), 1.0, 3e-3, steps=300)
        spread, accuracy = outputs(network)
        print(f"| {convolutions} | plain | {spread:.2g} | {accuracy:.1%} | | |", flush=True)
        for method, weights in (("aoc", "new"), ("spectral", "keep"), ("aol", "keep"), ("aoc", "keep")):

            def start(method: str = method, weights: str = weights, network: nn.Module = network) -> nn.Module:
                torch.manual_seed(0)
                return orthogonium.convert(network, (1, 8, 8), method, weights=weights).model.eval()  # type: ignore[arg-type]

            spread, _ = outputs(start())
            ends = [certified(train(start(), *how)) for how in ((10.0, 1e-2), (1 / spread, 1e-3))]
            row = [str(convolutions), f"{weights}, `{method}`", f"{spread:.2g}", certified(start()), *ends]
            print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
