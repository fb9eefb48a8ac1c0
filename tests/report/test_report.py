import base64
import io
import json
import re

import pytest
import torch
from PIL import Image
from torch import nn

from orthogonium import audit, certify
from orthogonium.attacks import AttackCurve
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear
from orthogonium.report import evaluate, write_report
from tests.report.page import Page

HISTORY = [
    {"epoch": 1, "train_loss": 2.0, "train_accuracy": 0.3, "lr": 0.1},
    {"epoch": 2, "train_loss": 1.0, "train_accuracy": 0.6, "val_accuracy": 0.5, "val_certified@0.1412": 0.25},
    {"epoch": 3, "train_loss": float("nan"), "train_accuracy": 0.7, "val_accuracy": 0.55, "val_certified@0.1412": 0.3},
]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return nn.Sequential(
        AdaptiveOrthoConv2d(3, 8, 3, stride=2),
        MaxMin(),
        nn.Flatten(),
        OrthoLinear(8 * 9, 10),
        MaxMin(),
        OrthoLinear(10, 5),
    ).eval()


@pytest.fixture(scope="module")
def evaluation(model):
    images = torch.rand(40, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        labels = model(images).argmax(1)
    labels[::4] = (labels[::4] + 1) % 5
    return evaluate(model, images, labels, eps=[0.02, 36 / 255], classes=list("abcde"), attacked=40)


@pytest.fixture(scope="module")
def page(evaluation, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    recipe = {"model": "tiny", "lr": 0.1, "loss_options": {"tau": 2.0}}
    found = evaluation.write(path, recipe=recipe, history=HISTORY, title="a <b>& c", facts={"training": "3 s"})
    assert found == path
    return Page(path.read_text(encoding="utf-8"))


def test_nothing_is_asked_of_the_network(page):
    assert "http" not in page.source and "url(" not in page.source and "@import" not in page.source
    assert not page.all("script") and not page.all("iframe")
    addresses = [e[key] for _, e in page.elements for key in ("src", "href", "srcset", "data", "poster") if e.get(key)]
    assert addresses and all(address.startswith("data:") for address in addresses)


def test_all_sections_are_there(page):
    sections = [e["id"] for e in page.all("section")]
    assert sections == ["robustness", "samples", "training", "spectra", "audit", "recipe"]


def test_headline_agrees_with_the_radii(page, evaluation):
    radii, correct = evaluation.certificates.radii, evaluation.certificates.correct
    text = " ".join(page.texts[""].split())
    assert f"Clean accuracy {100 * correct.double().mean():.1f}% of 40 inputs" in text
    assert f"Certified at 0.02 {100 * (radii > 0.02).double().mean():.1f}%" in text
    assert f"Certified at 36/255 {100 * (radii > 36 / 255).double().mean():.1f}%" in text
    assert "Broken certificates 0 of 40, by PGD" in text


def test_the_attack_never_falls_below_the_certificates(page):
    charts = re.findall(r'<svg class="chart".*?</svg>', page.source, re.DOTALL)[:2]
    assert len(charts) == 2  # for wide and for narrow screens
    for chart in charts:
        certified, attacked = (_heights(re.search(rf'class="line s{i}"[^>]* d="([^"]+)"', chart)[1]) for i in (0, 1))
        assert certified.keys() == attacked.keys() and len(certified) > 100
        assert all(attacked[x] <= certified[x] for x in certified)  # pixels count from the top
        assert any(attacked[x] < certified[x] for x in certified)


def _heights(path):
    points = [point.split() for point in path.removeprefix("M").split("L")]
    return {x: float(y) for x, y in points}


def test_pictures_show_the_inputs_and_what_fools_the_model(page, evaluation):
    images = iter(page.all("img"))
    right = (*evaluation.samples.most, *evaluation.samples.least)
    assert len(right) == 16 and all(sample.adversarial is not None for sample in right)
    for sample in (*right, *evaluation.samples.wrong):
        element = next(images)
        assert (_pixels(element) - sample.x).abs().max() <= 0.5 / 255 + 1e-6
        assert element["alt"].startswith(f"{sample.label}, classified as {sample.prediction}")
        if sample in right:
            assert (_pixels(next(images)) - sample.adversarial.clamp(0, 1)).abs().max() <= 0.5 / 255 + 1e-6
            change, drawn = sample.adversarial - sample.x, _pixels(next(images)) - 0.5
            assert (drawn - change / (2 * change.abs().max())).abs().max() <= 0.5 / 255 + 1e-6
    assert next(images, None) is None


def _pixels(element):
    raw = base64.b64decode(element["src"].removeprefix("data:image/png;base64,"))
    return (
        torch.tensor(list(Image.open(io.BytesIO(raw)).convert("RGB").tobytes())).reshape(6, 6, 3).permute(2, 0, 1) / 255
    )


def test_adversarial_inputs_are_of_the_class_and_at_the_distance_they_are_told_to_be(model, evaluation):
    for sample in (*evaluation.samples.most, *evaluation.samples.least):
        with torch.no_grad():
            classes = model(torch.stack([sample.x, sample.adversarial])).argmax(1)
        assert ["abcde"[c] for c in classes] == [
            sample.label,
            sample.mistaken_for,
        ] and sample.label != sample.mistaken_for
        distance = torch.linalg.vector_norm((sample.adversarial - sample.x).double())
        assert sample.radius < sample.attacked == pytest.approx(float(distance), rel=1e-6)


def test_inputs_that_are_no_images_are_told_by_their_numbers(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(OrthoLinear(6, 8), MaxMin(), OrthoLinear(8, 3)).eval()
    x = torch.randn(20, 6)
    with torch.no_grad():
        labels = model(x).argmax(1)
    labels[:2] = (labels[:2] + 1) % 3
    found = evaluate(model, x, labels, eps=[0.1])
    page = Page(found.write(tmp_path / "r.html").read_text(encoding="utf-8"))
    assert not page.all("img")
    text = " ".join(page.texts["samples"].split())
    best = next(sample for sample in found.samples.most if sample.attacked is not None)
    change = (best.adversarial - best.x).abs().max()
    row = f"no. {best.index} {best.label} {best.prediction} {best.radius:.3f} {best.attacked:.3f} {change:.3g}"
    assert f"{row} {best.mistaken_for}" in text
    assert f"Wrong input class prediction no. {found.samples.wrong[0].index} " in text


def test_the_chart_ends_where_nothing_is_left(page, evaluation):
    """The attack looked 1.6 times as far as the largest radius, and hardly anything is left there."""
    label = next(e["aria-label"] for e in page.all("svg") if e.get("class") == "chart")
    end = float(re.search(r"at radius ([\d.]+)\.$", label)[1])
    last = float(evaluation.curve.distances[evaluation.curve.distances.isfinite()].max())
    assert end <= min(1.03 * last, max(evaluation.curve.eps)) and end >= float(evaluation.certificates.radii.max())


def test_training_curves_and_tables(page, evaluation):
    training = page.texts["training"]
    for words in ("training loss", "training accuracy", "validation accuracy", "certified at 36/255"):
        assert words in training
    for row in evaluation.audit.rows:
        assert row.type in page.texts["audit"]
    assert "AdaptiveOrthoConv2d" in page.texts["spectra"] and "OrthoLinear" in page.texts["spectra"]
    assert json.loads(re.search(r"\{.*\}", page.texts["recipe"], re.DOTALL)[0])["loss_options"] == {"tau": 2.0}
    assert torch.__version__ in page.texts["recipe"] and "3 s" in page.texts["recipe"]


def test_text_is_escaped_and_drawings_are_named(page):
    assert "a <b>& c" in page.texts[""] and "<b>" not in page.source
    drawings = [e for e in page.all("svg") if e.get("aria-hidden") != "true"]
    assert drawings and all(e["role"] == "img" and len(e["aria-label"]) > 10 for e in drawings)
    assert 'name="viewport"' in page.source and 'lang="en"' in page.source


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read(page, scheme):
    """The contrast of WCAG 2, level AA."""
    light, dark = page.style().split("@media (prefers-color-scheme: dark)", 1)
    colours = dict(re.findall(r"--(\w+): (#\w{6});", light if scheme == "light" else dark.split("} }")[0]))
    for background in ("paper", "card"):
        for name in ("ink", "muted", "good", "bad", "s0", "s1", "s2", "s3", "s4"):
            assert _contrast(colours[name], colours[background]) >= 4.5, (name, background)
    assert _contrast(colours["ink"], colours["warn"]) >= 4.5


def _contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _certified():
    """Two classes at distance √2: all radii are 1/√2."""
    return certify(nn.Identity().eval(), [(torch.eye(2), torch.tensor([0, 1]))], eps=[0.5])


def test_a_broken_certificate_is_shown(tmp_path):
    curve = AttackCurve("by hand", (0.0, 0.5, 1.0), (1.0, 1.0, 0.0), torch.tensor([0.6, 0.9], dtype=torch.float64))
    path = write_report(
        tmp_path / "r.html", certificates=_certified(), audit=audit(nn.Identity(), (2,)), attack_curve=curve
    )
    text = path.read_text(encoding="utf-8")
    assert re.search(r'Broken certificates</dt><dd class="bad">1<', text)


def test_what_is_not_given_is_left_out(tmp_path):
    path = write_report(tmp_path / "r.html", certificates=_certified(), audit=audit(nn.Identity(), (2,)))
    page = Page(path.read_text(encoding="utf-8"))
    assert [e["id"] for e in page.all("section")] == ["robustness", "audit", "recipe"]
    assert "Broken" not in page.source


def test_a_part_that_was_attacked_is_compared_with_its_own_certificates(tmp_path):
    """Of three inputs only the last, whose radius is smallest, is attacked."""
    x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.2, 0.0]])
    found = certify(nn.Identity().eval(), [(x, torch.zeros(3, dtype=torch.long))], eps=[0.5])
    curve = AttackCurve("by hand", (0.0, 0.5), (1.0, 0.0), torch.tensor([0.2], dtype=torch.float64))
    path = write_report(
        tmp_path / "r.html",
        certificates=found,
        audit=audit(nn.Identity(), (2,)),
        attack_curve=curve,
        attacked=torch.tensor([2]),
    )
    text = path.read_text(encoding="utf-8")
    assert re.search(r'Broken certificates</dt><dd class="good">0<', text)
    assert re.search(r"Certified at 0.5</dt><dd[^>]*>66.7%<small>of 1: 0.0%, attacked 0.0%<", text)
    assert "Both are of the 1 inputs that were attacked" in text
    assert '<th scope="row">0.5</th><td class="number">0.0%</td><td class="number">0.0%</td>' in text
