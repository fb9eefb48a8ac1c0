"""Saved networks on the Hugging Face Hub, where `huggingface_hub` is installed."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from orthogonium.errors import lacking
from orthogonium.saving.card import ModelCard
from orthogonium.saving.folder import CONFIG, WEIGHTS, load, save


def push_to_hub(
    model: nn.Module,
    repo_id: str,
    card: ModelCard | None = None,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload network",
    token: str | None = None,
) -> str:
    """Save a network and upload its folder.

    Args:
        model: as for `save`.
        repo_id: "OWNER/NAME", created if it does not exist.
        card: as for `save`.
        private: whether a newly created repository is private; None leaves it to the owner's settings.
        revision: the branch; the main branch if None.
        commit_message: message of the commit.
        token: access token of the user; the stored one if None.

    Returns:
        The address of the commit.
    """
    api = _library().HfApi(token=token)
    with TemporaryDirectory() as place:
        folder = save(model, Path(place) / "network", card or ModelCard())
        api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo_id, folder_path=folder, commit_message=commit_message, revision=revision
        )
    return str(commit)


def from_pretrained(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    local_files_only: bool = False,
    device: torch.device | str | None = None,
) -> nn.Module:
    """Load a network from a repository filled by `push_to_hub`, or from a folder; in eval mode, as `load` returns it.

    Args:
        name: "OWNER/NAME"; a folder of that name takes precedence.
        revision: a branch, tag or commit.
        token: access token of the user, for private repositories; the stored one if None.
        cache_dir: where to keep downloads, if not in the usual place.
        local_files_only: whether to use only what has been downloaded before, without a connection.
        device: where to put the network; the CPU if None.
    """
    if Path(name).is_dir():
        return load(name, device=device)
    folder = _library().snapshot_download(
        repo_id=str(name),
        revision=revision,
        token=token,
        cache_dir=cache_dir,
        local_files_only=local_files_only,
        allow_patterns=[CONFIG, WEIGHTS],
    )
    return load(folder, device=device)


def _library() -> Any:
    try:
        return import_module("huggingface_hub")
    except ModuleNotFoundError as error:
        raise lacking("The Hugging Face Hub needs huggingface_hub", "hub", otherwise="Folders do without.") from error
