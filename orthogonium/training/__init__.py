"""Training of certified classifiers, on Lightning: recipes, exact resume, several devices. Needs `orthogonium[train]`."""

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("orthogonium.training needs lightning: pip install 'orthogonium[train]'.") from error

from orthogonium.training.checkpoints import Trained, load_checkpoint
from orthogonium.training.classifier import LipschitzClassifier
from orthogonium.training.errors import CheckpointError, DivergenceError
from orthogonium.training.fitting import TrainingResult, fit
from orthogonium.training.objectives import LOSSES
from orthogonium.training.optimizers import OPTIMIZERS
from orthogonium.training.presets import PRESETS
from orthogonium.training.recipe import Recipe
from orthogonium.training.schedules import SCHEDULES

__all__ = [
    "LOSSES",
    "OPTIMIZERS",
    "PRESETS",
    "SCHEDULES",
    "CheckpointError",
    "DivergenceError",
    "LipschitzClassifier",
    "Recipe",
    "Trained",
    "TrainingResult",
    "fit",
    "load_checkpoint",
]
