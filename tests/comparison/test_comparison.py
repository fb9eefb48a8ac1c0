"""Rows, plans and runs from Python; the command is tested in tests/cli/test_compare.py."""

import json
import math

import pytest
import torch
from torch import nn

from orthogonium.certification import audit
from orthogonium.comparison import Comparison, Contestant, Plan, Row, RunResult, base_recipe
from orthogonium.comparison.contest import entry, run, with_sigma
from orthogonium.comparison.contestant import layer_counts
from orthogonium.comparison.identity import check_same, code_digest, data_digest
from orthogonium.comparison.measuring import memory, peak_memory, step_seconds
from orthogonium.comparison.plan import ComparisonFolder, write_json
from orthogonium.comparison.rows import milliseconds
from orthogonium.comparison.running import _TRACEBACK, _reason
from orthogonium.errors import ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
from orthogonium.methods import METHODS
from orthogonium.models import create_model
from orthogonium.report.scatter import Point, pareto_front, scatter_chart
from orthogonium.training import LipschitzClassifier
from orthogonium.training.fitting import load_data
from orthogonium.training.run_folder import RunFolder
from tests.comparison.entrants import Growing, Halves, Twice

SMALL = base_recipe("digits").replace(
    epochs=1, model_options={"widths": [8], "depth": 2, "hidden": [], "padding_mode": "circular"}, eps=[0.1, 0.5]
)
AOC, SOC = Contestant.method("aoc"), Contestant.method("soc")


@pytest.mark.parametrize("method", [name for name, entry in METHODS.items() if 2 in entry.conv])
@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_every_method_has_a_place_in_the_network(method, data):
    recipe = Contestant.method(method).recipe(base_recipe(data), 0)
    shape = (1, 8, 8) if data == "digits" else (3, 32, 32)
    model = create_model(recipe.model, shape, 10, **recipe.model_options)
    Contestant.method(method).check_network(model)
    assert sum(layer_counts(model).values()) == 8
    with torch.no_grad():
        assert model.eval()(torch.rand(2, *shape)).shape == (2, 10)


def test_a_network_without_the_method_is_refused():
    cpl = Contestant.method("cpl")
    recipe = cpl.recipe(base_recipe("digits").replace(model_options={"depth": 1}), 0)
    model = create_model(recipe.model, (1, 8, 8), 10, **recipe.model_options)
    assert set(layer_counts(model)) == {"AdaptiveOrthoConv2d"}
    with pytest.raises(ParameterError, match="No convolution of this network is of method 'cpl'.*depth=2"):
        cpl.check_network(model)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Contestant.method("nosuch"), "no method 'nosuch' for images"),
        (lambda: Contestant.conv("torch.nn.Conv2d"), "package.module:Class"),
        (lambda: Contestant.conv("torch.nn:NoSuch"), "There is no torch.nn:NoSuch"),
        (lambda: Contestant.conv("no_such_package:Conv"), "There is no no_such_package:Conv"),
        (lambda: Contestant.conv("tests.comparison.entrants:NO_CLASS"), "no class"),
        (lambda: Plan(SMALL, ()), "needs a contestant"),
        (lambda: Plan(SMALL, (AOC, AOC)), "aoc several times"),
        (lambda: Plan(SMALL, (AOC,), seeds=0), "seeds=0"),
        (lambda: Plan(SMALL.replace(model="lip_resnet"), (AOC,)), "has no option method"),
        (lambda: Plan(SMALL.replace(model_options={"method": "soc"}), (AOC,)), "method is what is compared"),
        (lambda: Plan(SMALL.replace(model_options={"widths": [3]}), (AOC, SOC)).check(), "multiple of 2 channels"),
        (lambda: Plan(SMALL.replace(data="nosuch"), (Contestant.conv("torch.nn:Conv2d"),)).check(), "nosuch"),
    ],
)
def test_mistakes_are_told_before_training(make, words):
    with pytest.raises(ParameterError, match=words):
        make()


