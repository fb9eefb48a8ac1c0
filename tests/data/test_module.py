"""The data module under Lightning."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.trainer.states import TrainerFn
from torch import nn

from orthogonium.data import ImageData, ImageDataModule, Images, load_dataset
from orthogonium.errors import ParameterError

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning"),  # of Lightning, about torch
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),  # the resumed run saves elsewhere
]


class Linear(LightningModule):
    """Remembers the batches it saw."""

    def __init__(self, asks_for_steps=False):
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        self.asks_for_steps = asks_for_steps
        self.seen = []
        self.validated = 0

    def training_step(self, batch, index):
        images, labels = batch
        self.seen.append((self.current_epoch, index, images.double().sum().item(), labels.tolist()))
        return nn.functional.cross_entropy(self.net(images), labels)

    def validation_step(self, batch, index):
        self.validated += len(batch[1])

    def configure_optimizers(self):
        if self.asks_for_steps:
            assert self.trainer.estimated_stepping_batches == 9
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def train(folder, checkpoint=None, asks_for_steps=False, data=None):
    torch.manual_seed(0)
    model = Linear(asks_for_steps)
    # 1210 images in batches of 256 are 4 steps an epoch: saved in the middle and at the end of one
    data = data or ImageDataModule("digits", batch_size=256, augment="shift", validation=0.1)
    trainer = Trainer(
        max_steps=9,
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=2, save_top_k=-1)],
    )
    trainer.fit(model, data, ckpt_path=checkpoint)
    return model


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return folder, train(folder)


def test_every_epoch_has_its_own_batches(uninterrupted):
    _, model = uninterrupted
    assert [(epoch, index) for epoch, index, *_ in model.seen] == [(k // 4, k % 4) for k in range(9)]
    assert len({total for _, _, total, _ in model.seen}) == 9
    assert model.validated == 2 * 136


@pytest.mark.parametrize(("step", "asks_for_steps"), [(2, False), (4, False), (6, True)])
def test_a_resumed_run_is_the_uninterrupted_one(uninterrupted, step, asks_for_steps, tmp_path):
    folder, whole = uninterrupted
    resumed = train(tmp_path, folder / f"step={step}.ckpt", asks_for_steps)
    assert resumed.seen == whole.seen[step:]
    assert torch.equal(resumed.net[1].weight, whole.net[1].weight)


def test_a_run_after_a_resumed_one_starts_at_the_start(uninterrupted, tmp_path):
    folder, whole = uninterrupted
    data = ImageDataModule("digits", batch_size=256, augment="shift", validation=0.1)
    train(tmp_path / "resumed", folder / "step=2.ckpt", data=data)
    assert train(tmp_path / "anew", data=data).seen == whole.seen


@pytest.mark.parametrize(("stage", "first"), [(TrainerFn.FITTING, 2), (TrainerFn.TESTING, 0)])
def test_only_training_resumes(stage, first):
    data = ImageDataModule("digits", batch_size=256)
    whole = [labels for _, labels in data.train_dataloader()]
    data.trainer = SimpleNamespace(global_rank=0, world_size=1, state=SimpleNamespace(fn=stage))
    data.load_state_dict({**data.state_dict(), "batches": 2})
    assert torch.equal(next(iter(data.train_dataloader()))[1], whole[first])


def test_other_settings_do_not_resume(uninterrupted, tmp_path):
    folder, _ = uninterrupted
    data = ImageDataModule("digits", batch_size=128, augment="shift", validation=0.1)
    with pytest.raises(ParameterError, match="'batch_size': 256"):
        train(tmp_path, folder / "step=2.ckpt", data=data)


def test_each_process_gets_its_share():
    data = ImageDataModule("digits", batch_size=100)
    whole = [labels for _, labels in data.train_dataloader()]
    test = [labels for _, labels in data.test_dataloader()]
    parts, tests = [], []
    for rank in range(2):
        data.trainer = SimpleNamespace(global_rank=rank, world_size=2)
        parts.append([labels for _, labels in data.train_dataloader()])
        tests += [labels for _, labels in data.test_dataloader()]
    assert all(torch.equal(w, torch.cat(p)) for w, p in zip(whole, zip(*parts, strict=True), strict=True))
    assert torch.equal(torch.cat(tests).bincount(), torch.cat(test).bincount())


def test_validation_is_held_out_from_training():
    data, whole = ImageDataModule("digits", validation=0.2), load_dataset("digits")
    assert not data.validates_on_test and data.n_classes == 10
    assert len(data.train) + len(data.validation) == len(whole.train)
    assert torch.equal(data.validation.labels.bincount(), (whole.train.labels.bincount() * 0.2 + 0.5).long())
    both = torch.cat([data.train.pixels, data.validation.pixels]).flatten(1)
    assert torch.equal(both.unique(dim=0), whole.train.pixels.flatten(1).unique(dim=0))
    assert torch.equal(data.validation.pixels, ImageDataModule("digits", seed=7, validation=0.2).validation.pixels)


def test_without_validation_the_test_images_validate():
    data = ImageDataModule("digits")
    assert data.validates_on_test
    assert sum(len(labels) for _, labels in data.val_dataloader()) == len(data.test)


def test_a_dataset_of_ones_own():
    images = Images(torch.rand(12, 2, 5, 5), torch.arange(12) % 3)
    data = ImageDataModule(ImageData(images, images, ("a", "b", "c"), "mine"), batch_size=6)
    assert (data.name, data.image_shape, data.classes) == ("mine", (2, 5, 5), ("a", "b", "c"))
    with pytest.raises(ParameterError, match="takes a dataset as it is"):
        ImageDataModule(ImageData(images, images, ("a", "b", "c"), "mine"), root="/data")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"validation": 1.0}, "validation < 1"),
        ({"validation": -0.1}, "validation < 1"),
        ({"num_workers": 2}, "in memory"),
        ({"batch_size": 5000}, "larger than"),
        ({"batch_size": 0}, "batch_size ≥ 1"),
        ({"augment": "blur"}, "Unknown augmentation"),
        ({"augment": "shift:8"}, "out of sight"),
        ({"name": "imagenet"}, "Unknown dataset"),
        ({"seed": -1}, "seed ≥ 0"),
    ],
)
def test_wrong_settings_are_reported_at_once(options, match):
    with pytest.raises(ParameterError, match=match):
        ImageDataModule(**options)
