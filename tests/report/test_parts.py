import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from orthogonium import audit, certify
from orthogonium.attacks import AttackCurve
from orthogonium.errors import ShapeError
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
from orthogonium.layers.conv.sll import SDPBasedLipschitzResBlock
from orthogonium.report import choose_samples, layer_spectra
from orthogonium.report.axes import Axes, nice_ticks
from orthogonium.report.curves import default_radii, survival_curve
from orthogonium.report.pictures import png
from orthogonium.report.scatter import Point, scatter_chart
from orthogonium.report.svg import Series, line_chart, spectrum_ends
from orthogonium.web_page import cards, table


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
    curve = AttackCurve("by hand", (0.5,), (0.5,), torch.tensor([0.2, math.inf, 0.6, 0.4, 0.0, 0.0]))
    chosen = choose_samples(found, images, ["no", "yes"], attack_curve=curve, count=2)
    assert [s.index for s in chosen.most] == [1, 2] and [s.index for s in chosen.least] == [0, 3]
    assert [s.index for s in chosen.wrong] == [4, 5]  # the surest mistake first
    assert [round(float(s.x[0, 0, 0]) * 10) for s in (*chosen.most, *chosen.wrong)] == [1, 2, 4, 5]
    assert [s.attacked for s in chosen.most] == [None, pytest.approx(0.6)]
    assert (chosen.wrong[0].label, chosen.wrong[0].prediction) == ("yes", "no")


def test_few_samples_are_not_shown_twice():
    found = _certificates([0.1, 0.9], [True, True])
    chosen = choose_samples(found, torch.zeros(2, 1, 2, 2), count=8)
    assert (len(chosen.most), len(chosen.least), len(chosen.wrong)) == (2, 0, 0)
    with pytest.raises(ShapeError, match="2 certificates"):
        choose_samples(found, torch.zeros(3, 1, 2, 2))


def test_of_correct_inputs_those_that_were_attacked_are_shown_with_the_points_that_fool_the_model():
    found = _certificates([0.1, 0.9, 0.5, 0.3], [True, True, True, True])
    points, classes = torch.tensor([[5.0, 6.0], [7.0, 8.0]], dtype=torch.float64), torch.tensor([1, 0])
    curve = AttackCurve("by hand", (0.5,), (0.5,), torch.tensor([0.6, 0.2]), points, classes)
    inputs = torch.zeros(4, 2, dtype=torch.float64)
    chosen = choose_samples(found, inputs, ["no", "yes"], attack_curve=curve, attacked=torch.tensor([2, 0]), count=8)
    shown = [(s.index, s.mistaken_for, s.adversarial.tolist()) for s in chosen.most]
    assert shown == [(2, "yes", [5.0, 6.0]), (0, "no", [7.0, 8.0])]
    with pytest.raises(ShapeError, match="on 2 inputs, `attacked` names 4"):
        choose_samples(found, inputs, attack_curve=curve)


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


def test_axes_end_where_the_points_do():
    axes = Axes.around([1.0, 45.0], [0.0, 1.0], (540, 300))
    assert axes.x_range == (0.0, 45.0) and axes.x_ticks == [0.0, 10.0, 20.0, 30.0, 40.0]
    assert len(Axes.around([1.0], [0.0], (540, 300)).x_ticks) > 1
    assert list(Axes.around([1.0, 2.0, 3.0], [0.0, 1.0], (540, 300)).x_ticks) == [1, 2, 3]  # epochs


def test_ends_of_a_spectrum_are_two_levels_and_an_unknown_one_is_left_out():
    both = spectrum_ends(0.0, 1.0, name="a", top=1.05)
    assert _levels(both) == [("1.0", "22.0"), ("158.0", "179.0")] and "<rect" not in both  # nothing is filled
    assert _levels(spectrum_ends(math.nan, 1.0, name="a", top=1.05)) == [("1.0", "22.0")]


def _levels(drawing):
    return re.findall(r"M([\d.]+) [\d.]+L([\d.]+) [\d.]+", drawing.split('class="line s0"')[1])


@pytest.mark.parametrize(("count", "columns"), [(1, 1), (4, 4), (6, 6), (7, 4), (8, 4), (9, 5), (13, 5)])
def test_cards_stand_in_even_rows(count, columns):
    assert f'style="--columns: {columns}"' in cards([("name", "value", "note", "plain")] * count)


def test_long_names_in_tables_may_be_broken_and_tables_wider_than_a_phone_say_so():
    long = table(
        "t", ["layer", "type", "a", "b"], [["backbone.stage_one.conv", "AdaptiveOrthoConv2d", "", ""]], names=(1,)
    )
    assert "backbone.<wbr>stage_<wbr>one.<wbr>conv" in long and "Adaptive<wbr>Ortho<wbr>Conv2d" in long
    short = table("t", ["radius", "a", "b"], [["0.5", "", ""]])
    assert '<th scope="row">0.5</th>' in short
    assert "scroll sideways" in long and "scroll sideways" not in short


def test_png_refuses_other_shapes():
    with pytest.raises(ShapeError, match="height, width"):
        png(torch.zeros(2, 4, 4))


def test_labels_of_points_stay_off_the_axis():
    chart = scatter_chart([Point("a", 1.0, 0.0), Point("b", 2.0, 0.5)], name="n", x_label="x", y_label="y")
    baseline = float(re.findall(r'class="label" x="[^"]*" y="([^"]*)">a<', chart)[0])
    assert baseline < float(re.findall(r'cy="([^"]*)"', chart)[0])