def test_a_folder_keeps_its_plan(tmp_path):
    folder = ComparisonFolder(tmp_path / "new")
    folder.begin(Plan(SMALL, (AOC,)))
    folder.begin(Plan(SMALL, (AOC, SOC), seeds=2))  # more of the same
    with pytest.raises(ParameterError, match=r"another comparison: lr=0\.5 \(there 0\.01\)"):
        folder.begin(Plan(SMALL.replace(lr=0.5), (AOC,)))
    with pytest.raises(ParameterError, match=r"attacked=7 \(there 128\)"):
        folder.begin(Plan(SMALL, (AOC,), attacked=7))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(ParameterError, match="holds no comparison"):
        ComparisonFolder(tmp_path / "other").begin(Plan(SMALL, (AOC,)))


def test_runs_of_other_data_or_code_are_not_continued(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "changing_layers.py"
    source.write_text(
        "import functools\nfrom torch import nn\nMade = functools.partial(nn.Conv2d)\n"
        "class Changing(nn.Conv2d):\n    pass\n"
    )
    contestant, made = (Contestant.conv(f"changing_layers:{name}") for name in ("Changing", "Made"))
    data = load_data(SMALL)
    before = data_digest(data)
    assert before == data_digest(load_data(SMALL))
    file = tmp_path / "entry.json"
    write_json(file, entry(contestant, SMALL, 10, "cpu", before))
    check_same(file, entry(contestant, SMALL, 10, "cpu", before))
    check_same(tmp_path / "none.json", entry(contestant, SMALL, 10, "cpu", before))
    for changed in (data.test.labels, data.train.pixels):
        changed.view(-1)[3] += 1
        with pytest.raises(ParameterError, match="other contents of images or labels"):
            check_same(file, entry(contestant, SMALL, 10, "cpu", data_digest(data)))
        changed.view(-1)[3] -= 1
    of_made = code_digest(made)
    source.write_text(source.read_text() + "\n    scale = 2\n")
    assert code_digest(made) not in (None, of_made)  # of what is defined elsewhere, too, the file that names it counts
    with pytest.raises(ParameterError, match="other contents of the files behind the class"):
        check_same(file, entry(contestant, SMALL, 10, "cpu", before))


def test_what_a_class_imports_counts_as_its_code(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "entrants_of_a_package"
    (package / "parts").mkdir(parents=True)
    (package / "parts" / "convolutions.py").write_text("from ..sizes import scale\nfrom torch.nn import Conv2d\n")
    (package / "sizes.py").write_text("scale = 1\n")
    contestant = Contestant.conv("entrants_of_a_package.parts.convolutions:Conv2d")
    before = code_digest(contestant)
    assert before == code_digest(contestant)
    (package / "unrelated.py").write_text("x = 1\n")
    assert before == code_digest(contestant)
    (package / "sizes.py").write_text("scale = 2\n")
    assert before != code_digest(contestant)


def finished(seed, certified, bound=1.0, **changes):
    figures = {"accuracy": 0.9, "attacked": (0.8, 0.7), "step_seconds": 0.01, "parameters": 10, "attacked_inputs": 5}
    return RunResult("finished", seed, certified=certified, bound=bound, eps=(0.1, 0.5), **{**figures, **changes})


def test_rows_are_means_over_finished_runs_and_say_what_is_missing():
    results = (finished(0, (0.5, 0.2)), finished(1, (0.7, 0.4)), RunResult("diverged", 2, "NaN at step 3"))
    row = Row(AOC, results, 3)
    proved = row.figures((0.1, 0.5))["certified@0.1"]
    assert math.isclose(proved.mean, 0.6) and math.isclose(proved.deviation, math.sqrt(0.02))
    assert row.status == "diverged"
    assert row.remarks[:2] == ["Diverged, seed 2: NaN at step 3", "Means are over 2 of 3 seeds."]
    assert Row(AOC, results[:1], 3).status == "running"
    assert Row(AOC, results[:1], 1).figures((0.1, 0.5))["accuracy"].deviation is None


def test_a_network_that_gives_all_inputs_one_class_is_no_quiet_zero():
    row = Row(AOC, (finished(0, (0.0, 0.0), predicted_classes=1), finished(1, (0.5, 0.2), predicted_classes=10)), 2)
    assert len(row.remarks) == 1 and row.remarks[0].startswith("Collapsed, seed 0: all test inputs are given the same")


def test_milliseconds_have_no_exponent():
    assert [milliseconds(s) for s in (0.00123, 0.119, 0.9996, 1.0654)] == ["1.23", "119", "1000", "1065"]


def test_what_is_not_proved_is_not_claimed():
    unproved = finished(0, None, None, bound_reason="square has none", curve=None)
    row = Row(Contestant.conv("torch.nn:Conv2d"), (unproved,), 1)
    figures = row.figures((0.1, 0.5))
    assert figures["certified@0.1"] is None and figures["bound"] is None and figures["attacked@0.1"].mean == 0.8
    assert not row.history_is_proved
    assert row.remarks == ["No Lipschitz constant is proved, so nothing is certified: square has none"]
    loose = Row(AOC, (finished(0, (0.1, 0.0), bound=20.0),), 1)
    assert not loose.history_is_proved and "proved constant, by which radii are divided, is 20" in loose.remarks[0]
    # at the end it was 1-Lipschitz; before that, only methods are
    assert Row(AOC, (finished(0, (0.5, 0.2)),), 1).history_is_proved
    assert not Row(Contestant.conv("torch.nn:Conv2d"), (finished(0, (0.5, 0.2)),), 1).history_is_proved
    nearly = Row(AOC, (finished(0, (0.5, 0.2), bound=1.0049),), 1)
    assert nearly.remarks[0].endswith("is 1.0049.")
    # one seed without a proof: the mean of the others would be that of another set of runs
    assert Row(AOC, (finished(0, (0.5, 0.2)), unproved), 2).figures((0.1, 0.5))["certified@0.1"] is None


def test_the_page_and_the_tables_show_what_the_rows_say(tmp_path):
    plan = Plan(SMALL, (AOC, SOC, Contestant.method("aol")), seeds=2)
    results = {(AOC, 0): finished(0, (0.5, 0.2)), (AOC, 1): finished(1, (0.7, 0.4))}
    results |= {(SOC, seed): RunResult("failed", seed, "<out> of memory") for seed in (0, 1)}
    folder = ComparisonFolder(tmp_path)
    Comparison.of(plan, results).write(folder)
    page = folder.report.read_text(encoding="utf-8")
    assert "60.0% ± 14.1" in page and "&lt;out&gt; of memory" in page and "<out>" not in page
    assert "4 of 6" in page and "2 failed or diverged" in page
    rows = {row["contestant"]: row for row in json.loads(folder.results.read_text())["rows"]}
    assert rows["soc"]["status"] == "failed" and rows["aol"]["status"] == "running"
    assert rows["soc"]["accuracy"] is None and rows["aoc"]["certified@0.5"]["mean"] == pytest.approx(0.3)


def test_what_the_page_calls_limits_holds_for_each_run(tmp_path):
    results = {
        (AOC, 0): finished(0, (0.5, 0.2), bound=1.0, sigma_min=0.9, sigma_max=1.0),
        (AOC, 1): finished(1, (0.1, 0.0), bound=20.0, sigma_min=0.1, sigma_max=3.0),
    }
    folder = ComparisonFolder(tmp_path)
    Comparison.of(Plan(SMALL, (AOC,), seeds=2), results).write(folder)
    page = folder.report.read_text(encoding="utf-8")
    assert ">0.1 to 3<" in page and ">20<" in page and ">10.5<" not in page


def test_the_chart_says_who_is_not_in_it(tmp_path):
    plan = Plan(SMALL, (AOC, SOC, Contestant.conv("torch.nn:Conv2d")))
    results = {(AOC, 0): finished(0, (0.5, 0.2)), (SOC, 0): finished(0, (0.6, 0.2), step_seconds=0.1)}
    results[plan.contestants[2], 0] = finished(0, None, None, bound_reason="none is known")
    folder = ComparisonFolder(tmp_path)
    Comparison.of(plan, results).write(folder)
    assert "as nothing of theirs is certified: Conv2d." in folder.report.read_text(encoding="utf-8")


def test_runs_of_several_machines_are_not_compared_in_silence():
    plan = Plan(SMALL, (AOC, SOC))
    here, there = finished(0, (0.5, 0.2), machine="A"), finished(0, (0.5, 0.2), machine="B", versions={"torch": "9"})
    assert Comparison.of(plan, {(AOC, 0): here, (SOC, 0): here}).rows[0].remarks == []
    rows = Comparison.of(plan, {(AOC, 0): here, (SOC, 0): there}).rows
    assert rows[0].remarks[0].endswith("depend on: A.") and rows[1].remarks[0].endswith("depend on: B; torch 9.")


def test_the_page_names_the_machines_of_the_runs_not_its_own(tmp_path):
    there = [finished(0, (0.5, 0.2), machine=name, versions={"torch": "9"}) for name in ("A", "B")]
    folder = ComparisonFolder(tmp_path)
    Comparison.of(Plan(SMALL, (AOC, SOC)), {(AOC, 0): there[0], (SOC, 0): there[1]}).write(folder)
    found = json.loads(folder.results.read_text(encoding="utf-8"))
    assert (found["machine"], found["versions"]) == ("A and B", {"torch": "9"})
    page = folder.report.read_text(encoding="utf-8")
    assert "A and B" in page and torch.__version__ not in page


def test_results_survive_their_file(tmp_path):
    result = finished(3, (0.5, 0.2), history=({"epoch": 1, "train_loss": 0.5},), curve=((0.0, 1.0), (0.9, 0.1)))
    result.write(tmp_path / "result.json")
    assert RunResult.read(tmp_path / "result.json") == result


@pytest.mark.filterwarnings("ignore::orthogonium.errors.NumericalWarning")  # of weights that are NaN by then
def test_a_run_without_finite_loss_diverged(tmp_path):
    contestant = Contestant.conv("tests.comparison.entrants:NotFinite")
    result = run(contestant, SMALL, tmp_path, 10, "cpu")
    assert result.status == "diverged" and "loss is nan" in result.reason
    assert result.parameters and result.accuracy is None


def test_a_network_without_answers_has_no_accuracy(tmp_path):
    result = run(Contestant.conv("tests.comparison.entrants:SilentInEval"), SMALL, tmp_path, 10, "cpu")
    assert result.status == "diverged" and "logits of 451 of 451 test inputs are NaN" in result.reason
    assert result.accuracy is None and result.attacked is None and result.certified is None


def test_why_a_process_ended(tmp_path):
    errors = tmp_path / "errors.txt"
    errors.write_text(f"a warning\n{_TRACEBACK}\n  File …\n    x\nRuntimeError: no\nand no\n")
    assert _reason(1, errors) == "RuntimeError: no and no"
    errors.write_text("a warning\nout of luck\n")
    assert _reason(1, errors) == "out of luck"
    assert "SIGKILL, perhaps for want of memory" in _reason(-9, errors)
    errors.write_text("")
    assert _reason(3, errors) == "Its process ended with exit code 3."


def test_step_time_is_measured_on_a_copy():
    torch.manual_seed(0)
    network = nn.Sequential(AdaptiveOrthoConv2d(1, 4, 3), nn.Flatten(), nn.Linear(256, 10))
    classifier = LipschitzClassifier(SMALL, network)
    before = [p.clone() for p in classifier.parameters()]
    seconds = step_seconds(classifier, (torch.rand(4, 1, 8, 8), torch.arange(4)), torch.device("cpu"))
    assert seconds > 0 and all(torch.equal(p, q) for p, q in zip(before, classifier.parameters(), strict=True))


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, [(8, torch.float32, False)]),
        ({"accumulate": 4}, 4 * [(2, torch.float32, False)]),
        ({"precision": "64"}, [(8, torch.float64, False)]),
        ({"precision": "bf16-mixed", "clip_norm": 1.0}, [(8, torch.float32, True)]),
    ],
)
def test_the_step_that_is_timed_is_that_of_the_recipe(changes, passes):
    recipe = SMALL.replace(batch_size=8, **changes)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    met = []
    network.register_forward_pre_hook(
        lambda module, args: met.append((len(args[0]), args[0].dtype, torch.is_autocast_enabled("cpu")))
    )
    classifier = LipschitzClassifier(recipe, network)
    part = load_data(recipe).train_dataloader()
    step_seconds(classifier, next(iter(part)), torch.device("cpu"))
    assert len(met) % len(passes) == 0 and met == len(met) // len(passes) * passes
    assert len(met) // len(passes) >= 4


