"""Handwritten digits that come with scikit-learn: 1797 grey images of 8×8 pixels, no download.

E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from pathlib import Path

import torch

from orthogonium.data.image_data import ImageData, Images, stratified_split
from orthogonium.errors import ParameterError, lacking

TEST_FRACTION = 0.25
SPLIT_SEED = 0


def load_digits(root: Path | None = None) -> ImageData:
    """The digits with pixels k/16 in [0, 1]; always the same quarter of each class is held out."""
    if root is not None:
        raise ParameterError(f"digits come with scikit-learn and take no root: got root={str(root)!r}.")
    try:
        from sklearn.datasets import load_digits as read
    except ModuleNotFoundError as error:
        raise lacking("The digits need scikit-learn") from error
    table = read()
    pixels = torch.from_numpy(table.images).to(torch.float32).div_(16).unsqueeze(1)
    labels = torch.from_numpy(table.target).to(torch.int64)
    keep, hold = stratified_split(labels, TEST_FRACTION, SPLIT_SEED)
    images = Images(pixels, labels)
    return ImageData(images.subset(keep), images.subset(hold), tuple(map(str, range(10))), "digits")
