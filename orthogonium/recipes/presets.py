"""Recipes worth starting from."""

from __future__ import annotations

from orthogonium.recipes.recipe import Recipe

# CIFAR-10 on two cores of a CPU. Found by `benchmarks.recipe_search`, on images held out of training
_CIFAR10 = Recipe(
    model="aocnet_tiny",
    model_options={
        "widths": [48, 96, 192],
        "stride_kernel": 2,
        "patch": 2,
        "hidden": [256],
        "norm": "batch-centering",
        "padding_mode": "zeros",
    },
    data="cifar10",
    augment="crop-flip-reflect:2",
    loss="offset-cross-entropy",
    loss_options={"offset": 1.0, "temperature": 0.3},
    optimizer="adam",
    optimizer_options={"betas": [0.9, 0.99]},
    lr=3e-3,
    epochs=None,
    minutes=30.0,
    batch_size=128,
    ema=0.999,
    eps=(36 / 255, 72 / 255, 108 / 255, 1.0),
    validate_every=5,
)

PRESETS: dict[str, Recipe] = {
    # scikit-learn's digits, 8×8 pixels: well under a minute on two cores
    "digits": Recipe(
        model="aocnet_tiny",
        model_options={"depth": 1, "stride_kernel": 2, "hidden": [256, 256], "padding_mode": "zeros"},
        data="digits",
        loss="offset-cross-entropy",
        loss_options={"offset": 0.9, "temperature": 0.11},
        optimizer="adam",
        lr=1e-2,
        epochs=45,
        batch_size=128,
        eps=(0.25, 0.5),
        validate_every=5,
    ),
    "cifar10-cpu-30min": _CIFAR10,
    # The same with a third more channels, which takes longer to pay off
    "cifar10-cpu-2h": _CIFAR10.replace(
        model_options={**_CIFAR10.model_options, "widths": [64, 128, 256]}, minutes=120.0
    ),
    # ImageNet from its folders train/ and val/, on several accelerators: --devices 8 --workers 8. A starting point that
    # has been run for a few steps, not to the end
    "imagenet": Recipe(
        model="aocnet_v1",
        data="image-folder",
        augment="resized-crop",
        loss="offset-cross-entropy",
        optimizer="adamw",
        lr=1e-3,
        weight_decay=1e-5,
        schedule="cosine",
        warmup=0.05,
        epochs=90,
        batch_size=1024,
        clip_norm=1.0,
        ema=0.9995,
        precision="bf16-mixed",
        eps=(36 / 255, 72 / 255, 108 / 255, 1.0),
    ),
}
