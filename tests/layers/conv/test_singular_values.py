import math

import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.layers.conv.aoc import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d
from orthogonium.layers.conv.singular_values import get_conv_sv
from tests.spectral.zoo import WrappedConv, fill, oracle_matrix, oracle_norms_of_groups, oracle_values

D = torch.float64


@pytest.mark.parametrize("dtype", [torch.float32, D])
@pytest.mark.parametrize(
    ("make", "geometry", "size"),
    [
        (nn.Conv2d, {"padding": 1}, (6, 6)),
        (nn.Conv2d, {"padding": 1, "padding_mode": "circular"}, (6, 6)),
        (nn.Conv2d, {"padding": 1, "padding_mode": "circular", "stride": 2}, (6, 6)),
        (nn.Conv2d, {"stride": 2, "dilation": 2, "groups": 2}, (7, 7)),
        (nn.ConvTranspose2d, {"stride": 2, "padding": 1}, (4, 4)),
        (nn.Conv1d, {"padding": 1}, (12,)),
    ],
)
def test_certified_and_sharp(make, geometry, size, dtype):
    layer = make(4, 6, 3, dtype=dtype, **geometry)
    exact = oracle_norms_of_groups(layer, (4, *size)).amax()
    for imsize in (size, None):
        sigma, rank = get_conv_sv(layer, n_iter=6, imsize=imsize)
        assert exact <= sigma <= exact * (1.02 if layer.padding_mode == "circular" and imsize else 1.5)
        assert 0 < rank <= 1
        assert not sigma.requires_grad
    if len(set(size)) == 1:
        assert get_conv_sv(layer, 6, imsize=size[0])[0] == get_conv_sv(layer, 6, imsize=size)[0]


def test_steps_sharpen():
    layer = nn.Conv2d(8, 8, 3, padding=1)
    values = [get_conv_sv(layer, n, return_stab_rank=False).item() for n in (1, 3, 6)]
    assert values[0] > values[1] > values[2]


def test_common_factor_of_stride_and_dilation():
    """A kernel with orthonormal rows, stride 4 and dilation 2: windows overlap, and the layer expands."""
    layer = WrappedConv(1, 16, 4, 4, 2)
    layer.weight.data = nn.init.orthogonal_(torch.empty(16, 16, dtype=D)).reshape(16, 1, 4, 4)
    exact = oracle_values(layer, (1, 16, 16))[0]
    assert exact > 1.4
    for imsize in (16, None):
        assert exact <= get_conv_sv(layer, 6, imsize=imsize, return_stab_rank=False) <= 1.1 * exact


def test_groups_are_a_maximum():
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, bias=False, dtype=D)
    layer.weight.data[:2] *= 3
    exact = oracle_norms_of_groups(layer, (4, 8, 8))
    sigma, rank = get_conv_sv(layer, 6, imsize=8)
    assert exact.amax() <= sigma < exact.prod() + exact.amax()
    assert sigma <= 1.1 * exact.amax()
    sigmas, ranks = zip(*get_conv_sv(layer, 6, imsize=8, agg_groups=False), strict=True)
    assert len(sigmas) == len(ranks) == 2
    assert max(sigmas) == sigma
    assert sum(ranks) / 2 == pytest.approx(rank.item())
    assert all(s >= e for s, e in zip(sigmas, exact, strict=True))
    assert len(get_conv_sv(layer, 6, agg_groups=False, return_stab_rank=False)) == 2


def test_strided_groups():
    layer = nn.Conv2d(6, 4, 3, 2, 1, groups=2, dtype=D)
    exact = oracle_norms_of_groups(layer, (6, 8, 8))
    sigmas, _ = zip(*get_conv_sv(layer, 5, agg_groups=False), strict=True)
    assert all(s >= e for s, e in zip(sigmas, exact, strict=True))


