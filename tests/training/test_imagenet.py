"""The preset for ImageNet on a folder of image files: the command itself, with a small network and few images."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

from orthogonium.training import PRESETS, load_checkpoint
from tests.cli.conftest import call

SMALL = ["base_width=4", "embedding_dim=16", "groups=2", "block_depth=1"]


@pytest.fixture
def root(tmp_path):
    """Three classes of images of several sizes; the fourth image of a class is held out."""
    generator = np.random.default_rng(0)
    for label in range(3):
        for index, size in enumerate(((40, 60), (64, 48), (230, 224), (50, 50))):
            folder = tmp_path / "images" / ("val" if index == 3 else "train") / f"n{label}"
            folder.mkdir(parents=True, exist_ok=True)
            pixels = generator.integers(60 * label, 60 * label + 90, (*size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{index}.png")
    return tmp_path / "images"


def command(root, *more):
    options = [text for option in SMALL for text in ("-O", option)]
    return ["train", "--preset", "imagenet", "--root", root, *options, "--batch-size", 4, "--quiet", *more]


def test_dry_run(root, tmp_path, capsys):
    code, out, err = call(capsys, *command(root, "--dry-run", "--out", tmp_path / "run"))
    assert code == 0 and '"model": "aocnet_v1"' in out and not (tmp_path / "run").exists(), err
    code, _, err = call(capsys, "train", "--preset", "imagenet", "--dry-run")
    assert code == 2 and "image-folder is not bundled" in err
    code, _, err = call(capsys, "train", "--preset", "imagenet", "--root", root, "--dry-run")
    assert code == 2 and "1024 is larger than the 9 images" in err


def test_a_few_steps(root, tmp_path, capsys):
    out = tmp_path / "run"
    code, _, err = call(capsys, *command(root, "--epochs", 2, "--out", out, "--no-report", "--accelerator", "cpu"))
    assert code == 0, err
    rows = list(csv.DictReader((out / "history.csv").read_text().splitlines()))
    assert [row["step"] for row in rows] == ["2", "4"] and all(float(row["train_loss"]) > 0 for row in rows)
    trained = load_checkpoint(out / "last.ckpt")
    assert trained.recipe.precision == "bf16-mixed" and trained.image_shape == (3, 224, 224)
    assert trained.model(torch.rand(1, 3, 224, 224)).shape == (1, 3)
    assert all(p.dtype == torch.float32 for p in trained.model.parameters())


def test_the_batch_can_be_shared():
    recipe = PRESETS["imagenet"]
    assert recipe.batch_size % 64 == 0 and recipe.augment == "resized-crop" and recipe.data == "image-folder"
