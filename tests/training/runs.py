"""Small runs that the tests of this folder share, in this process and in others."""

import sys
from pathlib import Path

import torch
from torch import nn

from orthogonium.layers import BatchCentering, MaxMin, OrthoLinear
from orthogonium.training import Recipe, fit

RECIPE = Recipe(
    epochs=3,
    batch_size=128,
    augment="shift",
    lr=1e-2,
    ema=0.9,
    clip_norm=1.0,
    weight_decay=1e-3,
    accumulate=2,
    eps=(0.25, 0.5),
)


class Noise(nn.Module):
    """Draws from the global generator in training: a resumed run must continue its numbers."""

    def forward(self, x):
        return x + 0.01 * torch.randn_like(x) if self.training else x


def small_network(width=32):
    return nn.Sequential(
        Noise(), nn.Flatten(), OrthoLinear(64, width), BatchCentering(width), MaxMin(), OrthoLinear(width, 10)
    )


def train(folder, recipe=RECIPE, **options):
    """A run of the small network on one thread; its weights depend on nothing but the recipe."""
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    options = {"model": small_network(), "progress": False, "accelerator": "cpu", **options}
    return fit(recipe, folder, **options)


def weights(path):
    """All tensors of a checkpoint that training continues from, by name."""
    found = {}

    def collect(prefix, value):
        if isinstance(value, torch.Tensor):
            found[prefix] = value
        elif isinstance(value, dict):
            for key, inner in value.items():
                collect(f"{prefix}/{key}", inner)
        elif isinstance(value, list):
            for key, inner in enumerate(value):
                collect(f"{prefix}/{key}", inner)

    collect("", torch.load(path, weights_only=True))
    return found


def assert_same_bits(path, other):
    ours, theirs = weights(path), weights(other)
    assert ours.keys() == theirs.keys() and len(ours) > 20
    for name, value in ours.items():
        assert torch.equal(value, theirs[name]), name


if __name__ == "__main__":  # python -m tests.training.runs FOLDER: started, killed and started again by tests
    train(Path(sys.argv[1]), resume="auto", checkpoint_steps=2)
