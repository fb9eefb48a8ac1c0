"""Published names of the networks in `orthogonium.models`, and the table of them.

The arguments that choose layers (`conv`, `act`, `lin`, `norm`, `pool`, `skip`) are classes, most often in a
`ClassParam`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from orthogonium.class_param import ClassParam
from orthogonium.layers import AdaptiveOrthoConv2d, PrescaledAdditiveResidual
from orthogonium.models.aocnet_v1 import aocnet_v1 as AOCNetV1
from orthogonium.models.bcop_large_cnn import bcop_large_cnn as BCOPLargeCNN
from orthogonium.models.conv_mixer_inspired import conv_mixer_inspired as ConvMixerInspired
from orthogonium.models.lip_resnet import lip_resnet as LipResNet
from orthogonium.models.lip_vgg import lip_vgg as LipVGG
from orthogonium.models.patch_based_cnn import patch_based_cnn as PatchBasedCNN
from orthogonium.models.patch_based_cnn import patch_based_expanded_cnn as PatchBasedExapandedCNN
from orthogonium.models.published import AVG_POOL, BATCH_CENTERING, L2_POOL, MAXMIN, UNIT_NORM, ZERO_PADDED_CONV
from orthogonium.models.sllxbcop_resnet50 import published_resnet50 as SLLxBCOPResNet50
from orthogonium.models.staged_cnn import large_staged_cnn as LargeStagedCNN
from orthogonium.models.staged_cnn import staged_cnn as StagedCNN

__all__ = [
    "MODELS",
    "AOCNetV1",
    "BCOPLargeCNN",
    "ClassParam",
    "ConvMixerInspired",
    "LargeStagedCNN",
    "LipResNet",
    "LipVGG",
    "PatchBasedCNN",
    "PatchBasedExapandedCNN",
    "SLLxBCOPResNet50",
    "SplitConcatNetConfigs",
    "StagedCNN",
]

_CIRCULAR = ClassParam(AdaptiveOrthoConv2d, bias=False, padding="same", padding_mode="circular")


def _config(
    expand_factor: int,
    block_depth: int,
    kernel_size: int,
    embedding_dim: int,
    groups: int | None,
    init_val: float,
    conv: ClassParam = ZERO_PADDED_CONV,
    norm: ClassParam | None = None,
    pool: ClassParam = AVG_POOL,
) -> dict[str, Any]:
    return {
        "expand_factor": expand_factor,
        "block_depth": block_depth,
        "kernel_size": kernel_size,
        "embedding_dim": embedding_dim,
        "groups": groups,
        "skip": ClassParam(PrescaledAdditiveResidual, init_val=init_val),
        "conv": conv,
        "act": MAXMIN,
        "lin": UNIT_NORM,
        "norm": norm,
        "pool": pool,
    }


SplitConcatNetConfigs: dict[str, dict[str, Any]] = {
    "M": _config(4, 2, 3, 1024, 32, 2.0, norm=BATCH_CENTERING, pool=L2_POOL),
    "M2": _config(2, 2, 5, 1024, 4, 2.0),
    "M3": _config(2, 3, 5, 2048, None, 3.0),
    "M4": _config(2, 3, 5, 2048, None, 3.0, conv=_CIRCULAR, pool=L2_POOL),
    "L": _config(2, 3, 5, 3072, None, 3.0),
}
"""Options of `AOCNetV1`, by size."""

MODELS: dict[str, Callable[..., nn.Module]] = {
    **{f"SplitConcatNet-{size}": functools.partial(AOCNetV1, **SplitConcatNetConfigs[size]) for size in ("M", "M2")},
    "AOCNetV1": AOCNetV1,
    "LipResNet": LipResNet,
    "LipVGG": LipVGG,
    "PatchBasedCNN": PatchBasedCNN,
    "PatchBasedExapandedCNN": PatchBasedExapandedCNN,
    "ConvMixerInspired": ConvMixerInspired,
    "BCOPLargeCNN": BCOPLargeCNN,
    "StagedCNN": StagedCNN,
    "LargeStagedCNN": LargeStagedCNN,
    "SLLxBCOPResNet50": SLLxBCOPResNet50,
}
"""The networks by their published names."""
