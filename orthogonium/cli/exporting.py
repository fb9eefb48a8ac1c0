"""`orthogonium export`: a network without its constraints, for deployment.

Every file is read back and run beside the network, and the largest deviation of a logit is reported.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orthogonium.cli.arguments import AsJson, Checkpoint, new_file
from orthogonium.cli.output import print_json

if TYPE_CHECKING:
    from torch import Tensor, nn


class Format(str, Enum):
    """The formats a network can be written in."""

    onnx = "onnx"
    torch_export = "torch-export"
    safetensors = "safetensors"
    state_dict = "state-dict"


class Activations(str, Enum):
    """The forms activations can be written in."""

    relu = "relu"


SUFFIX = {
    Format.onnx: ".onnx",
    Format.torch_export: ".pt2",
    Format.safetensors: ".safetensors",
    Format.state_dict: ".pt",
}
_TOLERANCE = 1e-4  # of a logit; other runtimes add in another order


def export(
    checkpoint: Checkpoint,
    format: Annotated[
        Format,
        typer.Option(
            help="onnx and torch-export hold the computation; safetensors and state-dict the plain weights alone."
        ),
    ] = Format.onnx,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="The file to write.", show_default="the name of the checkpoint", callback=new_file
        ),
    ] = None,
    activations: Annotated[
        Activations | None,
        typer.Option(help="relu: MaxMin and its like are written by affine maps and ReLU, which verifiers read."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Write the network as plain layers: weights built once, no constraint left to compute.

    The file is read back and compared with the network on random images.
    Exit code 1 if a logit differs by more than 1e-4.

    Example: [bold]orthogonium export runs/digits --format onnx --out digits.onnx[/bold]
    """
    import torch

    from orthogonium.cli.networks import load_network
    from orthogonium.layers.freeze import freeze

    path = out or Path(f"{Path(checkpoint).stem or 'network'}{SUFFIX[format]}")
    new_file(path)
    _check_suffix(path, format)
    if activations is not None and format in (Format.safetensors, Format.state_dict):
        raise typer.BadParameter(
            f"{activations.value} changes the computation, which a file of --format {format.value} does not hold: "
            "use --format onnx or torch-export.",
            param_hint="'--activations'",
        )
    network = load_network(checkpoint)
    frozen = freeze(network.model, None if activations is None else activations.value, network.image_shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    dtype = next((p.dtype for p in network.model.parameters()), torch.float32)
    x = torch.rand(4, *network.image_shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    writers = {
        Format.onnx: _onnx,
        Format.torch_export: _torch_export,
        Format.safetensors: _safetensors,
        Format.state_dict: _state_dict,
    }
    restored = writers[format](frozen, x, path)
    with torch.no_grad():
        deviation = float((restored(x) - network.model(x)).abs().max())
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "format": format.value, "bytes": size, "deviation": deviation})
    else:
        print(f"{path}: {format.value}, {size / 2**20:.2f} MiB, logits within {deviation:.1e} of the network's")
    return 0 if deviation <= _TOLERANCE else 1


def _check_suffix(path: Path, format: Format) -> None:
    """Refuse the suffix of another format, which misleads; and torch reads exported programs only from .pt2."""
    others = [suffix for other, suffix in SUFFIX.items() if other is not format]
    if path.suffix in others or (format is Format.torch_export and path.suffix != SUFFIX[format]):
        raise typer.BadParameter(
            f"a file of --format {format.value} ends in {SUFFIX[format]}: got {path}.", param_hint="'--out'"
        )


Restored = Callable[["Tensor"], "Tensor"]


def _onnx(model: nn.Module, x: Tensor, path: Path) -> Restored:
    import torch

    try:
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}: --format onnx needs `pip install onnx onnxruntime onnxscript`.") from error
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it tells of packages that are not needed
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter, about itself
        program = torch.onnx.export(
            model, (x,), dynamo=True, verbose=False, input_names=["images"], output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )  # fmt: skip
        assert program is not None
        program.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def _torch_export(model: nn.Module, x: Tensor, path: Path) -> Restored:
    import torch

    batch = torch.export.Dim("batch")
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=({0: batch},)), path)
    return torch.export.load(path).module()


def _safetensors(model: nn.Module, x: Tensor, path: Path) -> Restored:
    from orthogonium.models.weight_files import read_state, write_state

    write_state(model.state_dict(), path)
    return _loaded(model, read_state(path))


def _state_dict(model: nn.Module, x: Tensor, path: Path) -> Restored:
    import torch

    torch.save(model.state_dict(), path)
    return _loaded(model, torch.load(path, weights_only=True))


def _loaded(model: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    """The weights of the file in a copy that had forgotten its own."""
    from copy import deepcopy

    import torch

    copy = deepcopy(model)
    with torch.no_grad():
        for p in copy.parameters():
            p.zero_()
    copy.load_state_dict(weights)
    return copy
