"""Whole scripts as users of 0.0.4 have them: deep imports, configured factories, training, checkpoints."""

import io

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from orthogonium.layers import AdaptiveOrthoConv2d, BatchCentering2D, MaxMin, OrthoLinear, UnitNormLinear
from orthogonium.layers.conv.AOC.ortho_conv import AdaptiveOrthoConv2d as DeepConv
from orthogonium.layers.conv.singular_values.get_sv import get_conv_sv
from orthogonium.layers.residual import AdditiveResidual, ConcatResidual, L2NormResidual, PrescaledAdditiveResidual
from orthogonium.losses import (
    VRA,
    Cosine_VRA_Loss,
    CosineLoss,
    LossXent,
    SoftHKRMulticlassLoss,
    check_last_linear_layer_type,
)
from orthogonium.model_factory.classparam import ClassParam
from orthogonium.model_factory.models_factory import (
    MODELS,
    AOCNetV1,
    BCOPLargeCNN,
    ConvMixerInspired,
    LargeStagedCNN,
    LipResNet,
    LipVGG,
    PatchBasedCNN,
    PatchBasedExapandedCNN,
    SLLxBCOPResNet50,
    SplitConcatNetConfigs,
    StagedCNN,
)
from orthogonium.reparametrizers import (
    DEFAULT_ORTHO_PARAMS,
    BatchedBjorckOrthogonalization,
    BatchedPowerIteration,
    OrthoParams,
)

BJORCK = OrthoParams(
    spectral_normalizer=ClassParam(BatchedPowerIteration, power_it_niter=3, eps=1e-6),
    orthogonalizer=ClassParam(BatchedBjorckOrthogonalization, beta=0.5, niters=25, pass_through=False),
)
CONV = ClassParam(DeepConv, bias=False, padding="same", padding_mode="zeros", ortho_params=DEFAULT_ORTHO_PARAMS)
PARTS = {"conv": CONV, "act": ClassParam(MaxMin), "lin": ClassParam(OrthoLinear, bias=False)}
SPLIT = {**SplitConcatNetConfigs["M"], "expand_factor": 2, "block_depth": 1, "embedding_dim": 64, "groups": 4}

# name → factory with arguments of 0.0.4, the size of its images, and of images that it takes
SMALL = {
    "AOCNetV1": (lambda: AOCNetV1((3, 64, 64), 10, 2, 1, 3, 64, 8, norm=ClassParam(BatchCentering2D)), 64),
    "SplitConcatNet": (lambda: AOCNetV1(img_shape=(3, 64, 64), n_classes=10, **SPLIT), 64),
    "BCOPLargeCNN": (lambda: BCOPLargeCNN(img_shape=(3, 16, 16), n_classes=10, **PARTS, norm=None), 16),
    "StagedCNN": (
        lambda: StagedCNN((3, 16, 16), dim_repeats=[(16, 1), (32, 1)], dim_nb_dense=(32, 1), n_classes=10, **PARTS),
        16,
    ),
    "LargeStagedCNN": (
        lambda: LargeStagedCNN(
            img_shape=(3, 28, 28), patch_size=7, dim_repeats=[(16, 1), (32, 1)], dim_nb_dense=(32, 2), n_classes=10,
            **PARTS
        ),
        28,
    ),
    "PatchBasedCNN": (
        lambda: PatchBasedCNN(img_shape=(3, 16, 16), dim=16, depth=2, kernel_size=3, patch_size=2, n_classes=10),
        16,
    ),
    "PatchBasedExapandedCNN": (
        lambda: PatchBasedExapandedCNN(
            (3, 16, 16), 16, 2, 3, 2, 2, None, 10, skip=ClassParam(PrescaledAdditiveResidual, init_val=2.0)
        ),
        16,
    ),
    "ConvMixerInspired": (
        lambda: ConvMixerInspired((3, 16, 16), dim=16, depth=2, kernel_size=3, patch_size=2, n_classes=10), 16,
    ),
}  # fmt: skip
LARGE = {
    "LipResNet": (lambda: LipResNet(img_shape=(3, 32, 32), n_classes=10, norm=ClassParam()), 32),
    "LipVGG": (lambda: LipVGG(img_shape=(3, 32, 32), n_classes=10), 32),
    "SLLxBCOPResNet50": (
        lambda: SLLxBCOPResNet50(img_shape=(3, 32, 32), n_classes=10, norm=ClassParam(BatchCentering2D)),
        32,
    ),
}


def train(model, size, loss, steps=2):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, y = torch.rand(4, 3, size, size), torch.tensor([0, 1, 2, 3])
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
    return model.eval(), x, y


def check_lipschitz(model, x):
    with torch.no_grad():
        moved = x + 0.1 * torch.randn_like(x)
        rises = (model(moved) - model(x)).norm(dim=1) / (moved - x).flatten(1).norm(dim=1)
    # Rows of a classwise head have norm 1 each: ten of them together √10.
    limit = 10**0.5 if check_last_linear_layer_type(model) == "classwise" else 1.0
    assert rises.max() <= limit * (1 + 1e-4)


