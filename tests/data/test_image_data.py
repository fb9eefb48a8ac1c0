"""Images, splits and the digits."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from orthogonium.data import DATASETS, DataError, ImageData, Images, load_dataset, stratified_split, unit_pixels
from orthogonium.data.image_data import _splitmix64
from orthogonium.errors import OrthogoniumError, ParameterError


def test_training_dependencies_are_imported_when_needed():
    code = "import sys, orthogonium.data; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"lightning", "sklearn", "PIL", "torchvision"} & set(loaded)


def grey(n=4, dtype=torch.uint8, size=4):
    return Images(torch.zeros(n, 1, size, size, dtype=dtype), torch.zeros(n, dtype=torch.int64))


def test_fetch_and_subset_pick_by_index():
    images = Images(torch.arange(24, dtype=torch.uint8).view(6, 1, 2, 2), torch.arange(6))
    picked = torch.tensor([5, 0, 5])
    assert torch.equal(images.fetch(picked)[:, 0, 0, 0], torch.tensor([20, 0, 20], dtype=torch.uint8))
    assert images.subset(picked).labels.tolist() == [5, 0, 5]


def test_windows_of_images_in_memory():
    ramp = (torch.arange(8.0) / 7).expand(1, 1, 8, 8)
    images = Images(ramp.contiguous(), torch.zeros(1, dtype=torch.int64))
    whole, left_half = torch.tensor([[1.0, 1.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.5, 0.0, 0.0]])
    index = torch.zeros(1, dtype=torch.int64)
    assert torch.allclose(images.fetch(index, whole), ramp, atol=1e-6)
    half = images.fetch(index, left_half)[0, 0]
    assert torch.allclose(half, half[:1].expand(8, 8), atol=1e-6)  # all of the height
    assert half.max() <= 3.5 / 7 and half[0, -1] > 3 / 7


@pytest.mark.parametrize(
    ("pixels", "labels", "match"),
    [
        (torch.zeros(2, 3, 3), torch.zeros(2, dtype=torch.int64), r"\(n, c, h, w\)"),
        (torch.zeros(2, 1, 3, 3), torch.zeros(3, dtype=torch.int64), "labels"),
        (torch.zeros(2, 1, 3, 3), torch.zeros(2), "int64"),
        (torch.zeros(2, 1, 3, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.int64), "float32"),
        (torch.full((2, 1, 3, 3), 1.5), torch.zeros(2, dtype=torch.int64), r"\[0, 1\]"),
        (torch.full((2, 1, 3, 3), torch.nan), torch.zeros(2, dtype=torch.int64), r"\[0, 1\]"),
    ],
)
def test_wrong_images_are_refused(pixels, labels, match):
    with pytest.raises(DataError, match=match):
        Images(pixels, labels)


def test_wrong_datasets_are_refused():
    with pytest.raises(DataError, match="shape"):
        ImageData(grey(size=4), grey(size=5), ("a",), "two sizes")
    with pytest.raises(DataError, match="no images"):
        ImageData(grey(), grey(0), ("a",), "nothing to test")
    with pytest.raises(DataError, match="labels"):
        ImageData(Images(torch.zeros(2, 1, 4, 4), torch.tensor([0, 2])), grey(), ("a", "b"), "third class")
    assert issubclass(DataError, OrthogoniumError)


def test_bytes_fill_the_unit_interval():
    assert unit_pixels(torch.tensor([0, 51, 255], dtype=torch.uint8)).tolist() == pytest.approx([0, 0.2, 1])
    assert unit_pixels(torch.tensor([255], dtype=torch.uint8)).item() == 1.0


def test_split_is_stratified_and_complete():
    labels = torch.tensor([0] * 40 + [1] * 13 + [2] * 7)[torch.randperm(60)]
    keep, hold = stratified_split(labels, 0.25, seed=3)
    assert sorted(keep.tolist() + hold.tolist()) == list(range(60))
    assert labels[hold].bincount().tolist() == [10, 3, 2]
    assert not torch.equal(hold, stratified_split(labels, 0.25, seed=4)[1])


def test_split_hash_is_the_published_generator():
    assert _splitmix64(1234567, 2).tolist() == [6457827717110365317, 3203168211198807973]
    assert _splitmix64(0, 1).tolist() == [0xE220A8397B1DCDAF]


@pytest.mark.parametrize("fraction", [0.0, 1.0, 0.95, 0.01])
def test_split_needs_something_on_both_sides(fraction):
    with pytest.raises(ParameterError, match="stratified_split"):
        stratified_split(torch.zeros(10, dtype=torch.int64), fraction)
    with pytest.raises(ParameterError, match="seed"):
        stratified_split(torch.zeros(10, dtype=torch.int64), 0.5, seed=-1)


def test_digits_are_those_of_scikit_learn():
    from sklearn.datasets import load_digits

    table, data = load_digits(), load_dataset()
    ours = torch.cat([data.train.pixels, data.test.pixels]).double().mul(16).flatten(1).numpy()
    labels = torch.cat([data.train.labels, data.test.labels]).numpy()
    row = np.column_stack([labels, ours])
    theirs = np.column_stack([table.target, table.data])
    assert np.array_equal(row[np.lexsort(row.T)], theirs[np.lexsort(theirs.T)])
    share = data.test.labels.bincount() / torch.from_numpy(table.target).bincount()
    assert ((share - 0.25).abs() < 0.005).all()
    assert torch.equal(data.test.pixels, load_dataset("digits").test.pixels)


def test_unknown_names_and_arguments_are_refused():
    with pytest.raises(ParameterError, match="choose among digits, cifar10, mnist, fashion-mnist, image-folder"):
        load_dataset("cifar11")
    with pytest.raises(ParameterError, match="no root"):
        load_dataset("digits", root=".")
    with pytest.raises(ParameterError, match="image_size"):
        load_dataset("digits", image_size=32)


@pytest.mark.parametrize("name", [name for name in DATASETS if name != "digits"])
def test_datasets_with_files_ask_for_them(name, tmp_path):
    with pytest.raises(DataError, match="root= must be"):
        load_dataset(name)
    with pytest.raises(DataError, match="does not exist"):
        load_dataset(name, tmp_path / "nowhere")
    with pytest.raises(DataError, match=str(tmp_path)):
        load_dataset(name, tmp_path)
