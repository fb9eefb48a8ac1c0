"""Folders of image files: layout, decoding, cutting and damaged files."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from orthogonium.data import DataError, EvalLoader, FolderImages, TrainLoader, load_dataset
from orthogonium.data import folder as folder_module


@pytest.fixture(autouse=True)
def _forget_decoder():
    folder_module._torchvision_decoder.cache_clear()
    yield
    folder_module._torchvision_decoder.cache_clear()


def picture(seed, size=(24, 20)):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


@pytest.fixture
def root(tmp_path):
    for part, count in (("train", 3), ("val", 2)):
        for k, name in enumerate(("bee", "ant")):
            (tmp_path / part / name).mkdir(parents=True)
            for i in range(count):
                Image.fromarray(picture(10 * k + i)).save(tmp_path / part / name / f"{i}.png")
    return tmp_path


def test_layout(root):
    (root / "train" / "ant" / "notes.txt").write_text("no image")
    data = load_dataset("image-folder", root, image_size=16)
    assert data.classes == ("ant", "bee")
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1] and data.test.labels.tolist() == [0, 0, 1, 1]
    assert data.image_shape == (3, 16, 16) and data.train.fetch(torch.tensor([5])).shape == (1, 3, 16, 16)
    assert load_dataset("image-folder", root).image_shape == (3, 224, 224)


def test_the_largest_centred_square_is_kept(root):
    images = load_dataset("image-folder", root, image_size=20).train
    expected = torch.from_numpy(picture(11)[2:22]).permute(2, 0, 1)  # the second ant, 24×20
    assert torch.equal(images.fetch(torch.tensor([1]))[0], expected)
    halved = load_dataset("image-folder", root, image_size=10).train.fetch(torch.tensor([1]))[0]
    reference = np.array(Image.fromarray(picture(11)[2:22]).resize((10, 10), Image.Resampling.BILINEAR))
    assert (halved.int() - torch.from_numpy(reference).permute(2, 0, 1).int()).abs().max() <= 1


def test_windows_are_cut_before_scaling(root):
    images = load_dataset("image-folder", root, image_size=12).train
    lower_right = torch.tensor([[12 * 12 / (24 * 20), 1.0, 1.0, 1.0]])
    part = images.fetch(torch.tensor([0]), lower_right)[0]
    assert torch.equal(part, torch.from_numpy(picture(10)[12:, 8:]).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_colour_mode_becomes_colour(mode, tmp_path):
    path = tmp_path / f"image.{'jpg' if mode == 'CMYK' else 'png'}"
    image = Image.fromarray(picture(0)).convert(mode)
    image.save(path)
    found = folder_module.decode(str(path))
    with Image.open(path) as again:
        assert np.array_equal(found.permute(1, 2, 0).numpy(), np.asarray(again.convert("RGB")))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_lazy_images_pass_through_the_loaders(root, num_workers):
    data = load_dataset("image-folder", root, image_size=8)
    before = torch.get_rng_state()
    loader = TrainLoader(data.train, 2, augment="resized-crop", num_workers=num_workers)
    batches = list(loader)
    plain = list(TrainLoader(data.train, 2, augment="resized-crop"))
    assert len(batches) == 3
    for (images, labels), (expected, expected_labels) in zip(batches, plain, strict=True):
        assert torch.equal(images, expected) and torch.equal(labels, expected_labels)
    test = torch.cat([images for images, _ in EvalLoader(data.test, 3, num_workers=num_workers)])
    assert torch.equal(test, data.test.fetch(torch.arange(4)).float() / 255)
    assert torch.equal(torch.get_rng_state(), before)


def test_lazy_images_have_subsets(root):
    images = load_dataset("image-folder", root, image_size=8).train
    picked = torch.tensor([4, 0])
    assert torch.equal(images.subset(picked).fetch(torch.arange(2)), images.fetch(picked))


def test_wrong_layouts(root, tmp_path):
    (root / "val" / "wasp").mkdir()
    with pytest.raises(DataError, match="classes that are not in train: wasp"):
        load_dataset("image-folder", root)
    with pytest.raises(DataError, match="no folder train"):
        load_dataset("image-folder", root / "train")
    empty = tmp_path / "empty"
    (empty / "train" / "ant").mkdir(parents=True)
    with pytest.raises(DataError, match="no folder test"):
        load_dataset("image-folder", empty)
    (empty / "val").mkdir()
    with pytest.raises(DataError, match="has no image files"):
        load_dataset("image-folder", empty)
    with pytest.raises(DataError, match="label for each file"):
        FolderImages(["a.png"], torch.zeros(2, dtype=torch.int64), 8)


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"no image", lambda raw: b""])
def test_damaged_images_are_named(root, damage):
    path = root / "train" / "ant" / "1.png"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=r"1.png is no image or cut short .*bytes\). Replace"):
        load_dataset("image-folder", root).train.fetch(torch.tensor([1]))
    path.unlink()
    images = FolderImages([str(path)], torch.zeros(1, dtype=torch.int64), 8)
    with pytest.raises(DataError, match="the file is gone"):
        images.fetch(torch.tensor([0]))


def stand_in(decode_image):
    """Modules with the names of torchvision that we use."""
    torchvision, io = ModuleType("torchvision"), ModuleType("torchvision.io")
    io.ImageReadMode = type("ImageReadMode", (), {"RGB": "colour"})
    io.read_file = lambda path: path
    io.decode_image = decode_image
    torchvision.io = io
    return {"torchvision": torchvision, "torchvision.io": io}


def test_torchvision_decodes_what_it_can(root, monkeypatch):
    asked = []

    def decode_image(contents, mode):
        asked.append((contents, mode))
        if contents.endswith("0.png"):
            raise RuntimeError("unknown variant")
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    for name, module in stand_in(decode_image).items():
        monkeypatch.setitem(sys.modules, name, module)
    images = load_dataset("image-folder", root, image_size=8).train.fetch(torch.tensor([0, 1]))
    assert [mode for _, mode in asked] == ["colour", "colour"]
    assert images[0].any() and not images[1].any()  # the first by Pillow after all


@pytest.mark.parametrize("failure", [ImportError, RuntimeError, OSError, AttributeError])
def test_a_broken_torchvision_is_passed_over(root, failure, monkeypatch):
    class Broken:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "torchvision":
                raise failure("operator torchvision::nms does not exist")

    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    assert load_dataset("image-folder", root, image_size=8).train.fetch(torch.tensor([0])).any()
