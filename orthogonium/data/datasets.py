"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from os.path import expanduser  # that of pathlib raises if there is no such user
from pathlib import Path

from orthogonium.data.cifar10 import load_cifar10
from orthogonium.data.digits import load_digits
from orthogonium.data.folder import load_image_folder
from orthogonium.data.idx import load_fashion_mnist, load_mnist
from orthogonium.data.image_data import ImageData
from orthogonium.errors import ParameterError

DATASETS: dict[str, Callable[..., ImageData]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "mnist": load_mnist,
    "fashion-mnist": load_fashion_mnist,
    "image-folder": load_image_folder,
}


def load_dataset(
    name: str = "digits", root: str | PathLike[str] | None = None, *, image_size: int | None = None
) -> ImageData:
    """Load a dataset by name.

    Args:
        name: a key of `DATASETS`.
        root: folder or archive of its files; the digits are bundled with scikit-learn and take none.
        image_size: side in pixels to which "image-folder" scales its images (224 if not given); only for that dataset.

    >>> from orthogonium.data import load_dataset
    >>> data = load_dataset("digits")
    >>> len(data.train), len(data.test), data.image_shape, data.classes[3]
    (1346, 451, (1, 8, 8), '3')
    """
    if name not in DATASETS:
        raise ParameterError(f"Unknown dataset {name!r}: choose among {', '.join(DATASETS)}.")
    place = None if root is None else Path(expanduser(root))
    if image_size is None:
        return DATASETS[name](place)
    if name != "image-folder":
        raise ParameterError(f"{name} has images of one size: got image_size={image_size}. Leave it out.")
    return load_image_folder(place, image_size)
