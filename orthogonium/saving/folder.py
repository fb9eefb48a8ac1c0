"""`save` and `load`: a network as a folder of `config.json`, `model.safetensors` and `README.md`.

Note [Saved or refused]
A folder holds the call of `create_model` that makes the network, and its state. So before anything is written, the
network is rebuilt by that call, and it is saved only if the new one has the same structure (Note [Same structure]) and,
given the state, computes the same. Loading compares the result with what was computed then: if another version of the
library or of a method computes something else, that is an error, too.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

import orthogonium
from orthogonium.errors import CheckpointError, ExportError, OrthogoniumError, ParameterError
from orthogonium.models.origin import build, origin_of
from orthogonium.models.weight_files import check_fit, read_state, write_state
from orthogonium.saving.card import ModelCard, card_text
from orthogonium.saving.config import DTYPES, FORMAT, Config
from orthogonium.saving.probe import TOLERANCE, deviation, probe
from orthogonium.saving.structure import first_difference

CONFIG, WEIGHTS, CARD = "config.json", "model.safetensors", "README.md"
_INSTEAD = "Keep its state_dict (torch.save) beside the code that builds it."


def save(
    model: nn.Module, folder: str | os.PathLike[str], card: ModelCard | None = None, *, overwrite: bool = False
) -> Path:
    """Write a network of `create_model` into a folder: how it is built, its weights, and a card that describes it.

    The network that `load` restores computes the same, bit for bit on the same machine. A network that was changed
    after its creation (layers replaced, hooks, other constants, plain copies by `freeze`, several dtypes, …) is
    refused. The dtype and the `requires_grad` flags of parameters are saved; modes (train, eval), devices and memory
    formats are not.

    Args:
        model: a network from `create_model` or `load_checkpoint`, trained or not; it is left unchanged.
        folder: created if it does not exist.
        card: what only the author knows, for `README.md`. With a card, even an empty one, the Lipschitz bound is
            measured for it, which takes most of a minute for ImageNet-size networks.
        overwrite: whether to replace the files in a folder that is not empty.

    Returns:
        The folder.

    Raises:
        ExportError: if a call of `create_model` does not reproduce this network.

    >>> import tempfile
    >>> import orthogonium
    >>> from orthogonium.models import create_model
    >>> model = create_model("aocnet_tiny", (1, 8, 8), widths=(4,), hidden=()).eval()
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = orthogonium.save(model, f"{place}/network")
    ...     print(sorted(path.name for path in folder.iterdir()))
    ...     same = orthogonium.load(folder)
    ['README.md', 'config.json', 'model.safetensors']
    >>> x = torch.rand(2, 1, 8, 8)
    >>> torch.equal(same(x), model(x))
    True
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not (overwrite and folder.is_dir()):
        raise ParameterError(
            f"{folder} exists and is not an empty folder: choose another one, or pass overwrite=True, which replaces "
            f"{CONFIG}, {WEIGHTS} and {CARD} in it."
        )
    twin, config = _checked(model)
    text = card_text(twin, config, card)
    folder.mkdir(parents=True, exist_ok=True)
    weights = folder / f"{WEIGHTS}.partial"
    write_state(model.state_dict(), weights)
    entries = replace(config, sha256=_digest(weights))
    os.replace(weights, folder / WEIGHTS)
    (folder / CARD).write_text(text, encoding="utf-8")
    (folder / CONFIG).write_text(entries.to_json(), encoding="utf-8")  # last: without it the folder holds no network
    return folder