def test_without_a_size_no_size_is_underestimated():
    for seed in range(6):
        torch.manual_seed(seed)
        layer = nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular", dtype=D)
        sigma = get_conv_sv(layer, 3, return_stab_rank=False)
        assert all(sigma >= oracle_values(layer, (2, n, n))[0] for n in (2, 5, 7))


def test_dilation_is_not_ignored():
    # dilated by 2 on two pixels all taps meet: norm 3; by 1 they do not all
    layer = nn.Conv1d(1, 1, 3, padding=2, dilation=2, padding_mode="circular", bias=False)
    layer.weight.data = torch.tensor([[[1.0, -1.0, 1.0]]])
    for n in (2, 3, 4, 6):
        assert get_conv_sv(layer, 4, imsize=n, return_stab_rank=False) >= oracle_values(layer.double(), (1, n))[0]


def test_stable_rank_is_a_share_of_the_full_rank():
    orthogonal = fill(nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular", dtype=D), "orthogonal")
    for imsize in (5, None):
        assert get_conv_sv(orthogonal, 3, imsize=imsize)[1] == pytest.approx(1, abs=1e-4)
    layer = nn.Conv2d(3, 2, 3, 2, 1, dtype=D)
    values = torch.linalg.svdvals(oracle_matrix(layer, (3, 6, 6)))
    sigma, rank = get_conv_sv(layer, 8, imsize=6)
    expected = (values.square().sum() / sigma.square() / len(values)).item()
    assert rank == pytest.approx(expected, rel=1e-9)
    assert get_conv_sv(fill(layer, "zero"), 2) == (0, 0)


def test_differentiable_if_not_detached():
    layer = nn.Conv2d(3, 4, 3, padding=1)
    sigma, rank = get_conv_sv(layer, 4, detach=False, device="cpu")
    (sigma + rank).backward()
    assert torch.isfinite(layer.weight.grad).all()
    assert layer.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("flops", [0.0, 1e6, 1e9])
def test_bounded_cost(flops, monkeypatch):
    monkeypatch.setattr("orthogonium.spectral.stable_rank.MOST_FLOPS", flops)
    orthogonal = fill(nn.Conv3d(2, 2, 3, padding=1), "orthogonal")
    assert math.isclose(get_conv_sv(orthogonal, 12, return_stab_rank=False).item(), 1, rel_tol=1e-4)
    layer = nn.Conv2d(3, 3, 3, padding=1, dtype=D)
    exact = oracle_values(layer, (3, 12, 12))[0]
    assert exact <= get_conv_sv(layer, 8, return_stab_rank=False) <= 1.1 * exact


def test_needs_a_convolution():
    for layer in (nn.ReLU(), nn.Linear(2, 2)):
        with pytest.raises(ParameterError, match="convolution"):
            get_conv_sv(layer, 3)
    with pytest.raises(ParameterError, match="step"):
        get_conv_sv(nn.Conv1d(1, 1, 3), 0)


class StatedConv(AdaptiveOrthoConv2d):
    def spectral_geometry(self):
        return {"extend": True}


class StatedConvTranspose(AdaptiveOrthoConvTranspose2d):
    def spectral_geometry(self):
        return {"extend": self.padding_mode == "circular"}


@pytest.mark.parametrize("layer_class", [StatedConv, StatedConvTranspose])
@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(("k", "s", "padding"), [(3, 1, 1), (3, 2, 1), (4, 2, 0), (5, 3, 2), (2, 2, 0), (3, 2, "same")])
def test_orthogonal_layers(layer_class, mode, k, s, padding):
    if layer_class is StatedConvTranspose and padding == "same":
        mode = "circular"  # the only mode in which a transposed layer has it
    layer = layer_class(4, 4, k, stride=s, padding=padding, padding_mode=mode, groups=2, dtype=D)
    for n in (6, 7):
        exact = oracle_norms_of_groups(layer, (4, n, n)).amax()
        for imsize in (n, None):
            sigma = get_conv_sv(layer, 3, imsize=imsize, return_stab_rank=False)
            assert exact <= sigma < 1.0001