def test_a_run_in_float64_is_evaluated_in_float64(tmp_path):
    result = run(AOC, AOC.recipe(SMALL.replace(precision="64"), 0), tmp_path, 10, "cpu")
    assert result.is_finished and abs(result.sigma_max - 1) < 1e-12


def test_singular_values_are_those_of_layers_with_their_factors(tmp_path):
    """The weight of this layer is not what it applies."""
    result = run(Contestant.conv("tests.comparison.entrants:Tripled"), SMALL, tmp_path, 10, "cpu")
    assert result.sigma_max == pytest.approx(result.bound, rel=1e-5)  # the other layers are orthogonal
    assert result.sigma_min is None


def test_all_contestants_meet_the_same_attack(tmp_path):
    """A layer that merely keeps the certificate away changes nothing in what is left under attack."""
    plain, opaque = (
        run(Contestant.conv(f"tests.comparison.entrants:{name}"), SMALL, tmp_path / name, 60, "cpu")
        for name in ("Plain", "Opaque")
    )
    assert plain.bound is not None and opaque.bound is None and plain.accuracy == opaque.accuracy
    assert plain.attacked == opaque.attacked and plain.attacked_inputs == opaque.attacked_inputs == 60


def test_no_certified_accuracy_assumes_another_constant(tmp_path):
    result = run(Contestant.conv("tests.comparison.entrants:Tripled"), SMALL, tmp_path, 10, "cpu")
    page = RunFolder(tmp_path).report.read_text(encoding="utf-8")
    assert "Training, accuracy. At the end training accuracy" in page and "; certified at" not in page
    unbounded = run(Contestant.conv("tests.comparison.entrants:Opaque"), SMALL, tmp_path / "opaque", 10, "cpu")
    method = run(AOC, AOC.recipe(SMALL, 0), tmp_path / "aoc", 10, "cpu")
    for found, folder, shown in ((result, "", False), (unbounded, "opaque", False), (method, "aoc", True)):
        assert any("val_accuracy" in row for row in found.history)
        assert any("val_certified@0.1" in row for row in found.history) == shown
        text = RunFolder(tmp_path / folder).history_file.read_text(encoding="utf-8")
        assert "val_accuracy" in text and ("certified" in text) == shown


