"""Datasets by name."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from orthogonium.data.cifar10 import load_cifar10
from orthogonium.data.digits import load_digits
from orthogonium.data.images import ImageData
from orthogonium.errors import ParameterError

DATASETS: dict[str, Callable[[Path | None], ImageData]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
}


def load_dataset(name: str = "digits", root: str | PathLike[str] | None = None) -> ImageData:
    """The dataset of a name.

    Args:
        name: a key of `DATASETS`.
        root: folder or archive of its files; the digits are bundled with scikit-learn and take none.

    >>> from orthogonium.data import load_dataset
    >>> data = load_dataset("digits")
    >>> len(data.train), len(data.test), data.image_shape, data.classes[3]
    (1346, 451, (1, 8, 8), '3')
    """
    if name not in DATASETS:
        raise ParameterError(f"Unknown dataset {name!r}: choose among {', '.join(DATASETS)}.")
    return DATASETS[name](None if root is None else Path(root).expanduser())
