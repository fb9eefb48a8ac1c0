"""The Lightning module: a classifier with a known Lipschitz constant, its loss, optimizer and certificates."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from orthogonium.layers.head import check_last_linear_layer_type
from orthogonium.metrics import CertifiedAccuracy
from orthogonium.models import create_model
from orthogonium.models.input_normalization import InputNormalization
from orthogonium.models.origin import origin_of
from orthogonium.recipes.objectives import create_loss, radius_option
from orthogonium.recipes.optimizers import create_optimizer, set_learning_rate
from orthogonium.recipes.recipe import Recipe
from orthogonium.recipes.schedules import radius_factor, schedule_factor
from orthogonium.training.clock import Clock
from orthogonium.training.tally import Tally

CHECKPOINT_KEY = "orthogonium"
CHECKPOINT_FORMAT = 1


def certified_key(radius: float) -> str:
    """Key of the certified accuracy at a radius in histories, such as `val_certified@0.25`."""
    return f"val_certified@{radius:.4g}"


def _stated_constant(model: nn.Module) -> float:
    """Constant of the input normalization, times what `create_model` was asked for; all else is assumed to have 1."""
    origin = origin_of(model)
    inputs = (m.lipschitz_constant for m in model.modules() if isinstance(m, InputNormalization))
    return math.prod(inputs, start=1.0 if origin is None else origin.lipschitz)


class LipschitzClassifier(LightningModule):
    """Trains a network according to a recipe and reports its certified accuracy.

    The certified accuracies in the history monitor training: the type of the last layer is read from the network, and
    the rest is assumed to have the constant `lipschitz_constant`, which only `orthogonium.certify` proves. If the last
    layer is of neither known type, only accuracy is reported. What a run needs in order to continue (history, elapsed
    time, state of the random generators) is saved in the checkpoint.

    Args:
        recipe: the recipe.
        model: the network; None builds `recipe.model`.
        image_shape: channels, height and width the network is built for; None for the default of the architecture.
        n_classes: number of logits.
        lipschitz_constant: that of the network on pixels in [0, 1]; None for that of its input normalization
            and of the option `lipschitz` of its model.

    >>> from torch import nn
    >>> from orthogonium.layers import OrthoLinear
    >>> from orthogonium.training import LipschitzClassifier, Recipe
    >>> network = nn.Sequential(nn.Flatten(), OrthoLinear(64, 10))
    >>> classifier = LipschitzClassifier(Recipe(eps=(0.5,)), network)
    >>> classifier.head, classifier(torch.rand(2, 1, 8, 8)).shape
    ('global', torch.Size([2, 10]))
    """

    def __init__(
        self,
        recipe: Recipe,
        model: nn.Module | None = None,
        *,
        image_shape: tuple[int, int, int] | None = None,
        n_classes: int = 10,
        lipschitz_constant: float | None = None,
    ) -> None:
        super().__init__()
        self.recipe = recipe
        self.named = model is None  # whether the recipe alone is enough to build the network again
        if model is None:
            model = create_model(recipe.model, image_shape, n_classes, **recipe.model_options)
        self.model = model
        self.image_shape = image_shape
        self.n_classes = n_classes
        self.head = check_last_linear_layer_type(model)
        constant = _stated_constant(model) if lipschitz_constant is None else lipschitz_constant
        known: dict[str, Any] = {"n_classes": n_classes, "head": self.head, "lipschitz": constant}
        self.loss = create_loss(recipe.loss, recipe.loss_options, **known)
        self._radius: tuple[str, float] | None = None  # the option of the loss that grows, and its final value
        if recipe.radius_schedule != "constant":
            option = radius_option(recipe.loss)
            self._radius = option, getattr(self.loss, option)
        # radius 0 is the accuracy; without a certificate that is all there is, whatever factor margins are divided by
        radii = (0.0,) if self.head == "unknown" else (0.0, *recipe.eps)
        head = "classwise" if self.head == "unknown" else self.head
        self.certified = CertifiedAccuracy(radii, head, constant)
        self.clock = Clock()
        self.tally = Tally()
        self.history: list[dict[str, float]] = []
        self.validation: dict[str, float] = {}  # of this epoch
        self.finished = False
        self._generator_states: dict[str, Tensor] = {}
        self._total_steps = float("inf")

    def __setattr__(self, name: str, value: Any) -> None:
        # Lightning records the running hook here some forty times per step; torch checks each assignment for
        # parameters.
        if name == "_current_fx_name":
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (n, classes) of images."""
        return self.model(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The loss of a batch."""
        images, labels = batch
        logits = self.model(images)
        loss = self.loss(logits, labels)
        self.tally.add(loss, logits, labels)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Count a batch of certificates."""
        images, labels = batch
        self.certified.update(self.model(images), labels)

    def on_validation_epoch_end(self) -> None:
        """Accuracy and certified accuracies of the validation data, over all processes."""
        accuracy, *certified = self.certified.compute().reshape(-1).tolist()
        self.certified.reset()
        keys = [certified_key(radius) for radius in self.recipe.eps]
        self.validation = {"val_accuracy": accuracy, **dict(zip(keys, certified, strict=False))}

    @property
    def monitored(self) -> str:
        """The key of the history by which the best epoch is chosen."""
        if self.recipe.monitor == "accuracy" or self.head == "unknown":
            return "val_accuracy"
        return certified_key(self.recipe.eps[0])

    @property
    def training_progress(self) -> float:
        """Fraction of training that is done, in [0, 1]: of the steps or of the time, whichever is further along."""
        steps = (self.trainer.global_step + 0.5) / self._total_steps
        limit = self.recipe.minutes
        return min(max(steps, 0.0 if limit is None else self.clock.elapsed / (60 * limit)), 1.0)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimizer of the recipe."""
        # Under mixed precision Lightning refuses to clip gradients that a fused optimizer would unscale itself
        clipped = self.recipe.precision == "bf16-mixed" and self.recipe.clip_norm is not None
        fused = self.recipe.precision != "16-mixed" and not clipped and not self.is_sharded
        return create_optimizer(
            self.recipe.optimizer,
            self.named_parameters(),
            lr=self.recipe.lr,
            weight_decay=self.recipe.weight_decay,
            decay_biases=self.recipe.decay_biases,
            options=self.recipe.optimizer_options,
            fused=fused,
            lookahead=self.recipe.lookahead,
            lookahead_share=self.recipe.lookahead_share,
        )

    @property
    def is_sharded(self) -> bool:
        """Whether parameters are spread over processes."""
        return self.device_mesh is not None

    def configure_model(self) -> None:
        """Shard the parameters over the processes where the strategy asks for it (FSDP)."""
        if self.device_mesh is not None and not getattr(self, "_was_sharded", False):
            from torch.distributed.fsdp import fully_shard

            fully_shard(self.model, mesh=self.device_mesh["data_parallel"])
            self._was_sharded = True

    def on_train_start(self) -> None:
        """Continue the random numbers of an interrupted run; start the clock."""
        self._total_steps = self.trainer.estimated_stepping_batches
        if self._generator_states and self.trainer.world_size == 1:
            torch.set_rng_state(self._generator_states["cpu"])
            if "device" in self._generator_states and self.device.type == "cuda":
                torch.cuda.set_rng_state(self._generator_states["device"], self.device)
        self.clock.start()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Set learning rate and radius: functions of progress alone, so there is no scheduler to restore."""
        recipe, progress = self.recipe, self.training_progress
        set_learning_rate(self.trainer.optimizers[0], schedule_factor(recipe.schedule, recipe.warmup, progress))
        if self._radius is not None:
            option, value = self._radius
            setattr(self.loss, option, value * radius_factor(recipe.radius_schedule, recipe.radius_warmup, progress))

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add what Lightning does not know."""
        generators = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            generators["device"] = torch.cuda.get_rng_state(self.device)
        checkpoint[CHECKPOINT_KEY] = {
            "format": CHECKPOINT_FORMAT,
            "recipe": self.recipe.to_json(),
            "named": self.named,
            "image_shape": None if self.image_shape is None else list(self.image_shape),
            "n_classes": self.n_classes,
            "history": self.history,
            "elapsed": self.clock.elapsed,
            "finished": self.finished,
            "tally": self.tally.state_dict(),
            "generators": generators,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Continue from what `on_save_checkpoint` added."""
        state = checkpoint[CHECKPOINT_KEY]
        self.history = list(state["history"])
        self.clock.elapsed = state["elapsed"]
        self.tally.load_state_dict(state["tally"], self.device)
        self._generator_states = state["generators"]
