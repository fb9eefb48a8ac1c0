"""Extra images from a file: read exactly, mapped where possible, refused clearly; mixed into batches exactly."""

import io
import zipfile

import numpy as np
import pytest
import torch

from orthogonium.data import ImageDataModule, Images, JoinedImages, TrainLoader, load_npz
from orthogonium.errors import DataError, ParameterError

PIXELS = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
LABELS = np.arange(40) % 10


@pytest.mark.parametrize("labels", [LABELS, LABELS.astype(np.uint8), LABELS.astype(np.int32)])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_images_as_they_were_saved(tmp_path, save, labels):
    save(tmp_path / "more.npz", label=labels, other=np.zeros(3), image=PIXELS)
    found = load_npz(tmp_path / "more.npz", (3, 8, 8), 10)
    assert isinstance(found.images, np.memmap) == (save is np.savez)
    assert len(found) == 40 and found.image_shape == (3, 8, 8) and found.labels.tolist() == LABELS.tolist()
    index = torch.tensor([39, 0, 7, 7])
    expected = torch.from_numpy(PIXELS[index]).movedim(-1, 1)
    assert torch.equal(found.fetch(index), expected)
    assert torch.equal(found.subset(index).fetch(torch.tensor([2, 0])), expected[[2, 0]])
    whole = torch.tensor([[1.0, 1.0, 0.0, 0.0]])
    torch.testing.assert_close(found.fetch(index[:1], whole), expected[:1] / 255)


def test_other_layouts_of_the_archive(tmp_path):
    """An order of memory that cannot be mapped, and an archive that others wrote, with longer headers."""
    np.savez(tmp_path / "fortran.npz", image=np.asfortranarray(PIXELS), label=LABELS)
    with zipfile.ZipFile(tmp_path / "zip.npz", "w") as archive:
        for name, array in (("image", PIXELS), ("label", LABELS)):
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, version=(2, 0))
            info = zipfile.ZipInfo(f"{name}.npy")
            info.extra = b"\x99\x99\x04\x00abcd"
            archive.writestr(info, buffer.getvalue())
    for file in ("fortran.npz", "zip.npz"):
        found = load_npz(tmp_path / file, (3, 8, 8), 10)
        assert torch.equal(found.fetch(torch.arange(40)), torch.from_numpy(PIXELS).movedim(-1, 1))


def test_the_file_is_never_written(tmp_path):
    np.savez(tmp_path / "more.npz", image=PIXELS, label=LABELS)
    before = (tmp_path / "more.npz").read_bytes()
    found = load_npz(tmp_path / "more.npz", (3, 8, 8), 10)
    for _ in range(2):
        found.fetch(torch.arange(40)).zero_()
    assert torch.equal(found.fetch(torch.arange(40)), torch.from_numpy(PIXELS).movedim(-1, 1))
    assert (tmp_path / "more.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"images": PIXELS, "label": LABELS}, "no array image: it has images, label"),
        ({"x": PIXELS}, "no array image and label"),
        ({"image": PIXELS.astype(np.float32), "label": LABELS}, "must be uint8"),
        ({"image": PIXELS[:, :4], "label": LABELS}, r"\(n, 8, 8, 3\): got uint8 \(40, 4, 8, 3\)"),
        ({"image": PIXELS.transpose(0, 3, 1, 2), "label": LABELS}, r"got uint8 \(40, 3, 8, 8\)"),
        ({"image": PIXELS, "label": LABELS[:3]}, "for each of 40 images"),
        ({"image": PIXELS, "label": LABELS / 2}, "whole number"),
        ({"image": PIXELS[:0], "label": LABELS[:0]}, "at least one"),
        ({"image": PIXELS, "label": LABELS + 1}, r"in 0 … 9 for 10 classes: got 1 … 10"),
        ({"image": PIXELS, "label": np.array([None] * 40)}, "Python objects"),
    ],
)
def test_files_that_do_not_fit(tmp_path, arrays, match):
    np.savez(tmp_path / "more.npz", **arrays)
    with pytest.raises(DataError, match=match):
        load_npz(tmp_path / "more.npz", (3, 8, 8), 10)


def test_files_that_are_damaged(tmp_path):
    with pytest.raises(DataError, match="There is no file"):
        load_npz(tmp_path / "absent.npz", (3, 8, 8), 10)
    np.savez(tmp_path / "more.npz", image=PIXELS, label=LABELS)
    whole = (tmp_path / "more.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:5000])
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "single.npy", PIXELS)
    for file in ("cut.npz", "text.npz", "single.npy"):
        with pytest.raises(DataError, match="cut short or not an .npz file"):
            load_npz(tmp_path / file, (3, 8, 8), 10)


