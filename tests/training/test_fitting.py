"""What a run does with each field of its recipe, and what it leaves in its folder."""

import csv
import importlib.util
import math

import pytest
import torch
from torch import nn

from orthogonium.data import ImageData, ImageDataModule, Images, load_dataset
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers import BatchCentering, MaxMin, OrthoLinear, UnitNormLinear
from orthogonium.models.input_normalization import InputNormalization
from orthogonium.training import DivergenceError, LipschitzClassifier, Recipe, fit, load_checkpoint
from orthogonium.training.early_stopping import is_stalled
from orthogonium.training.journal import best_row
from tests.training.runs import RECIPE, small_network, train

SHORT = Recipe(epochs=1, batch_size=256, lr=1e-2, eps=(0.25, 0.5))  # 5 steps


def plain_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), OrthoLinear(64, 32), MaxMin(), OrthoLinear(32, 10))


def final(folder):
    return torch.load(folder / "last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    """A run with an average of weights and centering."""
    return train(tmp_path_factory.mktemp("averaged"), RECIPE.replace(epochs=2))


@pytest.mark.parametrize("head", [OrthoLinear, UnitNormLinear])
def test_history_is_what_the_loaded_network_achieves(tmp_path, head):
    network = nn.Sequential(nn.Flatten(), OrthoLinear(64, 32), BatchCentering(32), MaxMin(), head(32, 10))
    result = train(tmp_path, RECIPE.replace(epochs=2), model=network)
    model = load_checkpoint(result.checkpoint, model=network).model
    test = load_dataset("digits").test
    with torch.no_grad():
        logits = model(test.pixels.float() / (255 if test.pixels.dtype == torch.uint8 else 1))
    first, second = logits.topk(2).values.unbind(1)
    radius = (first - second) / (math.sqrt(2) if head is OrthoLinear else 2)
    right = logits.argmax(1) == test.labels
    row = result.history[-1]
    assert row["val_accuracy"] == pytest.approx(right.float().mean().item(), abs=1e-6)
    for eps in RECIPE.eps:
        expected = (right & (radius > eps)).float().mean().item()
        assert row[f"val_certified@{eps:.4g}"] == pytest.approx(expected, abs=1e-6)


def test_the_average_is_that_of_the_weights(tmp_path, monkeypatch):
    steps = []
    hook = LipschitzClassifier.on_train_batch_start

    def record(self, batch, batch_idx):  # before each step: the weights after the one before
        steps.append({name: value.detach().clone() for name, value in self.model.state_dict().items()})
        hook(self, batch, batch_idx)

    monkeypatch.setattr(LipschitzClassifier, "on_train_batch_start", record)
    train(tmp_path, SHORT.replace(ema=0.5), model=small_network())
    checkpoint = final(tmp_path)
    last = {key.removeprefix("model."): value for key, value in checkpoint["state_dict"].items()}
    average = steps[0]
    for t, weights in enumerate([*steps[1:], last], start=1):
        decay = min(0.5, (1 + t) / (10 + t))
        average = {name: decay * value + (1 - decay) * weights[name] for name, value in average.items()}
    loaded = load_checkpoint(tmp_path / "last.ckpt", model=small_network()).model.state_dict()
    assert loaded["3.num_batches_tracked"] == 5
    for name in loaded.keys() - {"3.num_batches_tracked"}:
        torch.testing.assert_close(loaded[name], average[name])
        assert not torch.equal(loaded[name], last[name])


def test_files_of_a_run(averaged, tmp_path):
    folder = averaged.checkpoint.parent
    assert {p.name for p in folder.iterdir()} == {"last.ckpt", "best.ckpt", "history.csv", "recipe.json", "logs"}
    assert Recipe.from_json((folder / "recipe.json").read_text()) == RECIPE.replace(epochs=2)
    with (folder / "history.csv").open(newline="") as file:
        rows = [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]
    assert rows == averaged.history and [row["step"] for row in rows] == [10, 20]
    assert 0 < rows[0]["seconds"] < rows[1]["seconds"] == averaged.seconds
    assert averaged.steps == 20


def test_step_logs(tmp_path):
    train(tmp_path, SHORT.replace(epochs=2), log_every=2)
    with (tmp_path / "logs" / "version_0" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows if row["step_loss"]] == [2, 4, 6, 8, 10]
    assert [int(row["step"]) for row in rows if row["train_loss"]] == [5, 10]
    losses = {int(row["step"]): float(row["step_loss"]) for row in rows if row["step_loss"]}
    assert float(rows[-1]["train_loss"]) == pytest.approx((losses[6] + 2 * losses[8] + 2 * losses[10]) / 5, rel=1e-4)


def test_tensorboard(tmp_path):
    if importlib.util.find_spec("tensorboard") is None and importlib.util.find_spec("tensorboardX") is None:
        with pytest.raises(ModuleNotFoundError, match="pip install tensorboard"):
            train(tmp_path, SHORT, tensorboard=True)
    else:
        train(tmp_path, SHORT, tensorboard=True)
        assert list(tmp_path.glob("tensorboard/*/events*"))


def test_only_progress_is_printed_and_not_to_standard_output(tmp_path, capfd):
    train(tmp_path / "quiet", SHORT)
    assert capfd.readouterr() == ("", "")
    train(tmp_path / "shown", SHORT, progress=True)
    out, err = capfd.readouterr()
    assert out == "" and "step 5" in err and "100%" in err


def test_the_generator_of_the_caller_is_left_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    fit(
        SHORT.replace(model_options={"widths": [4], "depth": 1, "hidden": []}),
        tmp_path,
        progress=False,
        accelerator="cpu",
    )
    assert torch.equal(torch.get_rng_state(), before)


def test_accumulated_parts_are_one_batch(tmp_path):
    recipe = SHORT.replace(precision="64", optimizer="sgd", clip_norm=0.1)
    for parts in (1, 4):
        train(tmp_path / str(parts), recipe.replace(accumulate=parts), model=plain_network())
    one, four = final(tmp_path / "1"), final(tmp_path / "4")
    assert one["global_step"] == four["global_step"] == 5
    for name, value in one["state_dict"].items():
        assert value.dtype == torch.float64
        torch.testing.assert_close(four["state_dict"][name], value, atol=1e-12, rtol=0)


def test_gradients_are_clipped(tmp_path):
    """Steps of plain gradient descent are at most lr·clip_norm long."""
    recipe = SHORT.replace(
        optimizer="sgd", optimizer_options={"momentum": 0.0}, lr=1.0, schedule="constant", warmup=0.0
    )
    network = plain_network()
    start = {name: value.clone() for name, value in network.state_dict().items()}
    train(tmp_path, recipe.replace(clip_norm=1e-3), model=network)
    moved = sum((value - start[name]).square().sum() for name, value in network.state_dict().items())
    assert 1e-3 < moved.sqrt() <= 5e-3 * (1 + 1e-4)  # five steps


@pytest.mark.parametrize("precision", ["bf16-mixed", "64"])
def test_precisions_train(tmp_path, precision):
    loss = train(tmp_path, SHORT.replace(epochs=4, precision=precision)).history
    assert loss[-1]["train_loss"] < loss[0]["train_loss"]


def test_half_precision_needs_a_gpu(tmp_path):
    with pytest.raises(ParameterError, match="bf16-mixed"):
        train(tmp_path, SHORT.replace(precision="16-mixed"))


def test_a_time_limit_ends_training_with_the_schedule_at_its_end(tmp_path):
    recipe = SHORT.replace(epochs=None, minutes=1 / 60, validate_every=10**6)
    result = train(tmp_path, recipe)
    rates = [row["lr"] for row in result.history]
    assert result.seconds >= 1.0 and final(tmp_path)["orthogonium"]["finished"]
    assert rates[-1] < 0.02 * recipe.lr and max(rates) > 0.9 * recipe.lr
    assert "val_accuracy" in result.history[-1] and "val_accuracy" not in result.history[0]
    assert train(tmp_path, recipe, resume="auto") == result


def test_elapsed_time_is_continued(tmp_path):
    recipe = SHORT.replace(epochs=2, minutes=60.0)
    first = train(tmp_path / "a", recipe)
    checkpoint = final(tmp_path / "a")
    checkpoint["orthogonium"] |= {"elapsed": 3601.0, "finished": False, "history": first.history[:1]}
    torch.save(checkpoint, tmp_path / "late.ckpt")
    result = train(tmp_path / "b", recipe.replace(epochs=2), resume=tmp_path / "late.ckpt")
    assert result.seconds >= 3601.0


def test_early_stopping_keeps_the_best(tmp_path):
    """At a rate of nearly 0 nothing improves after the first validation."""
    recipe = SHORT.replace(epochs=20, lr=1e-12, validation=0.2, early_stop=3)
    result = train(tmp_path, recipe)
    assert [row["epoch"] for row in result.history] == [1, 2, 3, 4]
    assert result.checkpoint.name == "best.ckpt"
    assert torch.load(result.checkpoint, weights_only=True)["global_step"] * 4 == result.steps
    assert train(tmp_path, recipe, resume="auto") == result


def test_best_and_stalled():
    history = [{"a": 1.0}, {}, {"a": 3.0}, {"a": 3.0}, {}, {"a": 2.0}]
    assert best_row(history, "a") == 2 and best_row(history, "b") is None
    assert is_stalled(history, "a", 2) and not is_stalled(history, "a", 3) and not is_stalled([], "a", 1)


def test_weights_that_the_last_step_ruined_are_no_result(tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network[1].weight.register_hook(lambda slope: slope * math.nan)
    with pytest.raises(DivergenceError, match="Weights are not finite after step 1"):
        fit(SHORT.replace(epochs=1, batch_size=1346), tmp_path, model=network, progress=False, accelerator="cpu")
    assert not (tmp_path / "last.ckpt").exists()


def test_divergence_is_reported(tmp_path):
    recipe = SHORT.replace(optimizer="sgd", lr=3e38, warmup=0.0, epochs=3)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    with pytest.raises(DivergenceError, match="Lower lr"):
        train(tmp_path, recipe, model=network, log_every=1)


def test_a_network_without_certificate_reports_accuracy_only(tmp_path):
    result = train(tmp_path, SHORT, model=nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    assert "val_accuracy" in result.history[0] and not any("certified" in key for key in result.history[0])


def test_input_normalization_counts_in_certificates():
    network = nn.Sequential(InputNormalization(1, 0.5, 0.25), *plain_network())
    assert LipschitzClassifier(SHORT, network).certified.L == 4.0


def test_other_data(tmp_path):
    """Three classes of larger images, given as a data module."""
    images = Images(torch.rand(60, 3, 4, 4), torch.arange(60) % 3)
    data = ImageDataModule(ImageData(images, images, ("a", "b", "c"), "noise"), batch_size=20)
    network = nn.Sequential(nn.Flatten(), OrthoLinear(48, 3))
    train(tmp_path, SHORT.replace(batch_size=20), model=network, data=data)
    trained = load_checkpoint(tmp_path / "last.ckpt", model=network)
    assert trained.image_shape == (3, 4, 4) and trained.n_classes == 3


def test_a_dry_run_tries_everything_and_writes_nothing(tmp_path):
    folder = tmp_path / "run"
    result = fit(SHORT, folder, dry_run=True)
    assert result.history == [] and result.steps == 0
    for field in ("model", "data", "augment"):
        with pytest.raises(ParameterError, match="'nosuch'"):
            fit(SHORT.replace(**{field: "nosuch"}), folder, dry_run=True)
    with pytest.raises(ShapeError, match=r"\(n, 3\)"):
        fit(SHORT.replace(loss_options={"n_classes": 3}), folder, dry_run=True)
    assert not folder.exists()


def test_arguments_are_checked(tmp_path):
    for wrong in ({"log_every": 0}, {"checkpoint_steps": 0}, {"checkpoint_minutes": 0.0}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            train(tmp_path, SHORT, **wrong)
    with pytest.raises(ParameterError, match="accumulate=256"):
        train(tmp_path, SHORT.replace(batch_size=1280, accumulate=256), data=ImageDataModule("digits", batch_size=1000))
    with pytest.raises(ParameterError, match="ddp"):
        train(tmp_path, SHORT.replace(ema=0.9), strategy="fsdp")
