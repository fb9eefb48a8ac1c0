"""Loaders of whole batches that repeat exactly, also when they are shared among processes or resumed.

# Note [One global batch]
A global batch is the same for any number of processes: every process computes the whole permutation and all random
numbers of the batch, and takes its slice of both. Random numbers come from generators seeded by a hash of their
purpose, so neither torch's global generator nor earlier batches affect them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from orthogonium.data.augment import Augmentation, make_augmentation
from orthogonium.data.image_data import ImageSource, unit_pixels
from orthogonium.data.joined import JoinedImages
from orthogonium.errors import ParameterError

_ORDER, _AUGMENT, _WORKERS, _EXTRA, _MIX = range(5)  # what random numbers are for
Batch = tuple[Tensor, Tensor]  # images (b, c, h, w), float32 in [0, 1], and labels (b,)
_Request = tuple[Tensor, Tensor]  # indices (b,) and the random numbers (b, k) of their augmentation


class _Batches(Dataset[Tensor]):
    """Makes the images of a request, in this process or in a worker process of `torch.utils.data`."""

    def __init__(self, source: ImageSource, augment: Augmentation) -> None:
        self.source = source
        self.augment = augment

    def __getitem__(self, request: _Request) -> Tensor:
        indices, drawn = request
        return self.augment.apply(self.source.fetch(indices, self.augment.windows(drawn)), drawn)


class _Loader:
    """Makes batches, in this process or in worker processes."""

    def __init__(
        self,
        source: ImageSource,
        batch_size: int,
        augment: str | Augmentation,
        rank: int,
        world_size: int,
        num_workers: int,
    ) -> None:
        name = type(self).__name__
        if batch_size < 1 or num_workers < 0:
            raise ParameterError(f"{name} needs batch_size ≥ 1, num_workers ≥ 0: got {batch_size}, {num_workers}.")
        if not 0 <= rank < world_size:
            raise ParameterError(f"{name} needs 0 ≤ rank < world_size: got rank {rank} of {world_size}.")
        self.source = source
        self.batch_size = batch_size
        self.augment = make_augmentation(augment)
        self.augment.check(source.image_shape)
        self.rank = rank
        self.world_size = world_size
        self.num_workers = num_workers

    def _make(self, indices: Sequence[Tensor], requests: Iterable[_Request]) -> Iterator[Batch]:
        """The images and labels of each request."""
        batches = _Batches(self.source, self.augment)
        made: Iterable[Tensor] = map(batches.__getitem__, requests)
        if self.num_workers:
            # without a generator of its own it would draw the seeds of its workers from the global one
            made = DataLoader(
                batches, None, sampler=requests, num_workers=self.num_workers, generator=_generator(_WORKERS)
            )
        for index, images in zip(indices, made, strict=True):
            yield unit_pixels(images), self.source.labels[index]


class TrainLoader(_Loader):
    """Shuffled, augmented batches of an epoch; an incomplete last batch is dropped.

    The order and every random change depend only on (seed, epoch, batch index), and the batches of `world_size`
    processes together are those of a single process, sample by sample. `state_dict` holds how far the epoch has come;
    after `load_state_dict` the next iteration continues from there, even with a different number of processes.

    With `extra` images, each batch has a share of them, at random positions; an epoch is a pass over `source`. They are
    taken in turn, across epochs, in an order that is new each time all have been seen: none repeats before that.

    Args:
        source: images to train on.
        batch_size: samples per batch over all processes; a multiple of `world_size`.
        augment: a name of `AUGMENTATIONS` or an `Augmentation`.
        seed: determines the order and the random changes.
        rank: index of this process.
        world_size: number of processes.
        num_workers: worker processes that read images; 0 for images in memory.
        extra: further images, such as generated ones.
        extra_share: their share of each batch, rounded to whole images.

    >>> from orthogonium.data import TrainLoader, load_dataset
    >>> loader = TrainLoader(load_dataset("digits").train, batch_size=64, augment="shift")
    >>> loader.set_epoch(3)
    >>> images, labels = next(iter(loader))
    >>> len(loader), images.shape, loader.state_dict()["batches"]
    (21, torch.Size([64, 1, 8, 8]), 1)
    """

    def __init__(
        self,
        source: ImageSource,
        batch_size: int,
        *,
        augment: str | Augmentation = "none",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
        extra: ImageSource | None = None,
        extra_share: float = 0.5,
    ) -> None:
        mixed = source if extra is None else JoinedImages(source, extra)
        super().__init__(mixed, batch_size, augment, rank, world_size, num_workers)
        self.extra_share = 0.0 if extra is None else extra_share
        self._samples = len(source), 0 if extra is None else len(extra)
        extras = round(self.extra_share * batch_size)
        if extra is not None and not (0 < extra_share < 1 and 0 < extras < batch_size):
            raise ParameterError(
                f"TrainLoader: extra_share={extra_share} must leave at least one image of each kind in a batch of "
                f"{batch_size}."
            )
        self._parts = batch_size - extras, extras  # of a batch
        if batch_size % world_size:
            raise ParameterError(
                f"TrainLoader: a global batch of {batch_size} cannot be shared equally by {world_size} processes. "
                f"Use a multiple of {world_size}."
            )
        if self._parts[0] > len(source):
            raise ParameterError(
                f"TrainLoader: a batch of {self._parts[0]} is larger than the {len(source)} images to train on. Use "
                "a smaller batch_size."
            )
        if seed < 0:
            raise ParameterError(f"TrainLoader needs seed ≥ 0: got {seed}.")
        self.seed = seed
        self.epoch = 0
        self._batches = 0  # already given in this epoch
        self._resume = False

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return self._samples[0] // self._parts[0]

    @property
    def sampler(self) -> TrainLoader:
        """The loader: Lightning calls `set_epoch` on the sampler of a loader."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, from its start; setting the current epoch again changes nothing."""
        if epoch < 0:
            raise ParameterError(f"TrainLoader needs an epoch ≥ 0: got {epoch}.")
        if epoch != self.epoch:
            self.epoch, self._batches, self._resume = epoch, 0, False

    def __iter__(self) -> Iterator[Batch]:
        # Nothing runs before the first `next`: Lightning makes the iterator before it restores or sets the epoch.
        epoch, first = self.epoch, self._batches if self._resume else 0
        self._batches, self._resume = first, False
        share = self.batch_size // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        indices = self._batches_of(epoch)[first:, mine].unbind()
        requests = (
            (part, self.augment.draw(self.batch_size, _generator(_AUGMENT, self.seed, epoch, index))[mine])
            for index, part in enumerate(indices, start=first)
        )
        for given, batch in enumerate(self._make(indices, requests), start=first + 1):
            self._batches = given
            yield batch

    def _batches_of(self, epoch: int) -> Tensor:  # (batches, batch size)
        """The samples of each batch of an epoch."""
        own, extras = self._parts
        order = torch.randperm(self._samples[0], generator=_generator(_ORDER, self.seed, epoch))
        batches = order[: len(self) * own].view(-1, own)
        if not extras:
            return batches
        batches = torch.cat([batches, self._samples[0] + self._extra_batches(epoch)], dim=1)
        places = torch.rand(batches.shape, generator=_generator(_MIX, self.seed, epoch)).argsort(dim=1)
        return batches.gather(1, places)

    def _extra_batches(self, epoch: int) -> Tensor:  # (batches, extra images of a batch)
        """A piece of an endless sequence of permutations of the extra images, which continues from epoch to epoch."""
        count, period = len(self) * self._parts[1], self._samples[1]
        first_round, skipped = divmod(epoch * count, period)
        rounds = range(first_round, first_round + -(-(skipped + count) // period))
        orders = [torch.randperm(period, generator=_generator(_EXTRA, self.seed, turn)) for turn in rounds]
        return torch.cat(orders)[skipped : skipped + count].view(len(self), -1)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, its number of batches so far, and what they depend on; the same in every process."""
        return {"epoch": self.epoch, "batches": self._batches, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the batches of `state`, which must come from a loader of the same data and settings."""
        saved = {key: state.get(key) for key in self._identity()}
        if saved != self._identity():
            raise ParameterError(
                f"TrainLoader: the saved loader had {saved}, this one has {self._identity()}. "
                "Resume with the same settings, or start anew from the saved weights."
            )
        self.epoch, self._batches, self._resume = state["epoch"], state["batches"], True

    def _identity(self) -> dict[str, Any]:
        extra = {"extra_samples": self._samples[1], "extra_share": self.extra_share} if self._samples[1] else {}
        return {
            "samples": self._samples[0],
            "batch_size": self.batch_size,
            "augment": repr(self.augment),
            "seed": self.seed,
            **extra,
            "digest": self._digest,
        }

    @cached_property
    def _digest(self) -> str:
        return self.source.digest()


class EvalLoader(_Loader):
    """Yields every sample exactly once, in order, even when several processes share the work.

    The n samples are cut into K·world_size consecutive pieces whose sizes differ by at most one; the processes take
    turns. So each has the same number K of batches (collectives cannot hang), none is empty, and no sample is
    repeated to fill one up. Add counts over batches and processes, as `torchmetrics` does, rather than averaging
    averages: the pieces are not all of the same size.

    Args:
        source: images to evaluate.
        batch_size: largest number of samples of a batch over all processes (more if a process would get none).
        rank: index of this process.
        world_size: number of processes.
        num_workers: worker processes that read images; 0 for images in memory.

    >>> from orthogonium.data import EvalLoader, load_dataset
    >>> test = load_dataset("digits").test
    >>> sum(len(labels) for _, labels in EvalLoader(test, 128)) == len(test)
    True
    """

    def __init__(
        self, source: ImageSource, batch_size: int, *, rank: int = 0, world_size: int = 1, num_workers: int = 0
    ) -> None:
        super().__init__(source, batch_size, "none", rank, world_size, num_workers)
        if len(source) < world_size:
            raise ParameterError(
                f"EvalLoader: {len(source)} images cannot be shared by {world_size} processes. Use fewer processes."
            )

    def __len__(self) -> int:
        """Batches of each process."""
        return min(-(-len(self.source) // self.batch_size), len(self.source) // self.world_size)

    def __iter__(self) -> Iterator[Batch]:
        n, pieces = len(self.source), len(self) * self.world_size
        bounds = [n * piece // pieces for piece in range(pieces + 1)]
        indices = [torch.arange(bounds[i], bounds[i + 1]) for i in range(self.rank, pieces, self.world_size)]
        yield from self._make(indices, [(part, torch.empty(len(part), 0)) for part in indices])


def _generator(*purpose: int) -> Generator:
    """A generator seeded by a hash of `purpose`."""
    return Generator().manual_seed(int(np.random.SeedSequence(purpose).generate_state(1)[0]))
