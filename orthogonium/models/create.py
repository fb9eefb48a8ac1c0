"""Build a model by name, trained or not."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.models import shipped_weights
from orthogonium.models.origin import build
from orthogonium.models.registry import REGISTRY, ModelEntry, find


def create_model(
    name: str,
    image_shape: Sequence[int] | None = None,
    n_classes: int | None = None,
    *,
    pretrained: bool = False,
    lipschitz: float = 1.0,
    **options: Any,
) -> nn.Module:
    """The network of this name, from images to logits.

    Args:
        name: one of `list_models()`; with `pretrained` also one of `list_models(pretrained=True)`.
        image_shape: (channels, height, width); None for the default of the model.
        n_classes: number of logits; None for the default of the model, 10 or 1000.
        pretrained: whether to load the weights that come with the library, of which there are at most a handful. Their
            options are adopted, arguments that contradict them are refused, and the model is in eval mode. An
            `n_classes` other than the one they were trained for gives a new, random head on the trained features.
        lipschitz: factor by which the constant of the network is multiplied, any positive number, in equal shares in
            each layer that is not inside a residual block (`orthogonium.layers.spread_constant`).
        options: options of the model, see `describe_model(name).options`.

    >>> from orthogonium.models import create_model
    >>> model = create_model("aocnet_tiny", (1, 8, 8), widths=(8, 16))
    >>> model(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    if pretrained and lipschitz != 1:
        raise ParameterError(
            f"Trained weights belong to the constants they were trained with: got lipschitz={lipschitz} for them. Put "
            "an `orthogonium.layers.Scale` behind the model."
        )
    if pretrained:
        return shipped_weights.load(shipped_weights.choose(name, image_shape, n_classes, options), n_classes)
    if name not in REGISTRY and name in (trained := shipped_weights.list_pretrained()):
        raise ParameterError(
            f"{name!r} are trained weights of the model {trained[name].model!r}: name that, or pass pretrained=True."
        )
    entry = find(name)
    shape = entry.image_shape if image_shape is None else image_shape
    return build(name, shape, entry.n_classes if n_classes is None else n_classes, options, lipschitz)


def list_models(pattern: str = "*", *, pretrained: bool = False) -> list[str]:
    """Names of all models, sorted; or of all trained weights.

    Args:
        pattern: which names to list, with the wildcards of file names.
        pretrained: whether to list the names of trained weights instead.

    >>> from orthogonium.models import list_models
    >>> list_models("lip_res*")
    ['lip_resnet', 'lip_resnet18', 'lip_resnet_tiny']
    """
    names = shipped_weights.list_pretrained() if pretrained else REGISTRY
    return sorted(name for name in names if fnmatchcase(name, pattern))


def describe_model(name: str) -> ModelEntry:
    """Summary, provenance, default image shape and options of a model.

    >>> from orthogonium.models import describe_model
    >>> describe_model("aocnet_tiny").options["kernel_size"]
    3
    """
    return find(name)


def describe_pretrained(name: str) -> shipped_weights.Pretrained:
    """What trained weights are for and what was measured with them: data, accuracy, certified accuracy, recipe.

    Args:
        name: name of the weights, or of a model for which there is one set of them.
    """
    return shipped_weights.choose(name, None, None, {})
