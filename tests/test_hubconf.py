"""`hubconf.py`: every model by `torch.hub`, from the clone."""

import importlib.util
from pathlib import Path

import pytest
import torch

from orthogonium.models import list_models
from tests.models.cases import SMALL

ROOT = str(Path(__file__).parents[1])


def load(name, **options):
    return torch.hub.load(ROOT, name, source="local", **options)


def test_names_are_those_of_models_and_weights():
    """By the rule of `torch.hub.list`, which knows no local source."""
    spec = importlib.util.spec_from_file_location("hubconf", f"{ROOT}/hubconf.py")
    hubconf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hubconf)
    entries = {k: v for k, v in vars(hubconf).items() if callable(v) and not k.startswith("_")}
    assert entries.keys() == {*list_models(), *list_models(pretrained=True)}
    assert "CIFAR-10" in entries["aocnet_tiny"].__doc__ and "digits" in entries["aocnet_tiny_digits"].__doc__


@pytest.mark.parametrize("name", SMALL)
def test_every_model(name):
    shape, options = SMALL[name]
    assert load(name, image_shape=shape, n_classes=5, **options).eval()(torch.rand(2, *shape)).shape == (2, 5)


def test_trained_weights():
    x = torch.rand(2, 1, 8, 8)
    model = load("aocnet_tiny_digits")
    assert torch.equal(model(x), load("aocnet_tiny", image_shape=(1, 8, 8), pretrained=True)(x)) and not model.training
