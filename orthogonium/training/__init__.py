"""Training of certified classifiers on Lightning: recipes, exact resume, several devices. Needs `[train]`."""

try:
    import lightning.pytorch  # noqa: F401
except ModuleNotFoundError as error:
    from orthogonium.errors import lacking

    raise lacking("orthogonium.training needs lightning") from error

from orthogonium.errors import CheckpointError, DivergenceError
from orthogonium.recipes.objectives import LOSSES
from orthogonium.recipes.optimizers import OPTIMIZERS
from orthogonium.recipes.presets import PRESETS
from orthogonium.recipes.recipe import Recipe
from orthogonium.recipes.schedules import SCHEDULES
from orthogonium.training.checkpoints import Trained, load_checkpoint
from orthogonium.training.classifier import LipschitzClassifier
from orthogonium.training.fitting import TrainingResult, fit

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
