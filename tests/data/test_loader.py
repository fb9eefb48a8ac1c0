"""Loaders: fixed by (seed, epoch, batch), shared exactly, resumable, complete."""

import pytest
import torch

from orthogonium.data import AUGMENTATIONS, EvalLoader, Images, TrainLoader
from orthogonium.errors import ParameterError


def numbered(n=50, size=12):
    """Images that carry their label in every pixel, so each can be recognized after any crop."""
    labels = torch.arange(n)
    return Images((labels + 1).to(torch.uint8).view(n, 1, 1, 1).expand(n, 1, size, size).contiguous(), labels)


def noisy(n=50):
    return Images(torch.randint(0, 256, (n, 3, 12, 12), dtype=torch.uint8), torch.arange(n))


def same(ours, theirs):
    return len(ours) == len(theirs) and all(
        torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(ours, theirs, strict=True)
    )


def test_an_epoch_has_every_sample_once_with_its_label():
    loader = TrainLoader(numbered(), 8)
    batches = list(loader)
    labels = torch.cat([labels for _, labels in batches])
    assert len(batches) == len(loader) == 6 and len(labels.unique()) == 48
    assert labels.tolist() != sorted(labels.tolist())
    for images, labels in batches:
        assert images.dtype == torch.float32
        assert torch.equal((images[:, 0, 0, 0] * 255).round().long() - 1, labels)


@pytest.mark.parametrize("augment", AUGMENTATIONS)
def test_batches_depend_on_seed_and_epoch_only(augment):
    source = noisy()
    loader = TrainLoader(source, 8, augment=augment, seed=5)
    loader.set_epoch(2)
    first = list(loader)
    torch.manual_seed(99)
    before = torch.get_rng_state()
    again = TrainLoader(source, 8, augment=augment, seed=5)
    list(again)
    again.set_epoch(2)
    assert same(first, list(again)) and same(first, list(again))
    assert torch.equal(torch.get_rng_state(), before)
    for seed, epoch in ((6, 2), (5, 3), (2, 5)):
        other = TrainLoader(source, 8, augment=augment, seed=seed)
        other.set_epoch(epoch)
        assert not same(first, list(other))


def test_augmentation_changes_with_batch_and_epoch():
    source = Images(torch.randint(0, 256, (1, 1, 12, 12), dtype=torch.uint8).expand(16, 1, 12, 12), torch.arange(16))
    loader = TrainLoader(source, 8, augment="crop-flip")
    (a, _), (b, _) = loader
    loader.set_epoch(1)
    (c, _), _ = loader
    assert not torch.equal(a, b) and not torch.equal(a, c) and len(a.unique(dim=0)) > 4


@pytest.mark.parametrize("augment", AUGMENTATIONS)
@pytest.mark.parametrize("world_size", [2, 4])
def test_processes_share_the_batches_of_one(augment, world_size):
    source = noisy()
    whole = list(TrainLoader(source, 8, augment=augment, seed=1))
    shares = [
        list(TrainLoader(source, 8, augment=augment, seed=1, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    joined = [
        (torch.cat([images for images, _ in parts]), torch.cat([labels for _, labels in parts]))
        for parts in zip(*shares, strict=True)
    ]
    assert same(whole, joined)


@pytest.mark.parametrize("given", [0, 1, 4, 6])
def test_resumes_inside_an_epoch(given):
    source = noisy()
    loader = TrainLoader(source, 8, augment="crop-flip")
    loader.set_epoch(3)
    iterator = iter(loader)
    for _ in range(given):
        next(iterator)
    state = loader.state_dict()
    rest = list(iterator)

    resumed = TrainLoader(source, 8, augment="crop-flip")
    iterator = iter(resumed)  # made before the state is known, as Lightning does
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    assert resumed.state_dict() == state
    assert same(rest, list(iterator)) and len(rest) == 6 - given
    assert len(list(resumed)) == 6  # only once
    shared = [TrainLoader(source, 8, augment="crop-flip", rank=rank, world_size=2) for rank in range(2)]
    for part in shared:
        part.load_state_dict(state)
    joined = [
        (torch.cat([a, c]), torch.cat([b, d])) for (a, b), (c, d) in zip(*shared, strict=True)
    ]  # the state is of all processes
    assert same(rest, joined)


def test_the_next_epoch_starts_at_its_start():
    loader, fresh = TrainLoader(noisy(), 8), TrainLoader(noisy(), 8)
    loader.load_state_dict({**loader.state_dict(), "epoch": 3, "batches": 6})
    loader.set_epoch(4)
    fresh.set_epoch(4)
    assert [labels.tolist() for _, labels in loader] == [labels.tolist() for _, labels in fresh]


def test_a_state_of_other_settings_or_images_is_refused():
    images, changed = noisy(), noisy()
    changed.pixels[:] = images.pixels
    state = TrainLoader(images, 8).state_dict()
    TrainLoader(changed, 8).load_state_dict(state)
    changed.pixels[-1, -1, -1, -1] += 1
    others = TrainLoader(images, 4), TrainLoader(images, 8, seed=1), TrainLoader(images, 8, augment="flip")
    for other in (*others, TrainLoader(changed, 8)):
        with pytest.raises(ParameterError, match="Resume with the same settings"):
            other.load_state_dict(state)
    with pytest.raises(ParameterError, match="the saved loader had"):
        TrainLoader(images, 8).load_state_dict({"epoch": 1})


@pytest.mark.parametrize("n", [1, 2, 5, 7, 50, 51])
@pytest.mark.parametrize("batch_size", [1, 4, 16, 100])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_evaluation_covers_every_sample_once(n, batch_size, world_size):
    source = numbered(n)
    if n < world_size:
        with pytest.raises(ParameterError, match="fewer processes"):
            EvalLoader(source, batch_size, rank=0, world_size=world_size)
        return
    loaders = [EvalLoader(source, batch_size, rank=rank, world_size=world_size) for rank in range(world_size)]
    shares = [list(loader) for loader in loaders]
    assert {len(share) for share in shares} == {len(loader) for loader in loaders}  # one number
    assert len({len(share) for share in shares}) == 1
    in_turn = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert torch.equal(torch.cat([labels for _, labels in in_turn]), source.labels)
    sizes = [len(labels) for _, labels in in_turn]
    assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1
    if batch_size >= 2 * world_size and n >= batch_size:
        assert max(sum(len(labels) for _, labels in turn) for turn in zip(*shares, strict=True)) <= batch_size


def test_float_images_are_not_handed_out_themselves():
    source = Images(torch.rand(4, 1, 12, 12), torch.arange(4))
    before = source.pixels.clone()
    for loader in (TrainLoader(source, 2), EvalLoader(source, 2)):
        for images, _ in loader:
            images.zero_()
    assert torch.equal(source.pixels, before)


def test_wrong_settings():
    source = numbered()
    with pytest.raises(ParameterError, match="shared equally by 3"):
        TrainLoader(source, 8, world_size=3)
    with pytest.raises(ParameterError, match="larger than the 50 images"):
        TrainLoader(source, 64)
    with pytest.raises(ParameterError, match="seed ≥ 0"):
        TrainLoader(source, 8, seed=-1)
    with pytest.raises(ParameterError, match="epoch ≥ 0"):
        TrainLoader(source, 8).set_epoch(-1)
    with pytest.raises(ParameterError, match="rank 2 of 2"):
        EvalLoader(source, 8, rank=2, world_size=2)
    with pytest.raises(ParameterError, match="batch_size ≥ 1"):
        EvalLoader(source, 0)
    with pytest.raises(ParameterError, match="out of sight"):
        TrainLoader(source, 8, augment="shift:12")
