"""Recipes worth starting from."""

from __future__ import annotations

from orthogonium.training.recipe import Recipe

PRESETS: dict[str, Recipe] = {
    # scikit-learn's digits, 8×8 pixels: under a minute on two cores
    "digits": Recipe(
        model="aocnet_tiny",
        data="digits",
        augment="shift",
        loss="offset-cross-entropy",
        loss_options={"offset": 1.0, "temperature": 0.25},
        optimizer="adam",
        lr=1e-2,
        schedule="one-cycle",
        warmup=0.2,
        epochs=60,
        max_minutes=0.7,
        batch_size=128,
        ema=0.99,
        radii=(0.25, 0.5, 1.0),
        validate_every=5,
    ),
    # CIFAR-10 on two cores of a CPU
    "cifar10-cpu-30min": Recipe(
        model="aocnet_tiny",
        data="cifar10",
        augment="crop-flip",
        loss="offset-cross-entropy",
        loss_options={"offset": 1.0, "temperature": 0.25},
        optimizer="adam",
        lr=5e-3,
        schedule="one-cycle",
        warmup=0.2,
        epochs=None,
        max_minutes=30.0,
        batch_size=256,
        ema=0.999,
        radii=(36 / 255, 72 / 255, 108 / 255, 1.0),
    ),
}
