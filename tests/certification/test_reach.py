"""Nothing is certified where numbers on the way may overflow, or where small ones may be lost."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from orthogonium import certify, lipschitz_bound
from orthogonium.layers import OrthoLinear
from orthogonium.layers.conv.sll import SDPBasedLipschitzResBlock


class _Norm(nn.Module):
    def __init__(self, order: float) -> None:
        super().__init__()
        self.order = order

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.linalg.vector_norm(x, self.order, dim=1, keepdim=True), x[:, :1]], 1)


class _RootOfSquares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.square().mean(1, keepdim=True).sqrt(), x[:, :1]], 1)


class _Detour(nn.Module):
    """The identity by way of large numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 64.0 * 2.0**-6


def _overflows_at(model: nn.Module, shape: tuple[int, ...], norm: float, dtype: torch.dtype) -> bool:
    """Whether some input of this norm has an output that is not finite."""
    flat = torch.zeros(4, torch.Size(shape).numel(), dtype=torch.float64)
    flat[0, 0], flat[1] = 1.0, 1.0
    flat[2:] = torch.randn(2, flat.shape[1], generator=torch.Generator().manual_seed(0))
    flat = flat / flat.norm(dim=1, keepdim=True) * norm
    with torch.no_grad():
        return not bool(model(flat.reshape(-1, *shape).to(dtype)).isfinite().all())


@pytest.mark.parametrize(
    ("model", "shape", "dtype"),
    [
        (nn.Linear(6, 3), (6,), torch.float16),
        (OrthoLinear(6, 3), (6,), torch.float16),
        (nn.Sequential(_Detour(), nn.Linear(6, 3)), (6,), torch.float16),
        (nn.Sequential(nn.Linear(6, 6), _RootOfSquares()), (6,), torch.float16),
        (_RootOfSquares(), (6,), torch.float32),
        (_Norm(2), (6,), torch.float32),
        (_Norm(8), (6,), torch.float32),
        (nn.Sequential(nn.Conv2d(2, 2, 3), nn.Flatten()), (2, 4, 4), torch.float16),
        (nn.Sequential(nn.Conv2d(2, 2, 1), nn.AdaptiveAvgPool2d(1)), (2, 4, 4), torch.float16),
        (SDPBasedLipschitzResBlock(2, inner_dim_factor=2), (2, 4, 4), torch.float16),
    ],
    ids=lambda value: str(value).split("(")[0] if isinstance(value, (nn.Module, torch.dtype)) else "",
)
def test_no_number_overflows_within_reach(model, shape, dtype):
    """The reach is finite, honest, and not smaller than the arithmetic demands by more than the sizes of sums."""
    model = model.to(dtype).eval()
    reach = lipschitz_bound(model, shape).reach
    largest = torch.finfo(dtype).max
    assert 0 < reach < 2 * largest
    assert not _overflows_at(model, shape, min(reach, largest / 2), dtype)


def test_detours_count():
    """What is large on the way limits the reach, however small the output is."""
    near, far = nn.Linear(4, 2).half(), nn.Sequential(_Detour(), nn.Linear(4, 2)).half()
    far[1].load_state_dict(near.state_dict())
    assert lipschitz_bound(far, (4,)).reach < lipschitz_bound(near, (4,)).reach / 8
    assert _overflows_at(far, (4,), 2000.0, torch.float16) and not _overflows_at(near, (4,), 2000.0, torch.float16)


def test_radii_end_at_the_reach():
    """A half-precision network whose neighbours overflow: the margin alone would give a radius of thousands."""
    model = nn.Linear(2, 2, bias=False).half().eval()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[16.0, 0.0], [-16.0, 0.0]]))
    x = torch.tensor([[3000.0, 0.0], [10.0, 0.0]]).half()
    found = certify(model, [(x, torch.zeros(2, dtype=torch.long))])
    reach = found.bound.reach
    assert bool((found.radii <= (reach - x.double().norm(dim=1)).clamp_min(0)).all())
    assert float(found.radii[1]) > 1 and bool(model(torch.tensor([[reach, 0.0]]).half()).isfinite().all())


def test_underflow_of_powers_is_deducted():
    """At 1e-6 the eighth powers of float32 are 0: margins that small are no margins."""
    model = _Norm(8).eval()
    x = torch.full((1, 4), 1e-6)
    x[:, 0] = 0.0
    assert float(model(x)[0, 0]) == 0.0  # exact arithmetic gives 1e-6
    found = certify(model, [(x * 1.5, torch.tensor([0])), (torch.full((1, 4), 1e-3), torch.tensor([0]))])
    assert float(found.forward_errors.min()) >= 1e-6
    assert not bool((found.radii[:1] > 0).any())