@pytest.mark.parametrize("layer", [Halves, Twice, Growing])
def test_singular_values_of_layers_that_do_more_than_scale_are_not_known(layer):
    """Parallel branches whose factors do not multiply, parts whose values do not, an operator without a bound."""
    network = nn.Sequential(layer(4, 4, 3, padding=1), nn.Flatten(), OrthoLinear(4 * 36, 10))
    found = with_sigma(RunResult("finished", 0), audit(network, (4, 6, 6)))
    assert found.sigma_min is None and found.sigma_max is None


def test_singular_values_of_layers_along_axes_are_known():
    network = nn.Sequential(AdaptiveOrthoConv2d(32, 32, 3)).eval()
    report = audit(network, (32, 16, 16))
    assert len(report.rows) == 2
    found = with_sigma(RunResult("finished", 0), report)
    assert abs(found.sigma_min - 1) < 1e-5 and abs(found.sigma_max - 1) < 1e-5


def test_peak_memory_is_at_least_what_is_held():
    cpu = torch.device("cpu")
    before, held = peak_memory(cpu), torch.ones(2**25)  # 128 MB
    after = peak_memory(cpu)
    assert after >= before and after >= memory(cpu) > held.nbytes


def test_the_front_is_what_nobody_beats():
    generator = torch.Generator().manual_seed(0)
    points = [Point(str(i), *torch.rand(2, generator=generator).tolist()) for i in range(40)]
    front = pareto_front(points)
    for p in points:
        beaten = any(q.x <= p.x and q.y >= p.y and q != p for q in points)
        assert (p in front) == (not beaten)
    chart = scatter_chart(points, name="n", x_label="x", y_label="y")
    assert chart.count("<circle") == 40 and chart.endswith("</svg>")
