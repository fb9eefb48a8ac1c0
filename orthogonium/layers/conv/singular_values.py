"""Largest singular value and stable rank of a convolution, as one call: a view of `orthogonium.spectral`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, overload

import torch
from torch import Tensor, nn

from orthogonium.annotations import as_int
from orthogonium.errors import ParameterError
from orthogonium.spectral import geometry_of
from orthogonium.spectral.stable_rank import full_rank_share, gram_norms

__path__: list[str] = []  # Note [Published paths] of `published/paths.py`

ImageSize = int | Sequence[int] | None


@overload
def get_conv_sv(
    layer: nn.Module,
    n_iter: int,
    agg_groups: Literal[True] = True,
    return_stab_rank: Literal[True] = True,
    device: torch.device | str | None = None,
    detach: bool = True,
    imsize: ImageSize = None,
) -> tuple[Tensor, Tensor]: ...


@overload
def get_conv_sv(
    layer: nn.Module,
    n_iter: int,
    agg_groups: Literal[True] = True,
    *,
    return_stab_rank: Literal[False],
    device: torch.device | str | None = None,
    detach: bool = True,
    imsize: ImageSize = None,
) -> Tensor: ...


@overload
def get_conv_sv(
    layer: nn.Module,
    n_iter: int,
    agg_groups: bool = True,
    return_stab_rank: bool = True,
    device: torch.device | str | None = None,
    detach: bool = True,
    imsize: ImageSize = None,
) -> Tensor | list[Tensor] | tuple[Tensor, Tensor] | list[tuple[Tensor, Tensor]]: ...


def get_conv_sv(
    layer: nn.Module,
    n_iter: int,
    agg_groups: bool = True,
    return_stab_rank: bool = True,
    device: torch.device | str | None = None,
    detach: bool = True,
    imsize: ImageSize = None,
) -> Tensor | list[Tensor] | tuple[Tensor, Tensor] | list[tuple[Tensor, Tensor]]:
    """Certified upper bound on the largest singular value of a convolution, by Gram iteration, and its stable rank.

    The bound is the smaller of two: Gram iteration on the kernel, which is exact for orthogonal layers, and at each
    frequency. It holds for every padding, stride, dilation and group, rounding included. The stable rank ‖A‖_F²/‖A‖₂²
    uses it, and so is a lower bound; it is returned as a fraction of the full rank, 1 for an orthogonal layer.

    Args:
        layer: a convolution, transposed or not, whose geometry is known (`orthogonium.spectral.geometry_of`).
        n_iter: number of Gram steps, usually 3 to 6. Layers so large that these would take minutes use `norm_bound`.
        agg_groups: the maximum of the bounds and the mean of the stable ranks of all groups; False for one per group.
        return_stab_rank: False for the bound alone.
        device: where to compute; the device of the layer by default.
        detach: False to keep the graph: the bound is differentiable.
        imsize: spatial size of the input; None for a bound that holds at every size.

    Returns:
        The bound, or (bound, stable rank), in float64; a list with one of these for each group if not `agg_groups`.

    >>> from orthogonium.layers.conv.singular_values import get_conv_sv
    >>> conv = torch.nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    >>> _ = torch.nn.init.dirac_(conv.weight)
    >>> sigma, stable_rank = get_conv_sv(conv, n_iter=3)
    >>> round(sigma.item(), 4), round(stable_rank.item(), 4)
    (1.0, 1.0)
    """
    conv = geometry_of(layer)
    if conv is None or not conv.stride:
        raise ParameterError(
            f"get_conv_sv reads the weight of a convolution and knows no geometry of {type(layer).__name__}. "
            "Use `orthogonium.spectral.spectrum(layer, input_shape)`."
        )
    weight = conv.weight.detach() if detach else conv.weight
    conv = conv.with_weight(weight if device is None else weight.to(device))
    imsize = as_int(imsize)
    size = (imsize,) * len(conv.stride) if isinstance(imsize, int) else imsize
    sigma = gram_norms(conv, size, n_iter)
    if not return_stab_rank:
        return sigma.amax() if agg_groups else list(sigma.unbind())
    stable_rank = full_rank_share(conv, size) / torch.where(sigma > 0, sigma, torch.ones_like(sigma)).square()
    if agg_groups:
        return sigma.amax(), stable_rank.mean()
    return list(zip(sigma.unbind(), stable_rank.unbind(), strict=True))