def load(folder: str | os.PathLike[str], *, device: torch.device | str | None = None) -> nn.Module:
    """Load the network from a folder written by `save`, in eval mode. Nothing in the folder is executed.

    Args:
        folder: a folder with `config.json` and `model.safetensors`.
        device: where to put the network; the CPU if None.

    Raises:
        CheckpointError: if a file is missing, damaged or of a newer format, or the network is not what was saved.
        ShapeError: if the weights are those of another network.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise CheckpointError(f"There is no folder {folder}.")
    config = Config.read(folder / CONFIG)
    path = folder / WEIGHTS
    state = read_state(path)
    if _digest(path) != config.sha256:
        raise CheckpointError(
            f"{path} is damaged, or was not saved together with {CONFIG}: its SHA-256 is another one."
        )
    try:
        model = _built(config)
    except (OrthogoniumError, TypeError) as error:
        raise CheckpointError(f"{folder} holds a network that cannot be built here: {error}") from error
    own = model.state_dict()
    check_fit(state, own, str(path), config.model)
    for name, value in state.items():
        if value.dtype != own[name].dtype:
            raise CheckpointError(f"{path}: {name} is {value.dtype}, where {CONFIG} says {own[name].dtype}.")
    model.load_state_dict(state)
    _freeze(model, config, folder)
    found = deviation(probe(model, config.image_shape), config.probe)
    if not found <= TOLERANCE:
        raise CheckpointError(
            f"{folder} was saved by orthogonium {config.version}. What {orthogonium.__version__} builds of it computes "
            f"something else: outputs for the test image differ by {found:.1e}, relative to the largest. Use the "
            "version that wrote it, with the same methods registered."
        )
    return model.eval().to(device) if device is not None else model.eval()


def _checked(model: nn.Module) -> tuple[nn.Module, Config]:
    """A rebuilt network that computes the same, and how it is built. Note [Saved or refused]."""
    origin = origin_of(model)
    if origin is None:
        raise ExportError(
            f"Only networks of create_model remember how they are built, and this {type(model).__name__} is none (what "
            f"wraps one must be taken off). {_INSTEAD}"
        )
    if origin.code:
        raise ExportError(
            f"The network was made with {', '.join(origin.code)} given as code (a class or function), which a folder "
            f"cannot hold: use names, maybe of a registered method. {_INSTEAD}"
        )
    state = model.state_dict()
    if other := [k for k, v in state.items() if not isinstance(v, Tensor) or k.endswith("_extra_state")]:
        raise ExportError(f"The state has entries that are not tensors: {', '.join(other)}. {_INSTEAD}")
    frozen = tuple(k for k, p in model.named_parameters(remove_duplicate=False) if not p.requires_grad)
    config = Config(
        FORMAT, orthogonium.__version__, origin.name, origin.image_shape, origin.n_classes, origin.lipschitz,
        origin.options, _dtype(state), frozen, "", (),
    )  # fmt: skip
    twin = _built(config)
    if difference := first_difference(model, twin):
        raise ExportError(
            f"The network is not what create_model({origin.name!r}, …) makes, so that a folder would hold another one: "
            f"{difference}. Save it before it is changed, or undo the change. {_INSTEAD}"
        )
    twin.load_state_dict(state)
    outputs = tuple(probe(twin, origin.image_shape))
    found = deviation(outputs, probe(model, origin.image_shape))
    if not found <= TOLERANCE:
        raise ExportError(
            f"Outputs of the network for a test image are not finite, or not those of one that was built anew and got "
            f"its state: they differ by {found:.1e}, relative to the largest. {_INSTEAD}"
        )
    return twin.eval(), replace(config, probe=outputs)


def _built(config: Config) -> nn.Module:
    """The network with random weights on the CPU, whatever the caller's device; the random state is unchanged."""
    with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.inference_mode(False):
        model = build(config.model, config.image_shape, config.n_classes, config.options, config.lipschitz)
    return model.to(DTYPES[config.dtype])


def _dtype(state: dict[str, Tensor]) -> str:
    """The name of the dtype of all floating tensors."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    found = {v.dtype for v in state.values() if v.is_floating_point() or v.is_complex()} or {torch.get_default_dtype()}
    if len(found) > 1 or not found <= names.keys():
        raise ExportError(
            f"A saved network has one dtype ({', '.join(DTYPES)}): got {', '.join(sorted(map(str, found)))}. Convert "
            "the network, e.g. by model.float()."
        )
    return names[found.pop()]


def _freeze(model: nn.Module, config: Config, folder: Path) -> None:
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if unknown := [name for name in config.frozen if name not in parameters]:
        raise CheckpointError(f"{folder / CONFIG}: frozen has names of no parameter: {', '.join(unknown)}.")
    for name, p in parameters.items():
        p.requires_grad_(name not in config.frozen)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
