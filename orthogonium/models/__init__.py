"""Networks by name: `create_model`, `list_models`, `describe_model`. One architecture per file."""

from orthogonium.models import (  # noqa: F401  (they register themselves)
    aocnet_tiny,
    aocnet_v1,
    bcop_large_cnn,
    conv_mixer_inspired,
    lip_convmixer,
    lip_resnet,
    lip_shift_mixer,
    lip_vgg,
    liresnet,
    patch_based_cnn,
    sllxbcop_resnet50,
    staged_cnn,
)
from orthogonium.models.create import create_model, describe_model, describe_pretrained, list_models
from orthogonium.models.registry import ModelEntry
from orthogonium.models.shipped_weights import Pretrained

__all__ = ["ModelEntry", "Pretrained", "create_model", "describe_model", "describe_pretrained", "list_models"]
