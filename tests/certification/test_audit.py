"""The audit names the layer that breaks the bound, and its report is complete in every format."""

import json
import math
import sys

import pytest
import torch
from torch import nn

from orthogonium import audit
from orthogonium import layers as ol
from orthogonium.certification import AuditReport
from orthogonium.certification.render import at_most


def block(channels):
    conv = [ol.AdaptiveOrthoConv2d(channels, channels, 3) for _ in range(2)]
    return ol.AdditiveResidual(nn.Sequential(conv[0], ol.MaxMin(), conv[1]))


def residual_network(blocks=24, channels=4):
    stem, head = ol.AdaptiveOrthoConv2d(3, channels, 3), ol.OrthoLinear(channels * 64, 10)
    return nn.Sequential(stem, *(block(channels) for _ in range(blocks)), nn.Flatten(), head).eval()


def test_the_broken_layer_of_fifty_is_named():
    model = residual_network()
    clean = audit(model, (3, 8, 8))
    assert not clean.warnings and 0.999 < clean.lipschitz_bound < 1 + 1e-3
    assert sum(row.type == "AdaptiveOrthoConv2d" for row in clean.rows) == 49

    broken = model[7].fn[2]
    nn.utils.parametrize.remove_parametrizations(broken, "weight")
    with torch.no_grad():
        broken.weight *= 1.05
    report = audit(model, (3, 8, 8))
    assert [row.name for row in report.rows if row.warnings] == ["7.fn.2"]
    assert report.worst.name == "7.fn.2" and math.isclose(report.worst.contribution, 1.05, rel_tol=1e-4)
    assert "guarantee is broken" in report.warnings[0]


def test_a_hook_on_a_layer_is_named():
    model = residual_network(blocks=2)
    model[1].fn[0].register_forward_hook(lambda module, inputs, output: 1.05 * output)
    report = audit(model, (3, 8, 8))
    assert [row.name for row in report.rows if row.warnings] == ["1.fn.0"]
    assert "forward hook" in report.warnings[0]


def test_rows_hold_spectra():
    conv = nn.Conv2d(2, 3, 3, padding=1)
    report = audit(nn.Sequential(conv, nn.ReLU(), nn.AvgPool2d(2)), (2, 4, 4))
    first, last = report.rows
    eye = torch.eye(32).reshape(32, 2, 4, 4)
    matrix = (conv(eye) - conv(torch.zeros(1, 2, 4, 4))).flatten(1).T.detach().double()
    sigma = torch.linalg.svdvals(matrix)
    assert (first.kind, first.guarantee) == ("exact", None)
    assert math.isclose(first.sigma_max, sigma[0], rel_tol=1e-5) and math.isclose(
        first.sigma_min, sigma[-1], rel_tol=1e-4
    )
    assert math.isclose(first.stable_rank, sigma.square().sum() / sigma[0] ** 2, rel_tol=1e-5)
    assert (last.type, last.contribution) == ("avg_pool2d", pytest.approx(0.5))
    assert math.isclose(report.lipschitz_bound, last.bound)


def test_unbounded_models_are_reported_and_not_raised():
    report = audit(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)), (4,))
    assert math.isinf(report.lipschitz_bound)
    assert [(row.name, row.kind) for row in report.rows][1] == ("1", "unbounded")
    assert "LayerCentering" in report.warnings[0] and "No Lipschitz constant" in str(report)


def test_json_and_html(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.add_module("<b>&", nn.Linear(3, 3))

        def forward(self, x):
            return torch.exp(getattr(self, "<b>&")(x))

    report = audit(Odd(), (3,))
    data = json.loads(report.to_json(tmp_path / "audit.json"))
    assert json.loads((tmp_path / "audit.json").read_text(encoding="utf-8")) == data
    assert data["lipschitz_bound"] is None and data["rows"][0]["name"] == "<b>&"
    assert data["rows"][0]["sigma_max"] == report.rows[0].sigma_max
    page = report.to_html(tmp_path / "audit.html")
    assert (tmp_path / "audit.html").read_text(encoding="utf-8") == page
    assert "&lt;b&gt;&amp;" in page and "<b>" not in page
    assert "prefers-color-scheme: dark" in page and "http" not in page


@pytest.mark.parametrize("terminal", [False, True])
def test_show(terminal, capsys, monkeypatch):
    report = audit(nn.Sequential(ol.OrthoLinear(3, 3), nn.LayerNorm(3)), (3,))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("COLUMNS", "300")
    report.show()
    out = capsys.readouterr().out
    assert "OrthoLinear" in out and "LayerCentering" in out
    assert terminal or out.strip() == str(report)


def test_plain_text_without_rich(capsys, monkeypatch):
    for name in ("rich", "rich.console", "rich.table", "rich.text"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    report = audit(nn.ReLU(), (3,))
    report.show()
    assert capsys.readouterr().out.strip() == str(report)


def test_printed_bounds_are_bounds():
    """Rounded to the nearest number, a bound of 1.0000002 would read 1."""
    for x in (1 + 1e-9, 1.0000002179, 0.1, 1 / 3, 7.0, 1e-300, 3.3e20, 123456.75):
        for digits in (4, 7):
            shown = float(at_most(x, digits))
            assert x <= shown <= x * (1 + 10.0 ** (1 - digits))
    assert at_most(1.0) == "1" and at_most(math.inf) == "∞" and at_most(math.nan) == ""
    report = AuditReport("Net", (3,), 1.0000002179, ())
    assert report.summary == "Lipschitz constant at most 1.000001."
