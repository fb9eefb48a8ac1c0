"""What is in the wheel and the sdist of a clean clone: `python tests/release/contents.py CLONE FOLDER`."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

BESIDE_THE_PACKAGE = {
    "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "constraints.txt", "hubconf.py",
    "pyproject.toml", "setup.cfg",
}  # fmt: skip


def differences(found: set[str], expected: set[str]) -> list[str]:
    return [f"missing: {name}" for name in sorted(expected - found)] + [
        f"stray: {name}" for name in sorted(found - expected)
    ]


def main(clone: Path, folder: Path) -> None:
    listing = subprocess.run(["git", "ls-files", "orthogonium"], cwd=clone, capture_output=True, text=True, check=True)
    package = set(listing.stdout.split())
    assert any(name.endswith(".safetensors") for name in package) and "orthogonium/py.typed" in package
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    files = [name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")]
    metadata = {name.partition("/")[2] for name in files if ".dist-info/" in name}
    wrong = differences({name for name in files if ".dist-info/" not in name}, package)
    if "licenses/LICENSE" not in metadata:
        wrong.append("missing: the licence in the wheel")
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wrong += differences({n for n in names if not n.startswith("orthogonium.egg-info/")}, package | BESIDE_THE_PACKAGE)
    if wrong:
        sys.exit("\n".join(wrong))
    print(f"{wheel.name} ({wheel.stat().st_size / 2**20:.1f} MiB) and {sdist.name}: all {len(package)} files")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
