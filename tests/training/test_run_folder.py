"""The rules of a run's folder, on files that need not hold anything."""

import pytest

from orthogonium.errors import CheckpointError, ParameterError
from orthogonium.training import Recipe
from orthogonium.training.run_folder import RunFolder, partial, publish


@pytest.mark.parametrize(
    ("recipe", "files", "result"),
    [
        (Recipe(), ["last.ckpt", "best.ckpt"], "last.ckpt"),
        (Recipe(early_stop=2, validation=0.1), ["last.ckpt", "best.ckpt"], "best.ckpt"),
        (Recipe(early_stop=2, validation=0.1), ["last.ckpt"], "last.ckpt"),
        (None, ["last.ckpt", "best.ckpt"], "last.ckpt"),
    ],
)
def test_a_run_ends_in_its_best_checkpoint_if_it_may_stop_early(tmp_path, recipe, files, result):
    folder = RunFolder(tmp_path)
    for file in files:
        (tmp_path / file).touch()
    if recipe is not None:
        folder.begin(recipe)
    assert folder.recipe() == recipe and folder.find_result() == tmp_path / result


def test_other_folders(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.clear()  # there is nothing
    with pytest.raises(CheckpointError, match="no last.ckpt"):
        folder.find_result()
    folder.path.mkdir()
    (folder.path / "thesis.tex").touch()
    with pytest.raises(ParameterError, match="does not hold a training run"):
        folder.clear()
    assert (folder.path / "thesis.tex").exists()
    folder.begin(Recipe())
    folder.clear()
    assert not folder.path.exists()


def test_a_file_is_in_its_place_only_when_it_is_whole(tmp_path):
    path = tmp_path / "history.csv"
    path.write_text("old")
    partial(path).write_text("new")
    assert path.read_text() == "old"
    publish(path)
    assert path.read_text() == "new" and not partial(path).exists()
