"""Certified CIFAR-10 in 30 minutes on two cores: our layers, then the published ones, in one network by one recipe.

Run with `.venv/bin/python -m benchmarks.cifar10 --root FOLDER` (an hour), where the folder holds `cifar-10-batches-bin`
or `cifar-10-batches-py`; `--minutes` shortens it, `--recipe FILE` trains by another recipe than the preset, `--out`
keeps checkpoints and histories. Nothing else should run.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
import tempfile
from pathlib import Path

from benchmarks.side_by_side import PEER, install_peer, table

PRESET = "cifar10-cpu-30min"


def published_layers() -> dict:
    """Layers of the published library, whose package has the name of ours: import it, then let ours take the name."""
    install_peer()
    sys.path.insert(0, str(PEER))
    conv = importlib.import_module("orthogonium.layers.conv.AOC").AdaptiveOrthoConv2d
    linear = importlib.import_module("orthogonium.layers.linear").OrthoLinear
    sys.path.remove(str(PEER))
    for name in [name for name in sys.modules if name.partition(".")[0] == "orthogonium"]:
        del sys.modules[name]
    return {"conv": conv, "lin": linear}


def train(
    connection, published: bool, file: Path | None, root: str, minutes: float, folder: Path, threads: int
) -> None:
    layers = published_layers() if published else {}
    import torch

    from orthogonium import certify
    from orthogonium.data import ImageDataModule
    from orthogonium.models import create_model
    from orthogonium.training import PRESETS, Recipe, fit, load_checkpoint

    torch.set_num_threads(threads)
    recipe = (Recipe.read(file) if file else PRESETS[PRESET]).replace(root=root, minutes=minutes)
    torch.manual_seed(recipe.seed)
    model = create_model(recipe.model, (3, 32, 32), 10, **recipe.model_options, **layers)
    result = fit(recipe, folder, model=model, progress=False)
    trained = load_checkpoint(result.checkpoint, model=model).model
    for module in trained.modules():  # the weights the layers apply: the bound and the certificates are of these
        if torch.nn.utils.parametrize.is_parametrized(module):
            torch.nn.utils.parametrize.remove_parametrizations(module, "weight")
    data = ImageDataModule(recipe.data, root, batch_size=500)
    data.setup("test")
    found = certify(trained, data.test_dataloader(), eps=[36 / 255, 72 / 255, 108 / 255])
    connection.send(
        {
            "steps": result.steps,
            "images per second": result.steps * recipe.batch_size / result.seconds,
            "clean": found.accuracy,
            "certified": found.certified_accuracy,
            "bound": found.bound.value,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--recipe", type=Path, help=f"a file, such as recipe.json of a run, instead of {PRESET}")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None, help="folder for checkpoints and histories")
    arguments = parser.parse_args()
    install_peer()
    context = multiprocessing.get_context("spawn")
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("ours", "published"):
            end, other = context.Pipe()
            folder = (arguments.out or Path(scratch)) / name
            settings = (arguments.recipe, arguments.root, arguments.minutes, folder, arguments.threads)
            process = context.Process(target=train, args=(other, name == "published", *settings))
            process.start()
            other.close()
            found = end.recv()
            process.join()
            percent = [f"{100 * value:.1f}" for value in (found["clean"], *found["certified"])]
            speed = f"{found['images per second']:.0f}"
            rows.append([name, found["steps"], speed, *percent, f"{found['bound']:.6f}"])
    header = ["layers", "steps", "images/s", "clean", "VRA@36/255", "VRA@72/255", "VRA@108/255", "measured bound"]
    table(header, rows)


if __name__ == "__main__":
    main()
