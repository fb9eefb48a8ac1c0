"""The data of a training run for Lightning. Needs the extra `[train]`."""

from __future__ import annotations

from os import PathLike
from typing import Any

from orthogonium.data.augment import Augmentation, make_augmentation
from orthogonium.data.datasets import load_dataset
from orthogonium.data.image_data import ImageData, Images, ImageSource, stratified_split
from orthogonium.data.loader import EvalLoader, TrainLoader
from orthogonium.data.npz import load_npz
from orthogonium.errors import ParameterError, lacking

try:
    from lightning.pytorch import LightningDataModule
    from lightning.pytorch.trainer.states import TrainerFn
except ModuleNotFoundError as error:
    raise lacking(
        "orthogonium.data.ImageDataModule needs lightning",
        otherwise="load_dataset, TrainLoader and EvalLoader do without.",
    ) from error

VALIDATION_SPLIT_SEED = 0  # not the seed of the run: runs with different seeds are compared on the same images


class ImageDataModule(LightningDataModule):
    """Loaders of a dataset, ready for `Trainer.fit`, with pixels in [0, 1] and no normalization.

    Batches are determined by (seed, epoch, batch index), whatever the number of processes and wherever a run was
    interrupted (`TrainLoader`); validation and test cover every sample exactly once (`EvalLoader`). The dataset is
    read at construction, so its shape can shape the model and a missing file is reported at once.

    Args:
        name: name of a dataset (`load_dataset`), or a dataset.
        root: where its files are.
        batch_size: samples per batch over all processes.
        augment: a name of `AUGMENTATIONS` or an `Augmentation`.
        seed: determines the order and the augmentations.
        num_workers: worker processes that read images, for datasets that are not in memory.
        validation: fraction of the training images held out for validation, the same for each class. With 0, the
            validation loader gives the test images: then use it to choose nothing that you report on them.
        image_size: side in pixels of the images of "image-folder".
        extra: an `.npz` file of further images to train on (`load_npz`).
        extra_share: their share of each batch.

    >>> from orthogonium.data import ImageDataModule
    >>> data = ImageDataModule("digits", batch_size=64, augment="shift", validation=0.1)
    >>> data.image_shape, data.n_classes, len(data.train), len(data.validation), len(data.test)
    ((1, 8, 8), 10, 1210, 136, 451)
    """

    def __init__(
        self,
        name: str | ImageData = "digits",
        root: str | PathLike[str] | None = None,
        batch_size: int = 128,
        augment: str | Augmentation = "none",
        seed: int = 0,
        num_workers: int = 0,
        validation: float = 0.0,
        image_size: int | None = None,
        extra: str | PathLike[str] | None = None,
        extra_share: float = 0.5,
    ) -> None:
        super().__init__()
        if not 0 <= validation < 1:
            raise ParameterError(f"ImageDataModule needs 0 ≤ validation < 1: got {validation}.")
        if isinstance(name, ImageData) and (root, image_size) != (None, None):
            raise ParameterError(
                f"ImageDataModule takes a dataset as it is: got root={root!r} and image_size={image_size} beside it."
            )
        data = name if isinstance(name, ImageData) else load_dataset(name, root, image_size=image_size)
        if num_workers and isinstance(data.train, Images):
            raise ParameterError(
                f"{data.name} is in memory, where worker processes only cost time: got {num_workers} of "
                "them. Leave them out."
            )
        self.name = data.name
        self.classes = data.classes
        self.n_classes = len(data.classes)
        self.image_shape = data.image_shape
        self.batch_size = batch_size
        self.augment = make_augmentation(augment)
        self.seed = seed
        self.num_workers = num_workers
        self.train: ImageSource = data.train
        self.test: ImageSource = data.test
        self.validation: ImageSource = data.test
        self.validates_on_test = validation == 0
        if validation:
            keep, hold = stratified_split(data.train.labels, validation, VALIDATION_SPLIT_SEED)
            self.train, self.validation = data.train.subset(keep), data.train.subset(hold)
        self.extra = None if extra is None else load_npz(extra, data.image_shape, len(data.classes))
        self.extra_share = extra_share
        self._train_loader = self._new_train_loader()  # wrong settings are reported now
        self._to_resume: dict[str, Any] = {}

    def setup(self, stage: str) -> None:
        """Forget what an earlier run was to resume from."""
        self._to_resume = {}

    def train_dataloader(self) -> TrainLoader:
        """This process's share of the shuffled, augmented batches."""
        self._train_loader = self._new_train_loader()
        if self._to_resume:
            self._train_loader.load_state_dict(self._to_resume)
            self._to_resume = {}
        return self._train_loader

    def val_dataloader(self) -> EvalLoader:
        """This process's share of the validation images (of the test images if none are held out)."""
        return self._eval_loader(self.validation)

    def test_dataloader(self) -> EvalLoader:
        """This process's share of the test images."""
        return self._eval_loader(self.test)

    def state_dict(self) -> dict[str, Any]:
        """How far the training loader has come."""
        return self._train_loader.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue training where it was.

        Lightning restores stateful loaders too, but not if something has asked for the number of batches before, as
        schedules do (`Trainer.estimated_stepping_batches`); a data module is always restored.
        """
        if self.trainer is not None and self.trainer.state.fn == TrainerFn.FITTING:
            self._train_loader.load_state_dict(state_dict)
            self._to_resume = state_dict

    def _new_train_loader(self) -> TrainLoader:
        rank, world_size = self._process()
        return TrainLoader(
            self.train,
            self.batch_size,
            augment=self.augment,
            seed=self.seed,
            rank=rank,
            world_size=world_size,
            num_workers=self.num_workers,
            extra=self.extra,
            extra_share=self.extra_share,
        )

    def _eval_loader(self, source: ImageSource) -> EvalLoader:
        rank, world_size = self._process()
        return EvalLoader(source, self.batch_size, rank=rank, world_size=world_size, num_workers=self.num_workers)

    def _process(self) -> tuple[int, int]:
        """Rank and number of processes."""
        return (0, 1) if self.trainer is None else (self.trainer.global_rank, self.trainer.world_size)