def numbered(n, first, dtype=torch.uint8):
    """Images that carry their number in every pixel."""
    number = torch.arange(first, first + n)
    pixels = number.view(n, 1, 1, 1).expand(n, 1, 4, 4)
    return Images((pixels / 255).float() if dtype == torch.float32 else pixels.to(dtype), number)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_joined_images_keep_their_order(dtype):
    joined = JoinedImages(numbered(10, 0), numbered(5, 10, dtype))
    index = torch.tensor([14, 3, 10, 0, 9])
    images = joined.fetch(index)
    assert images.dtype == dtype and joined.labels[index].tolist() == index.tolist()
    numbers = images[:, 0, 0, 0] * (255 if dtype == torch.float32 else 1)
    assert numbers.round().long().tolist() == index.tolist()
    assert joined.subset(index).labels.tolist() == index.tolist()
    for part in (torch.tensor([1, 0]), torch.tensor([12, 11])):
        assert len(joined.fetch(part)) == 2
    with pytest.raises(DataError, match="cannot be mixed"):
        JoinedImages(numbered(2, 0), Images(torch.zeros(1, 1, 5, 5), torch.zeros(1, dtype=torch.int64)))


def mixed(rank=0, world_size=1, share=0.25, extra=7):
    return TrainLoader(
        numbered(50, 0), 8, seed=3, augment="shift", rank=rank, world_size=world_size,
        extra=numbered(extra, 100), extra_share=share,
    )  # fmt: skip


def test_each_batch_has_its_share():
    """6 of 8 images are of the data: 8 batches an epoch; 16 extra images an epoch are 16/7 rounds through all."""
    loader = mixed()
    assert len(loader) == 8
    extras, places = [], []
    for epoch in range(7):
        loader.set_epoch(epoch)
        labels = torch.stack([labels for _, labels in loader])
        assert ((labels >= 100).sum(dim=1) == 2).all() and len(labels[labels < 100].unique()) == 48
        extras += sorted(labels[labels >= 100].tolist())
        places += (labels >= 100).nonzero()[:, 1].tolist()
    assert [extras.count(100 + i) for i in range(7)] == [16] * 7  # 7·16 are 16 whole rounds
    assert set(places) == set(range(8))


def test_extra_images_are_shared_and_resumed():
    whole = mixed()
    whole.set_epoch(2)
    iterator = iter(whole)
    for _ in range(3):
        next(iterator)
    state, rest = whole.state_dict(), list(iterator)
    shares = [mixed(rank, 2) for rank in range(2)]
    for part in shares:
        part.load_state_dict(state)
    for (images, labels), *parts in zip(rest, *shares, strict=True):
        assert torch.equal(images, torch.cat([x for x, _ in parts]))
        assert torch.equal(labels, torch.cat([y for _, y in parts]))
    for other in (mixed(share=0.5), mixed(extra=8)):
        with pytest.raises(ParameterError, match="Resume with the same settings"):
            other.load_state_dict(state)
    plain = TrainLoader(numbered(50, 0), 8, seed=3, augment="shift")
    assert "extra_samples" not in plain.state_dict()


def test_shares_that_leave_nothing():
    for share in (0.0, 0.01, 0.99, 1.0):
        with pytest.raises(ParameterError, match="at least one image of each kind"):
            mixed(share=share)


def test_the_data_module_takes_a_file(tmp_path):
    np.savez(tmp_path / "more.npz", image=PIXELS[..., :1], label=LABELS)
    data = ImageDataModule("digits", batch_size=64, extra=tmp_path / "more.npz", extra_share=0.5)
    assert len(data.train_dataloader()) == 1346 // 32
    images, labels = next(iter(data.train_dataloader()))
    assert images.shape == (64, 1, 8, 8) and images.dtype == torch.float32 and images.max() <= 1
    assert len(data.val_dataloader().source) == 451
    with pytest.raises(DataError, match=r"\(n, 8, 8, 1\): got uint8 \(40, 8, 8, 3\)"):
        np.savez(tmp_path / "colour.npz", image=PIXELS, label=LABELS)
        ImageDataModule("digits", extra=tmp_path / "colour.npz")
