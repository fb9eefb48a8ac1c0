"""Files of a dataset: from a folder, compressed or not, or from a tar archive, with errors that say what to do."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from orthogonium.errors import DataError


def required_root(root: Path | None, name: str, contents: str) -> Path:
    """`root`, which must be given and exist."""
    if root is None:
        raise DataError(f"{name} is not bundled: root= must be {contents}.")
    if not root.exists():
        raise DataError(f"{name}: {root} does not exist. root= must be {contents}.")
    return root


def read_bytes(path: Path) -> bytes:
    """The contents of a file, unpacked if its name ends in `.gz`."""
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(
            f"{path} is cut short or no gzip file ({error}; {path.stat().st_size:,} bytes). Download it again."
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def read_members(archive: Path, names: Sequence[str]) -> dict[str, bytes]:
    """The members of a tar archive whose file names are among `names`; nothing is written to disk."""
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = Path(member.name).name
                if name in names and member.isfile() and (stream := tar.extractfile(member)) is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
        raise DataError(
            f"{archive} is cut short or no tar archive ({error}; {archive.stat().st_size:,} bytes). Download it again."
        ) from error
    return found
