"""The Hugging Face Hub, without a connection: the library is replaced by a folder, and asked for its signatures."""

import inspect
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from orthogonium.models import create_model
from orthogonium.saving import ModelCard, from_pretrained, push_to_hub, save


class Api:
    """Keeps what is uploaded."""

    place = None  # the folder of all repositories

    def __init__(self, token=None):
        self.token = token

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        (self.place / repo_id).mkdir(parents=True, exist_ok=exist_ok)

    def upload_folder(self, *, repo_id, folder_path, commit_message=None, revision=None):
        shutil.copytree(folder_path, self.place / repo_id, dirs_exist_ok=True)
        return f"https://hub/{repo_id}/commit/{revision or 'main'}"


def snapshot_download(
    repo_id, *, revision=None, token=None, cache_dir=None, local_files_only=False, allow_patterns=None
):
    assert set(allow_patterns) == {"config.json", "model.safetensors"}
    return str(Api.place / repo_id)


@pytest.fixture
def model():
    return create_model("aocnet_tiny", (1, 8, 8), 5, widths=(4,), hidden=()).eval()


def test_there_and_back(model, tmp_path, monkeypatch):
    monkeypatch.setattr(Api, "place", tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(HfApi=Api, snapshot_download=snapshot_download))
    address = push_to_hub(model, "me/network", ModelCard(license="mit"), revision="next")
    assert address == "https://hub/me/network/commit/next"
    assert 'license: "mit"' in (tmp_path / "me" / "network" / "README.md").read_text()
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(from_pretrained("me/network")(x), model(x))


def test_folders_need_no_hub_and_repositories_say_what_they_need(model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = save(model, tmp_path / "network")
    x = torch.rand(2, 1, 8, 8)
    assert torch.equal(from_pretrained(folder)(x), model(x))
    for call in (lambda: from_pretrained("me/network"), lambda: push_to_hub(model, "me/network")):
        with pytest.raises(ModuleNotFoundError, match=r"huggingface_hub, of the extra \[hub\]"):
            call()


def test_the_library_takes_the_arguments_it_is_given_here():
    hub = pytest.importorskip("huggingface_hub")
    for own, theirs in (
        (Api.create_repo, hub.HfApi.create_repo),
        (Api.upload_folder, hub.HfApi.upload_folder),
        (Api.__init__, hub.HfApi.__init__),
        (snapshot_download, hub.snapshot_download),
    ):
        assert inspect.signature(own).parameters.keys() <= inspect.signature(theirs).parameters.keys()
