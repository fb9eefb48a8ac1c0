"""CIFAR-10 in each of its distributions, and damaged."""

import pickle
import struct
import tarfile

import numpy as np
import pytest
import torch

from orthogonium.data import DataError, load_dataset

NAMES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
COUNT = 4


def batch(i):
    rng = np.random.default_rng(i)
    return rng.integers(0, 256, (COUNT, 3072), dtype=np.uint8), [int(k) for k in rng.integers(0, 10, COUNT)]


def python2_pickle(pixels, labels):
    """The bytes that cPickle of Python 2 wrote, opcode by opcode: text is bytes, and numpy has its old module names."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        + b"(K\x01"
        + b"".join(b"M" + struct.pack("<H", n) for n in pixels.shape)
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
        + b"T"
        + struct.pack("<i", pixels.size)
        + pixels.tobytes()
        + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(U\x04data" + array + b"U\x06labels" + numbers + b"u."


def python3_pickle(protocol):
    def dump(pixels, labels):
        return pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"part \xff"}, protocol=protocol)

    return dump


def binary(pixels, labels):
    return np.column_stack([np.array(labels, dtype=np.uint8), pixels]).tobytes()


FORMATS = {
    "binary": ("cifar-10-batches-bin", ".bin", binary),
    "python 2": ("cifar-10-batches-py", "", python2_pickle),
    "python 3, protocol 2": ("cifar-10-batches-py", "", python3_pickle(2)),
    "python 3, protocol 5": ("cifar-10-batches-py", "", python3_pickle(5)),
}


def write(root, kind="binary"):
    folder, suffix, dump = FORMATS[kind]
    (root / folder).mkdir()
    for i, name in enumerate(NAMES):
        (root / folder / (name + suffix)).write_bytes(dump(*batch(i)))
    return root / folder


def check(data):
    pixels, labels = zip(*(batch(i) for i in range(6)), strict=True)
    expected = torch.from_numpy(np.concatenate(pixels)).view(-1, 3, 32, 32)
    assert torch.equal(torch.cat([data.train.pixels, data.test.pixels]), expected)
    assert torch.cat([data.train.labels, data.test.labels]).tolist() == sum(labels, [])
    assert (len(data.train), len(data.test), data.image_shape) == (5 * COUNT, COUNT, (3, 32, 32))
    assert data.classes[3] == "cat"


@pytest.mark.parametrize("kind", FORMATS)
def test_every_distribution_gives_the_same_images(kind, tmp_path):
    folder = write(tmp_path, kind)
    check(load_dataset("cifar10", tmp_path))
    check(load_dataset("cifar10", str(folder)))


@pytest.mark.parametrize("kind", ["binary", "python 2"])
def test_archives_are_read_in_place(kind, tmp_path):
    folder = write(tmp_path, kind)
    (tmp_path / "packed").mkdir()
    archive = tmp_path / "packed" / f"cifar-10-{kind.split()[0]}.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname=folder.name)
    check(load_dataset("cifar10", archive))
    check(load_dataset("cifar10", archive.parent))
    assert list(archive.parent.iterdir()) == [archive]

    archive.write_bytes(archive.read_bytes()[:-2000])
    with pytest.raises(DataError, match="cut short or no tar archive"):
        load_dataset("cifar10", archive)


def test_a_missing_file_is_named(tmp_path):
    (write(tmp_path) / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"cifar-10-batches-bin lacks data_batch_4.bin \(found 5 of 6"):
        load_dataset("cifar10", tmp_path)


@pytest.mark.parametrize("cut", [1, 3073])
def test_a_cut_file_is_named(cut, tmp_path):
    path = write(tmp_path) / "data_batch_2.bin"
    path.write_bytes(path.read_bytes()[:-cut])
    found = f"{COUNT * 3073 - 1:,} bytes" if cut == 1 else f"'data_batch_2.bin': {COUNT - 1}"
    with pytest.raises(DataError, match=found):
        load_dataset("cifar10", tmp_path)


def test_an_empty_file_and_wrong_labels(tmp_path):
    path = write(tmp_path) / "test_batch.bin"
    raw = path.read_bytes()
    path.write_bytes(bytes([200]) + raw[1:])
    with pytest.raises(DataError, match=r"test_batch.bin .*labels in 0 … 9, found . … 200"):
        load_dataset("cifar10", tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match="30,730,000 bytes as distributed.* found 0 bytes"):
        load_dataset("cifar10", tmp_path)


class Harmful:
    def __reduce__(self):
        return pytest.fail, ("code in a pickle was run",)


@pytest.mark.parametrize(
    ("contents", "match"),
    [
        (pickle.dumps({b"data": Harmful(), b"labels": []}), "not permitted"),
        (pickle.dumps(np.datetime64(0, "s")), "not permitted"),
        (python2_pickle(*batch(0))[:500], "cut short"),
        (b"", "cut short"),
        (b"<html>404</html>", "no pickle"),
        (b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00zip\x86R.", "codec 'zip'"),
        (pickle.dumps([1, 2]), "expected a pickled dict, found list"),
        (pickle.dumps({b"labels": [1]}), "found NoneType"),
        (pickle.dumps({b"data": np.zeros((2, 3072)), b"labels": [1, 2]}), "found float64"),
        (pickle.dumps({b"data": batch(0)[0], b"labels": [1]}), "list of 4 integers"),
        (pickle.dumps({b"data": batch(0)[0], b"labels": [1, 2, 3, 10]}), "labels in 0 … 9"),
    ],
)
def test_pickles_are_data_only(contents, match, tmp_path):
    path = write(tmp_path, "python 2") / "data_batch_3"
    path.write_bytes(contents)
    with pytest.raises(DataError, match=f"data_batch_3 .*{match}"):
        load_dataset("cifar10", tmp_path)
