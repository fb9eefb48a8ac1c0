"""What layers tell about their spectra, in the form of 0.0.4."""

import pytest
import torch

from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear, UnitNormLinear
from orthogonium.layers.conv.singular_values import get_conv_sv


@pytest.mark.parametrize("sizes", [(8, 4), (4, 8), (5, 5)])
def test_stable_rank_is_a_fraction_of_the_full_rank(sizes):
    assert OrthoLinear(*sizes).singular_values() == pytest.approx((1, 1, 1), abs=1e-5)
    layer = UnitNormLinear(*sizes)
    sigma = torch.linalg.svdvals(layer.weight.detach().double())
    expected = (sigma.square().sum() / sigma[0] ** 2 / min(sizes)).item()
    assert layer.singular_values() == pytest.approx((sigma[-1].item(), sigma[0].item(), expected))


def test_a_pair_for_each_group():
    layer = AdaptiveOrthoConv2d(8, 8, 3, groups=2)
    sigma, stable_rank = get_conv_sv(layer, 3)
    assert sigma == pytest.approx(1, abs=1e-4) and stable_rank == pytest.approx(1, abs=1e-3)
    pairs = get_conv_sv(layer, 3, agg_groups=False)
    assert [len(pair) for pair in pairs] == [2, 2]
    assert max(pair[0] for pair in pairs) == sigma
    assert len(get_conv_sv(layer, 3, agg_groups=False, return_stab_rank=False)) == 2
