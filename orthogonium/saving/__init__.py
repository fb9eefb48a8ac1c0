"""Networks as folders: their architecture, their weights and a card; on disk and on the Hugging Face Hub."""

from orthogonium.saving.card import ModelCard
from orthogonium.saving.folder import load, save
from orthogonium.saving.hub import from_pretrained, push_to_hub

__all__ = ["ModelCard", "from_pretrained", "load", "push_to_hub", "save"]
