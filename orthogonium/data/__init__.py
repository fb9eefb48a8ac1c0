"""Images to train and certify on, with pixels in [0, 1], and loaders whose batches are exactly reproducible."""

from typing import TYPE_CHECKING

from orthogonium.data.augment import (
    AUGMENTATIONS,
    Affine,
    Augmentation,
    CropFlip,
    Identity,
    ResizedCrop,
    make_augmentation,
)
from orthogonium.data.datasets import DATASETS, load_dataset
from orthogonium.data.folder import FolderImages
from orthogonium.data.image_data import ImageData, Images, ImageSource, stratified_split, unit_pixels
from orthogonium.data.joined import JoinedImages
from orthogonium.data.loader import EvalLoader, TrainLoader
from orthogonium.data.npz import ArrayImages, load_npz
from orthogonium.errors import DataError

if TYPE_CHECKING:
    from orthogonium.data.module import ImageDataModule

__all__ = [
    "AUGMENTATIONS",
    "DATASETS",
    "Affine",
    "ArrayImages",
    "Augmentation",
    "CropFlip",
    "DataError",
    "EvalLoader",
    "FolderImages",
    "Identity",
    "ImageData",
    "ImageDataModule",
    "ImageSource",
    "Images",
    "JoinedImages",
    "ResizedCrop",
    "TrainLoader",
    "load_dataset",
    "load_npz",
    "make_augmentation",
    "stratified_split",
    "unit_pixels",
]


def __getattr__(name: str) -> object:
    if name == "ImageDataModule":  # imports lightning, which takes seconds and may not be there
        from orthogonium.data.module import ImageDataModule

        return ImageDataModule
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
