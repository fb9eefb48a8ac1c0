import pickle

import pytest
import torch

from orthogonium.training import CheckpointError, Recipe, fit, load_checkpoint
from tests.training.runs import small_network, train

TINY = Recipe(epochs=1, batch_size=512, model_options={"widths": (4,), "depth": 1, "hidden": (16,)}, eps=(0.25,))


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """A run of an architecture by name."""
    return fit(TINY, tmp_path_factory.mktemp("named"), progress=False, accelerator="cpu").checkpoint


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory):
    """A run of a network of the user."""
    return train(tmp_path_factory.mktemp("unnamed"), TINY.replace(model_options={}, precision="64")).checkpoint


def altered(named, path, **changes):
    checkpoint = torch.load(named, weights_only=True)
    checkpoint["orthogonium"] |= changes
    torch.save(checkpoint, path)
    return path


def test_what_is_loaded(named):
    trained = load_checkpoint(named)
    assert trained.recipe == TINY and trained.finished and trained.seconds > 0
    assert trained.image_shape == (1, 8, 8) and trained.n_classes == 10
    assert not trained.model.training and trained.model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    assert [row["epoch"] for row in trained.history] == [1]
    saved = torch.load(named, weights_only=True)["state_dict"]
    for name, value in trained.model.state_dict().items():
        assert torch.equal(value, saved[f"model.{name}"])


def test_networks_of_users_and_double_precision(unnamed):
    with pytest.raises(CheckpointError, match="model=…"):
        load_checkpoint(unnamed)
    model = load_checkpoint(unnamed, model=small_network()).model
    saved = torch.load(unnamed, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[f"model.{name}"]) for name, value in model.state_dict().items())
    assert model(torch.rand(2, 1, 8, 8, dtype=torch.float64)).dtype == torch.float64
    with pytest.raises(CheckpointError, match="do not fit the network"):
        load_checkpoint(unnamed, model=small_network(width=16))


class Malicious:
    def __reduce__(self):
        return pytest.fail, ("code of a checkpoint was run",)


def test_wrong_files_are_refused_in_one_line(named, tmp_path):
    text, cut, empty, other, script, tensor = (
        tmp_path / name for name in ("text", "cut", "empty", "other", "evil", "t")
    )
    text.write_text("not a checkpoint")
    cut.write_bytes(named.read_bytes()[:-1000])
    empty.write_bytes(b"")
    torch.save({"state_dict": {}, "pytorch-lightning_version": "2.6"}, other)
    torch.save({"orthogonium": Malicious()}, script)
    torch.save(torch.zeros(3), tensor)
    pickled = tmp_path / "pickle"
    pickled.write_bytes(pickle.dumps({"state_dict": {}}))
    old = altered(named, tmp_path / "old", format=99)
    unknown = altered(named, tmp_path / "unknown", recipe=TINY.replace(model="net_of_tomorrow").to_json())
    fields = altered(named, tmp_path / "fields", recipe='{"flux": 1}')
    absent = tmp_path / "absent"
    for path in (text, cut, empty, other, script, tensor, pickled, old, unknown, fields, absent, tmp_path):
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(path)
        assert path.name in str(error.value) and "\n" not in str(error.value), path.name
