"""Largest singular value and stable rank of a convolution, as one call: a view of `orthogonium.spectral`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from orthogonium.errors import ParameterError
from orthogonium.spectral import Convolution, circular_gram_bound, geometry_of, gram_bound, norm_bound
from orthogonium.spectral.windows import check_size, frobenius, sides

__path__: list[str] = []  # Note [Published paths] of `published/paths.py`
MOST_FLOPS = 2.5e10  # of a bound, which take about a minute


def get_conv_sv(
    layer: nn.Module,
    n_iter: int,
    agg_groups: bool = True,
    return_stab_rank: bool = True,
    device: torch.device | str | None = None,
    detach: bool = True,
    imsize: int | Sequence[int] | None = None,
) -> Tensor | list[Tensor] | tuple[Tensor, Tensor] | list[tuple[Tensor, Tensor]]:
    """Certified upper bound of the largest singular value of a convolution, by Gram iteration, and its stable rank.

    The bound is the smaller of Gram iteration on the kernel, which is exact for orthogonal layers, and at each
    frequency; it holds for every padding, stride, dilation and group, rounding included. The stable rank ‖A‖_F²/‖A‖₂²
    uses it, and so is a bound from below; it is returned as a fraction of the full rank, 1 for an orthogonal layer.

    Args:
        layer: a convolution, transposed or not, whose geometry is known (`orthogonium.spectral.geometry_of`).
        n_iter: Gram steps; 3 to 6 are usual. For layers so large that they take minutes, `norm_bound` stands in.
        agg_groups: the maximum of the bounds and the mean of the stable ranks of all groups; False for a list of them.
        return_stab_rank: False for the bound alone.
        device: where to compute; that of the layer by default.
        detach: cut the graph. The bound is differentiable.
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
    size = (imsize,) * len(conv.stride) if isinstance(imsize, int) else imsize
    sigma = _bound(conv, size, n_iter)
    if not return_stab_rank:
        return sigma.amax() if agg_groups else list(sigma.unbind())
    stable_rank = _full_rank_share(conv, size) / torch.where(sigma > 0, sigma, torch.ones_like(sigma)).square()
    if agg_groups:
        return sigma.amax(), stable_rank.mean()
    return list(zip(sigma.unbind(), stable_rank.unbind(), strict=True))


def _bound(conv: Convolution, size: Sequence[int] | None, n_iter: int) -> Tensor:
    """(groups,) the smaller of both forms of Gram iteration, as far as they are affordable."""
    rows, columns = sorted((conv.weight.shape[0] // conv.groups, conv.weight.shape[1]))

    def flops(density: int, taps: float) -> float:
        """Of one step at `density` frequencies for each tap after the first, on a kernel of so many taps."""
        frequencies = math.prod(density * (k - 1) + 1 for k in conv.kernel_size)
        return frequencies * (4.0 * conv.groups * rows * columns * (rows + taps) + 100 * taps)

    grown, steps = [math.prod(2**n * (k - 1) + 1 for k in conv.kernel_size) for n in range(n_iter + 1)], 1
    while steps < n_iter and flops(2 ** (steps + 1), grown[steps + 1]) <= MOST_FLOPS:
        steps += 1
    on_kernel = gram_bound(conv, size, steps=steps, per_group=True)
    if n_iter * flops(16, grown[0]) <= MOST_FLOPS:  # sixteen frequencies for each tap: a grid within 1 %
        return torch.minimum(on_kernel, circular_gram_bound(conv, size, steps=n_iter, per_group=True))
    return torch.minimum(on_kernel, norm_bound(conv, size, per_group=True))


def _full_rank_share(conv: Convolution, size: Sequence[int] | None) -> Tensor:
    """(groups,) ‖A‖_F² over the full rank: of the operator, or for one window per stride if the size is not known."""
    rows, columns = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    if size is None:
        squares = conv.weight.double().square().reshape(conv.groups, -1).sum(1)
        return squares / min(rows, columns * math.prod(conv.stride))
    image, windows = sides(conv, check_size(conv, size))
    return frobenius(conv, size) / min(rows * math.prod(windows), columns * math.prod(image))
