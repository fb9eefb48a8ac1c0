"""`python docs/tools/figures.py` draws the figures of the site into `docs/figures`: half a minute.

Transparent, in colours that are readable on white and on black.
"""

from pathlib import Path

import matplotlib
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from torch import nn

import orthogonium
from orthogonium.attacks import empirical_accuracy
from orthogonium.data import load_dataset, unit_pixels
from orthogonium.layers import AdaptiveOrthoConv2d, AOLConv2d
from orthogonium.models import create_model
from orthogonium.spectral import operator_singular_values

FOLDER = Path(__file__).parents[1] / "figures"
GREY, BLUE, ORANGE, GREEN = "#8a8a8a", "#3b8fd6", "#d9822b", "#3f9c5a"


def plot(ylabel: str, xlabel: str) -> tuple[plt.Figure, Axes]:
    """An empty figure."""
    figure, axes = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
    axes.set(xlabel=xlabel, ylabel=ylabel)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def save(figure: plt.Figure, name: str) -> None:
    """As SVG, with nothing in it that changes from run to run."""
    figure.axes[0].legend(frameon=False)
    figure.savefig(FOLDER / f"{name}.svg", transparent=True, metadata={"Date": None})
    plt.close(figure)


def train(layer: nn.Module) -> nn.Module:
    """Fifty steps on noise, which move every weight."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(50):
        x = torch.randn(16, 8, 8, 8)
        optimizer.zero_grad()
        (layer(x) - x.roll(1, 3).tanh()).square().mean().backward()
        optimizer.step()
    return layer.eval()


def sorted_spectrum(layer: nn.Module, size: int = 8) -> torch.Tensor:
    """Singular values of the layer as it is applied to images of 8 channels, falling."""
    return operator_singular_values(layer, (8, size, size)).detach().double().sort(descending=True).values


def orthogonality() -> None:
    """Singular values of three convolutions after training."""
    torch.manual_seed(0)
    figure, axes = plot("singular value", "index of the singular value")
    plain = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular", bias=False)
    layers = [
        (plain, "nn.Conv2d", ORANGE),
        (AOLConv2d(8, 8, 3, padding="same", padding_mode="circular", bias=False), "AOL: at most 1", GREEN),
    ]
    layers += [(AdaptiveOrthoConv2d(8, 8, 3, bias=False), "AOC: all 1", BLUE)]
    for layer, label, colour in layers:
        axes.plot(sorted_spectrum(layer), "--", color=colour, lw=1)
        axes.plot(sorted_spectrum(train(layer)), color=colour, label=label)
    save(figure, "orthogonality")


def padding() -> None:
    """The same kernel under both paddings."""
    torch.manual_seed(0)
    figure, axes = plot("singular value", "index of the singular value")
    layer = AdaptiveOrthoConv2d(8, 8, 3, bias=False).eval()
    zeros = AdaptiveOrthoConv2d(8, 8, 3, bias=False, padding_mode="zeros").eval()
    zeros.load_state_dict(layer.state_dict())
    axes.plot(sorted_spectrum(layer), color=BLUE, label="circular: all 1")
    axes.plot(sorted_spectrum(zeros), color=ORANGE, label="zeros: at most 1")
    axes.set_ylim(0, 1.1)
    save(figure, "padding")


def strides() -> None:
    """Torch's circular padding with a stride that does not divide the image, against our tiling."""
    torch.manual_seed(0)
    figure, axes = plot("singular value", "index of the singular value")
    layer = AdaptiveOrthoConv2d(8, 16, 3, stride=2, bias=False).eval()
    naive = nn.Conv2d(8, 16, 3, stride=2, padding=1, padding_mode="circular", bias=False)
    naive.load_state_dict({"weight": layer.weight.detach()})
    axes.plot(sorted_spectrum(layer, 7), color=BLUE, label="our layer on 7×7: at most 1")
    axes.plot(sorted_spectrum(naive, 7), color=ORANGE, label="its kernel in nn.Conv2d on 7×7")
    axes.set_ylim(0, 1.8)
    save(figure, "strides")


def certificate() -> None:
    """What is proved, and what an attack leaves: the truth lies in between."""
    torch.manual_seed(0)
    model, test = create_model("aocnet_tiny_digits", pretrained=True), load_dataset("digits").test
    images, labels = unit_pixels(test.pixels), test.labels
    radii = [i / 20 for i in range(31)]
    proved = orthogonium.certify(model, [(images, labels)], eps=radii)
    some = radii[5::5]
    left = empirical_accuracy(model, images, labels, some)
    figure, axes = plot("accuracy", "radius (l2, pixels in [0, 1])")
    axes.plot(radii, proved.certified_accuracy, color=BLUE, label="proved")
    axes.plot(some, left.accuracy, "o-", color=ORANGE, label="left by an attack")
    axes.set_ylim(0, 1.02)
    save(figure, "certificate")


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    plain_text = {"text.color": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY}
    matplotlib.rcParams.update({**plain_text, "axes.edgecolor": GREY, "svg.hashsalt": "orthogonium", "font.size": 10})
    for draw in (orthogonality, padding, strides, certificate):
        draw()
