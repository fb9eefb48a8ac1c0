"""Augmentations against image-by-image numpy."""

import numpy as np
import pytest
import torch

from orthogonium.data import AUGMENTATIONS, Affine, CropFlip, ResizedCrop, make_augmentation
from orthogonium.errors import ParameterError


def pictures(dtype, n=32, size=(12, 10)):
    pixels = torch.randint(0, 256, (n, 3, *size), dtype=torch.uint8)
    return pixels if dtype == torch.uint8 else pixels / 255


def drawn_by(augment, n=32, seed=0):
    return augment.draw(n, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("flip", [False, True])
def test_crops_are_slices_of_padded_images(dtype, mode, flip):
    images, augment = pictures(dtype), CropFlip(3, mode, flip)
    drawn = drawn_by(augment)
    changed = augment.apply(images, drawn)
    assert changed.dtype == dtype
    for image, ours, (top, left, mirror) in zip(images.numpy(), changed.numpy(), drawn.tolist(), strict=True):
        padded = np.pad(image, ((0, 0), (3, 3), (3, 3)), mode="constant" if mode == "zeros" else mode)
        crop = padded[:, top : top + 12, left : left + 10]
        assert np.array_equal(ours, crop[..., ::-1] if mirror else crop)
    assert drawn[:, :2].unique().tolist() == list(range(7))
    assert drawn[:, 2].unique().tolist() == ([0, 1] if flip else [0])


def test_affine_moves_whole_pixels_exactly():
    images = pictures(torch.float32)
    one_down_two_right = torch.tensor([[0.0, 0.0, 1.0, 2.0]]).expand(32, 4)
    moved = Affine(shift=2).apply(images, one_down_two_right)
    assert torch.allclose(moved[:, :, 1:, 2:], images[:, :, :-1, :-2], atol=1e-5)
    assert moved[:, :, 0].abs().max() < 1e-5 and moved[..., :2].abs().max() < 1e-5


def test_affine_turns_by_right_angles_exactly():
    square = pictures(torch.float32, size=(9, 9))
    quarter = torch.tensor([[torch.pi / 2, 0.0, 0.0, 0.0]]).expand(32, 4)
    turned = Affine(rotation=90).apply(square, quarter)
    assert min((turned - square.rot90(k, (2, 3))).abs().max() for k in (1, 3)) < 1e-4
    # a centred disc stays a disc of pixels when height and width differ
    y, x = torch.meshgrid(torch.arange(21.0) - 10, torch.arange(41.0) - 20, indexing="ij")
    disc = ((x**2 + y**2).sqrt() < 6).float().expand(1, 1, 21, 41)
    assert (Affine(rotation=90).apply(disc, quarter[:1]) - disc).abs().max() < 1e-3


def test_affine_zooms_in():
    dot = torch.zeros(1, 1, 9, 9)
    dot[..., 3:6, 3:6] = 1
    larger = Affine(zoom=0.5).apply(dot, torch.tensor([[0.0, 0.5, 0.0, 0.0]]))
    assert larger.sum() > 1.5 * dot.sum()


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_pixels_stay_in_range_and_in_shape(name, dtype):
    images, augment = pictures(dtype), make_augmentation(name)
    augment.check((3, 12, 10))
    changed = augment.apply(images, drawn_by(augment))
    assert changed.shape == images.shape
    assert changed.dtype in (dtype, torch.float32)
    assert changed.min() >= 0 and changed.max() <= (255 if changed.dtype == torch.uint8 else 1)


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_random_numbers_belong_to_a_sample(name):
    images, augment = pictures(torch.uint8), make_augmentation(name)
    drawn = drawn_by(augment)
    whole = augment.apply(images, drawn)
    assert torch.equal(whole[8:16], augment.apply(images[8:16], drawn[8:16]))
    assert torch.equal(drawn, drawn_by(augment))
    if name != "none":
        assert not torch.equal(drawn, drawn_by(augment, seed=1))


def test_windows_stay_inside_images():
    from orthogonium.data.crop_windows import window_box

    augment = ResizedCrop(smallest=0.1)
    top, left, h, w = window_box(augment.windows(drawn_by(augment, 1000)), 30, 50).unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (top + h <= 30.001).all() and (left + w <= 50.001).all()
    area = h * w / 1500
    assert 0.1 - 1e-4 <= area.min() < 0.15 and area.max() > 0.8
    assert (w / h).min() > 0.7 and ((w / h)[area < 0.5].max() <= 4 / 3 + 1e-4)


@pytest.mark.parametrize("name", ["blur", "shift:", "shift:-1", "flip:2", "none:1", "crop-flip:2.5", "resized-crop:3"])
def test_unknown_names(name):
    with pytest.raises(ParameterError, match="Unknown augmentation"):
        make_augmentation(name)


def test_names_with_pixels():
    assert make_augmentation("crop-flip-reflect:2") == CropFlip(2, "reflect")
    assert make_augmentation("affine:2") == Affine(shift=2)
    assert make_augmentation(Affine()) == Affine()


def test_wrong_settings():
    with pytest.raises(ParameterError, match="padding ≥ 0"):
        CropFlip(-1)
    with pytest.raises(ParameterError, match="mode"):
        CropFlip(mode="wrap")
    with pytest.raises(ParameterError, match="zoom < 1"):
        Affine(zoom=1)
    with pytest.raises(ParameterError, match="smallest"):
        ResizedCrop(smallest=0)
    with pytest.raises(ParameterError, match="8×8 pixels out of sight"):
        CropFlip(8).check((1, 8, 8))
