"""Build a model by name, trained or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from orthogonium.models.registry import REGISTRY, ModelEntry, check_options, find


def create_model(
    name: str,
    image_shape: Sequence[int] | None = None,
    n_classes: int | None = None,
    *,
    pretrained: bool = False,
    **options: Any,
) -> nn.Module:
    """The network of this name, from images to logits.

    Args:
        name: one of `list_models()`.
        image_shape: (channels, height, width); None for the default of the model.
        n_classes: number of logits; None for the default of the model, 10 or 1000.
        pretrained: whether to load trained weights.
        options: of the model, see `describe_model(name).options`.

    >>> from orthogonium.models import create_model
    >>> model = create_model("aocnet_tiny", (1, 8, 8), widths=(8, 16))
    >>> model(torch.rand(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    entry = find(name)
    check_options(entry, options)
    return entry.build(image_shape or entry.image_shape, n_classes or entry.n_classes, **options)


def list_models() -> list[str]:
    """Names of all models, sorted."""
    return sorted(REGISTRY)


def describe_model(name: str) -> ModelEntry:
    """Summary, provenance, default image shape and options of a model.

    >>> from orthogonium.models import describe_model
    >>> describe_model("aocnet_tiny").options["kernel_size"]
    3
    """
    return find(name)
