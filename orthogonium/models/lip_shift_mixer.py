"""A network without spatial kernels: channels are shifted in four directions, then mixed by an orthogonal matrix.

Menon, Franco, Günnemann (2025), "LipShiFT: a certifiably robust shift-based vision transformer", after Wang, Zhao,
Tang, Luo, Zeng (2022), "When shift operation meets vision transformer: an extremely simple alternative to attention
mechanism".

A circular shift is a permutation of pixels, so every layer is an isometry and a whole block costs one 1×1 convolution,
to build and to apply.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.layers import ChannelShift, PositionalBias
from orthogonium.models.network_parts import ClassifierParts, check_image_shape
from orthogonium.models.registry import register


@register(image_shape=(3, 32, 32), large={"patch": 7})
def lip_shift_mixer(
    image_shape: Sequence[int],
    n_classes: int,
    parts: ClassifierParts = ClassifierParts(patch=2, pool="l2"),
    *,
    dim: int = 128,
    depth: int = 8,
    shift: int = 1,
) -> nn.Module:
    """Shift mixer: circular shifts of channels for space and 1×1 convolutions for channels, by turns.

    Args:
        image_shape: channels, height, width.
        n_classes: number of logits.
        parts: the layers of the network and its two ends.
        dim: channels of all convolutions, at least 5: four parts are shifted, the rest stays.
        depth: number of pairs of a shift and a convolution.
        shift: pixels by which each shift moves.
    """
    shape = check_image_shape("lip_shift_mixer", image_shape, n_classes)
    if dim < 5 or depth < 1 or shift < 1:
        raise ParameterError(
            "lip_shift_mixer needs dim ≥ 5, a part of the channels for each direction and one that stays, depth ≥ 1 "
            f"and shift ≥ 1: got dim={dim}, depth={depth} and shift={shift}."
        )
    first, (channels, height, width) = parts.stem("lip_shift_mixer", shape)
    features = [*parts.unit(channels, dim, 1), PositionalBias((dim, height, width))]
    for _ in range(depth):
        features += [ChannelShift(shift), *parts.unit(dim, dim, 1)]
    return parts.assemble(first, features, (dim, height, width), n_classes)
