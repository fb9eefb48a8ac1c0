"""MNIST and Fashion-MNIST files, and damaged ones."""

import gzip
import struct

import numpy as np
import pytest
import torch

from orthogonium.data import DataError, load_dataset


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def arrays(part):
    rng = np.random.default_rng(part)
    n = (6, 3)[part]
    return rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), rng.integers(0, 10, n, dtype=np.uint8)


def write(root, packed=False, mark="-"):
    root.mkdir(parents=True, exist_ok=True)
    for part, stem in enumerate(("train", "t10k")):
        for kind, array in zip(("images", "labels"), arrays(part), strict=True):
            name = f"{stem}-{kind}{mark}idx{array.ndim}-ubyte"
            if packed:
                (root / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
            else:
                (root / name).write_bytes(idx(array))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("mark", ["-", "."])
def test_idx_files(name, packed, mark, tmp_path):
    write(tmp_path, packed, mark)
    data = load_dataset(name, tmp_path)
    for part, source in enumerate((data.train, data.test)):
        pixels, labels = arrays(part)
        assert torch.equal(source.pixels, torch.from_numpy(pixels)[:, None])
        assert source.labels.tolist() == labels.tolist()
    assert data.name == name and len(data.classes) == 10


def test_folders_of_torchvision(tmp_path):
    write(tmp_path / "FashionMNIST" / "raw", packed=True)
    assert len(load_dataset("fashion-mnist", tmp_path).train) == 6


def test_damaged_files(tmp_path):
    write(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte", tmp_path / "train-labels-idx1-ubyte"
    whole = images.read_bytes()
    images.write_bytes(whole[:-5])
    with pytest.raises(DataError, match="train-images-idx3-ubyte .*expected 4,720 bytes for 6×28×28, found 4,715"):
        load_dataset("mnist", tmp_path)
    images.write_bytes(labels.read_bytes())
    with pytest.raises(DataError, match="must start with 00 00 08 03.* found 00 00 08 01"):
        load_dataset("mnist", tmp_path)
    images.write_bytes(b"")
    with pytest.raises(DataError, match="found nothing and 0 bytes"):
        load_dataset("mnist", tmp_path)
    images.write_bytes(whole)
    labels.write_bytes(idx(np.zeros(5, dtype=np.uint8)))
    with pytest.raises(DataError, match="6 images, but .* 5 labels"):
        load_dataset("mnist", tmp_path)
    labels.unlink()
    with pytest.raises(DataError, match=r"has no train-labels-idx1-ubyte \(nor .*gz"):
        load_dataset("mnist", tmp_path)


@pytest.mark.parametrize("damage", [lambda raw: raw[:-20], lambda raw: b"no gzip" + raw, lambda raw: b""])
def test_damaged_gzip(damage, tmp_path):
    write(tmp_path, packed=True)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match="t10k-images-idx3-ubyte.gz .*Download it again"):
        load_dataset("mnist", tmp_path)
