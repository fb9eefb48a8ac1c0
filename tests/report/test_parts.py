import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orthogonium import audit, certify
from orthogonium.errors import ShapeError
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
from orthogonium.layers.conv.sll import SDPBasedLipschitzResBlock
from orthogonium.report import choose_samples, layer_spectra
from orthogonium.report.axes import nice_ticks
from orthogonium.report.curves import default_radii, survival_curve
from orthogonium.report.pictures import png
from orthogonium.report.svg import Series, line_chart


class Net(nn.Module):
    def __init__(self, padding_mode="circular"):
        super().__init__()
        self.first = AdaptiveOrthoConv2d(2, 4, 3, padding_mode=padding_mode)
        self.act = MaxMin()
        self.down = nn.Conv2d(4, 6, 2, stride=2)
        self.block = SDPBasedLipschitzResBlock(6, inner_dim_factor=1, kernel_size=3)
        self.head = OrthoLinear(24, 3)

    def forward(self, x):
        return self.head(self.block(self.down(self.act(self.first(x)))).flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
def test_spectra_are_those_of_the_jacobians(dtype, padding_mode):
    model = Net(padding_mode).eval().to(dtype)
    x = torch.randn(1, 2, 4, 4, dtype=dtype)
    found = {s.name: s for s in layer_spectra(model, x)}
    assert list(found) == ["first", "down", "block", "head"]  # in the order of the forward pass
    inputs = {"first": x}
    inputs["down"] = model.act(model.first(x))
    inputs["block"] = model.down(inputs["down"])
    inputs["head"] = model.block(inputs["block"]).flatten(1)
    for name, point in inputs.items():
        layer = getattr(model, name)
        matrix = torch.autograd.functional.jacobian(layer, point.detach())
        sigma = torch.linalg.svdvals(matrix.reshape(-1, point.numel()).double())
        spectrum = found[name]
        assert spectrum.count == len(sigma) and spectrum.kind == ("jacobian" if name == "block" else "exact")
        shown = sigma if len(sigma) <= 128 else None
        assert shown is not None and torch.allclose(
            torch.tensor(spectrum.values, dtype=torch.float64), shown, atol=2e-6
        )
        assert math.isclose(spectrum.sigma_max, sigma[0], abs_tol=2e-6)
        assert math.isclose(spectrum.sigma_min, sigma[-1], abs_tol=2e-6)


def test_spectra_beyond_the_budget_are_the_ends_of_the_audit():
    model, x = Net().eval(), torch.randn(1, 2, 4, 4)
    report = audit(model, (2, 4, 4))
    found = layer_spectra(model, x, report, budget=1.0)
    assert found and all(s.kind == "bounds" and s.count is None for s in found)
    rows = {row.name: row for row in report.rows}
    assert found[0].sigma_max == rows["first"].sigma_max and found[0].sigma_min == rows["first"].sigma_min


def test_spectra_leave_the_model_as_it_was():
    model = Net().eval()
    layer_spectra(model, torch.randn(1, 2, 4, 4))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def _certificates(radii, correct):
    """Certificates of the identity on two classes with these radii."""
    x = torch.zeros(len(radii), 2, dtype=torch.float64)
    x[:, 0] = torch.tensor(radii) * math.sqrt(2)
    labels = torch.tensor([0 if c else 1 for c in correct])
    return certify(nn.Identity().eval(), [(x, labels)], eps=[0.5])


def test_samples_are_sorted_by_what_they_show():
    found = _certificates([0.1, 0.9, 0.5, 0.3, 0.7, 0.2], [True, True, True, True, False, False])
    images = torch.arange(6.0)[:, None, None, None].expand(6, 1, 2, 2) / 10
    distances = torch.tensor([0.2, math.inf, 0.6, 0.4, 0.0, 0.0])
    chosen = choose_samples(found, images, ["no", "yes"], distances=distances, count=2)
    assert [round(float(s.image[0, 0, 0]) * 10) for s in chosen.most] == [1, 2]
    assert [round(float(s.image[0, 0, 0]) * 10) for s in chosen.least] == [0, 3]
    assert [round(float(s.image[0, 0, 0]) * 10) for s in chosen.wrong] == [4, 5]  # the surest mistake first
    assert [s.attacked for s in chosen.most] == [None, pytest.approx(0.6)]
    assert (chosen.wrong[0].label, chosen.wrong[0].prediction) == ("yes", "no")


def test_few_samples_are_not_shown_twice():
    found = _certificates([0.1, 0.9], [True, True])
    chosen = choose_samples(found, torch.zeros(2, 1, 2, 2), count=8)
    assert (len(chosen.most), len(chosen.least), len(chosen.wrong)) == (2, 0, 0)
    with pytest.raises(ShapeError, match="2 certificates"):
        choose_samples(found, torch.zeros(3, 1, 2, 2))


def test_survival_counts_strictly_larger_distances():
    eps, fraction = survival_curve(torch.tensor([0.0, 0.5, 1.0, math.inf]), 1.0)
    at = dict(zip([round(e, 4) for e in eps], fraction, strict=True))
    assert (at[0.0], at[0.495], at[0.5], at[1.0]) == (0.75, 0.75, 0.5, 0.25)


def test_radii_to_attack_contain_those_asked_for_and_go_beyond():
    found = _certificates([0.1, 0.9], [True, True])
    radii = default_radii(found)
    assert radii == sorted(set(radii)) and radii[0] == 0 and 0.5 in radii and radii[-1] >= 1.3


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-6, 1e6),
    st.integers(1, 12),
)
def test_ticks_span_the_range_and_are_not_too_many(low, width, at_most):
    ticks = nice_ticks(low, low + width, at_most)
    if low + width > low:
        slack = 1e-6 * max(width, abs(low) * 1e-9)
        assert ticks[0] <= low + slack + 1e-9 * abs(low) and ticks[-1] >= low + width - slack - 1e-9 * abs(low)
        assert len(ticks) <= at_most + 2


def test_a_gap_breaks_the_line_and_a_single_point_is_a_dot():
    chart = line_chart(
        [Series("s", [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, math.nan, 3.0])], name="a name of it", x_label="x", y_label="y"
    )
    path = chart.split('class="line s0"')[1].split('d="')[1].split('"')[0]
    assert path.count("M") == 2 and path.count("L") == 1
    assert chart.count("<circle") == 1 and "nan" not in chart


def test_png_refuses_other_shapes():
    with pytest.raises(ShapeError, match="height, width"):
        png(torch.zeros(2, 4, 4))