def train_save_and_load(make, size):
    model, x, y = train(make(), size, LossXent(10))
    check_lipschitz(model, x)
    with torch.no_grad():
        logits = model(x)
    head = check_last_linear_layer_type(model)
    assert head in ("global", "classwise")
    assert VRA(logits, y, last_layer_type=head, L=1.0, eps=36 / 255, return_certs=False).shape == (4,)

    file = io.BytesIO()
    torch.save({"state_dict": model.state_dict(), "epoch": 1}, file)
    file.seek(0)
    fresh = make()
    fresh.load_state_dict(torch.load(file)["state_dict"], strict=True)
    whole = io.BytesIO()
    torch.save(model, whole)
    whole.seek(0)
    for twin in (fresh.eval(), torch.load(whole, weights_only=False)):
        with torch.no_grad():
            torch.testing.assert_close(twin(x), logits, rtol=0, atol=1e-5)

    for module in fresh.modules():
        if parametrize.is_parametrized(module, "weight") and isinstance(module, nn.Conv2d | nn.Linear):
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)
    with torch.no_grad():
        torch.testing.assert_close(fresh(x), logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SMALL)
def test_a_network_trains_and_survives_its_checkpoints(name):
    train_save_and_load(*SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_a_large_network_trains_and_survives_its_checkpoints(name):
    train_save_and_load(*LARGE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(MODELS) - {"LipVGG", "SLLxBCOPResNet50"}))  # minutes, and 18 GB
def test_published_sizes(name):
    model = MODELS[name]()
    size = 32 if name in ("PatchBasedCNN", "ConvMixerInspired", "BCOPLargeCNN", "StagedCNN") else 224
    logits = model(torch.rand(2, 3, size, size))
    logits.logsumexp(1).sum().backward()
    assert logits.isfinite().all() and logits.shape == (2, 10 if size == 32 else 1000)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize(
    "loss",
    [
        LossXent(10, 2.12132, 0.25),
        CosineLoss(),
        Cosine_VRA_Loss(gamma=0.1, L=1.0, eps=36 / 255),
        SoftHKRMulticlassLoss(0.9),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_a_training_loop_with_each_loss(loss):
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), UnitNormLinear(16, 10, bias=False))
    conv = ClassParam(AdaptiveOrthoConv2d, kernel_size=3, padding="same", padding_mode="circular", ortho_params=BJORCK)
    skips = [AdditiveResidual, L2NormResidual, PrescaledAdditiveResidual]
    blocks = [skip(nn.Sequential(conv(16, 16), MaxMin())) for skip in skips]
    blocks.append(ConcatResidual(nn.Sequential(conv(8, 8), MaxMin())))
    model = nn.Sequential(conv(3, 16), BatchCentering2D(16), MaxMin(), *blocks, head)
    model, x, _ = train(model, 8, loss, steps=3)
    check_lipschitz(model, x)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            sigma, _ = get_conv_sv(layer, n_iter=4, imsize=8)
            assert sigma <= 1 + 1e-4


def test_configurations_are_logged():
    config = {key: value for key, value in SplitConcatNetConfigs["M"].items() if isinstance(value, ClassParam)}
    text = {key: str(value) for key, value in config.items()}
    assert text["act"] == "MaxMin()" and text["skip"] == "PrescaledAdditiveResidual(init_val=2.0)"
    assert config["lin"].get_config(flatten=True) == {"fct": "UnitNormLinear", "bias": "False"}


def test_a_lightning_module(tmp_path):
    lightning = pytest.importorskip("lightning")
    metrics = pytest.importorskip("torchmetrics")

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = SMALL["StagedCNN"][0]()
            self.criteria = LossXent(n_classes=10, offset=2.12132, temperature=0.25)
            self.train_acc = metrics.Accuracy(task="multiclass", num_classes=10)
            self.train_vra = metrics.MeanMetric()

        def forward(self, x):
            return self.model(x)

        def training_step(self, batch, batch_idx):
            images, labels = batch
            outputs = self.model(images)
            loss = self.criteria(outputs, labels)
            self.train_acc(outputs, labels)
            self.train_vra(VRA(outputs, labels, L=1.0, eps=36 / 255, last_layer_type="global"))
            self.log("loss", loss.item(), on_step=True, prog_bar=True)
            self.log("train_vra", self.train_vra, on_epoch=True)
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.NAdam(self.parameters(), lr=1e-3, weight_decay=0)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=2)]

    data = torch.utils.data.TensorDataset(torch.rand(7, 3, 16, 16), torch.arange(7))
    loader = torch.utils.data.DataLoader(data, batch_size=4)  # uneven: VRA has a value for each sample
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = lightning.Trainer(max_epochs=2, enable_checkpointing=False, default_root_dir=tmp_path, **quiet)
    module = Classifier()
    trainer.fit(module, loader)
    assert trainer.callback_metrics["train_vra"] * 7 == pytest.approx(
        round(trainer.callback_metrics["train_vra"].item() * 7)
    )
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = Classifier.load_from_checkpoint(tmp_path / "last.ckpt").eval()
    x = torch.rand(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(again(x), module.eval()(x), rtol=0, atol=1e-6)
