"""Pickles that hold data only: no name in them is looked up except those that rebuild a numpy array.

A pickle is a program; loading a downloaded one without restrictions runs whatever it says.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from orthogonium.errors import DataError


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    """How Python 3 writes bytes into old protocols; other codecs (some unpack archives) are refused."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"codec {encoding!r} is not permitted")
    return text.encode("latin1")


def _frombuffer(
    raw: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], order: Literal["C", "F"], axis_order: None = None
) -> np.ndarray:
    """How numpy writes arrays into protocol 5, except for arrays with permuted axes (`axis_order`)."""
    if axis_order is not None:
        raise pickle.UnpicklingError("arrays with permuted axes are not permitted")
    return np.frombuffer(raw, dtype=dtype).reshape(shape, order=order)


# The function behind every pickled array; its module moved between versions of numpy, so it is taken from an array.
_reconstruct: Any = np.empty(0).__reduce__()[0]
_PERMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy.core.numeric", "_frombuffer"): _frombuffer,
    ("numpy._core.numeric", "_frombuffer"): _frombuffer,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class _DataUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        try:
            return _PERMITTED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is not permitted in a file of data") from None


def load_plain_pickle(raw: bytes, path: str) -> Any:
    """What `raw` holds, if that is nothing but numbers, text, bytes, lists, tuples, dicts and numpy arrays.

    Args:
        raw: the pickle, possibly from Python 2 (its text becomes bytes).
        path: named in errors.
    """
    damaged = (pickle.UnpicklingError, EOFError, ValueError, TypeError, LookupError, AttributeError, OverflowError)
    try:
        return _DataUnpickler(io.BytesIO(raw), encoding="bytes").load()
    except damaged as error:
        raise DataError(
            f"{path} is cut short, or no pickle of plain data ({error}; {len(raw):,} bytes). Download it again."
        ) from error
