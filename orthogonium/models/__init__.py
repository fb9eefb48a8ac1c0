"""Networks by name: `create_model`, `list_models`, `describe_model`. One architecture per file."""

from orthogonium.models import aocnet_tiny as _aocnet_tiny  # noqa: F401  registers it
from orthogonium.models.create import create_model, describe_model, list_models
from orthogonium.models.registry import ModelEntry

__all__ = ["ModelEntry", "create_model", "describe_model", "list_models"]
