"""A run that was interrupted, however often and however it ended, continues to the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError
from orthogonium.training import CheckpointError, Recipe, checkpoints
from tests.training.runs import RECIPE, assert_same_bits, small_network, train, weights

ROOT = Path(__file__).parents[2]


def history(path):
    """Without the times: they are the only thing that differs."""
    rows = torch.load(path, weights_only=True)["orthogonium"]["history"]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that was never interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(folder)
    return folder


def assert_same_run(folder, whole):
    for name in ("last.ckpt", "best.ckpt"):
        assert_same_bits(folder / name, whole / name)
        assert history(folder / name) == history(whole / name)
    assert len((folder / "history.csv").read_text().splitlines()) == 1 + RECIPE.epochs


class Killed(BaseException):
    pass


def test_after_every_checkpoint(whole, tmp_path, monkeypatch):
    """Each run ends right after its second checkpoint: within epochs, at their ends, in the last one."""
    save = checkpoints.CheckpointWriter._save
    saved = []

    def save_and_die(keeper, trainer, *arguments):
        save(keeper, trainer, *arguments)
        saved.append(trainer.global_step)
        if len(saved) % 2 == 0:
            raise Killed

    monkeypatch.setattr(checkpoints.CheckpointWriter, "_save", save_and_die)
    for _ in range(4):
        with pytest.raises(Killed):
            train(tmp_path, resume="auto", checkpoint_steps=4)
    assert saved == [4, 8, 10, 12, 16, 20, 24, 28]
    train(tmp_path, resume="auto", checkpoint_steps=4)
    assert_same_run(tmp_path, whole)


def test_a_run_continued_within_its_last_epoch_is_validated_at_its_end(tmp_path, monkeypatch):
    recipe = RECIPE.replace(epochs=2, validate_every=5, early_stop=None)
    train(tmp_path / "whole", recipe)
    save = checkpoints.CheckpointWriter._save

    def save_and_die(keeper, trainer, *arguments):
        save(keeper, trainer, *arguments)
        if trainer.current_epoch == 1:
            raise Killed

    monkeypatch.setattr(checkpoints.CheckpointWriter, "_save", save_and_die)
    with pytest.raises(Killed):
        train(tmp_path / "parts", recipe, checkpoint_steps=4)
    monkeypatch.undo()
    train(tmp_path / "parts", recipe, resume="auto")
    assert "val_accuracy" in history(tmp_path / "whole" / "last.ckpt")[-1]
    assert history(tmp_path / "parts" / "last.ckpt") == history(tmp_path / "whole" / "last.ckpt")


def test_slow_weights_radii_and_extra_images_continue(tmp_path, monkeypatch):
    """Checkpoints between two returns to the slow weights, while the radius grows."""
    np.savez(tmp_path / "more.npz", image=np.zeros((20, 8, 8, 1), np.uint8), label=np.arange(20) % 10)
    extra = {"extra": str(tmp_path / "more.npz"), "extra_share": 0.0625}
    growing = {"loss": "emma", "loss_options": {"eps": 0.5}, "radius_schedule": "linear", "radius_warmup": 0.8}
    recipe = RECIPE.replace(epochs=2, lookahead=3, lookahead_share=0.3, **growing, **extra)
    train(tmp_path / "whole", recipe)
    save = checkpoints.CheckpointWriter._save

    def save_and_die(keeper, trainer, *arguments):
        save(keeper, trainer, *arguments)
        raise Killed

    monkeypatch.setattr(checkpoints.CheckpointWriter, "_save", save_and_die)
    for step in (8, 11, 16):
        with pytest.raises(Killed):
            train(tmp_path / "parts", recipe, resume="auto", checkpoint_steps=8)
        state = torch.load(tmp_path / "parts" / "last.ckpt", weights_only=True)
        assert state["global_step"] == step
        (optimizer,) = state["optimizer_states"]
        assert [group["lookahead_steps"] for group in optimizer["param_groups"]] == [step, step]
    monkeypatch.undo()
    train(tmp_path / "parts", recipe, resume="auto")
    assert_same_bits(tmp_path / "parts" / "last.ckpt", tmp_path / "whole" / "last.ckpt")
    assert sum("lookahead_slow" in name for name in weights(tmp_path / "parts" / "last.ckpt")) == 5
    with pytest.raises(CheckpointError, match="extra=None"):
        train(tmp_path / "parts", recipe.replace(extra=None, extra_share=Recipe.extra_share), resume="auto")
    train(tmp_path / "constant", recipe.replace(radius_schedule="constant", radius_warmup=Recipe.radius_warmup))
    ours, theirs = weights(tmp_path / "constant" / "last.ckpt"), weights(tmp_path / "whole" / "last.ckpt")
    assert not all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_after_sigkill(whole, tmp_path):
    process = subprocess.Popen([sys.executable, "-m", "tests.training.runs", str(tmp_path)], cwd=ROOT)
    last, deadline = tmp_path / "last.ckpt", time.monotonic() + 120
    try:
        while not last.exists():  # written within the first epoch
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.001)
    finally:
        process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    state = torch.load(last, weights_only=True)
    assert 0 < state["global_step"] < 30 and not state["orthogonium"]["finished"]
    train(tmp_path, resume="auto")
    assert_same_run(tmp_path, whole)


class SignalAfter(nn.Module):
    """Sends this process a signal in the middle of a training step."""

    def __init__(self, signum, calls):
        super().__init__()
        self.signum, self.calls = signum, calls

    def forward(self, x):
        if self.training:
            self.calls -= 1
            if self.calls == 0:
                os.kill(os.getpid(), self.signum)
        return x


@pytest.mark.parametrize(
    ("signum", "calls", "step"),
    [
        (signal.SIGINT, 9, 5),  # the first half of step 5: accumulated gradients are not saved, so the step is finished
        (signal.SIGTERM, 9, 5),
        (signal.SIGTERM, 20, 10),  # the last batch of an epoch
    ],
)
def test_after_a_request_to_stop(whole, tmp_path, signum, calls, step):
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt if signum == signal.SIGINT else SystemExit) as error:
        train(tmp_path, model=_signalling(signum, calls))
    if signum == signal.SIGTERM:
        assert error.value.code == 143
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == step
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    train(tmp_path, resume="auto")
    assert_same_run(tmp_path, whole)


def _signalling(signum, calls):
    """The small network, whose first layer sends the signal too; parameters keep their names."""
    torch.manual_seed(RECIPE.seed)  # as `train` does
    network = small_network()
    network[0] = nn.Sequential(network[0], SignalAfter(signum, calls))
    return network


def test_a_finished_run_is_not_trained_further(whole):
    before = (whole / "last.ckpt").stat().st_mtime_ns
    result = train(whole, resume="auto")
    assert (whole / "last.ckpt").stat().st_mtime_ns == before
    assert result.steps == 30 and len(result.history) == 3


def test_a_folder_with_a_run_is_not_overwritten(whole):
    with pytest.raises(ParameterError, match="resume='auto'"):
        train(whole)


def test_another_recipe_is_refused(whole, tmp_path):
    with pytest.raises(CheckpointError, match=r"lr=0.5 \(there 0.01\)"):
        train(whole, RECIPE.replace(lr=0.5), resume="auto")
    with pytest.raises(CheckpointError, match="no checkpoint"):
        train(tmp_path, resume=tmp_path / "absent.ckpt")


def test_a_moved_dataset_is_the_same_recipe(whole):
    assert train(whole, RECIPE.replace(root="elsewhere"), resume="auto").steps == 30
