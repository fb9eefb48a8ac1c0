"""The weights that come with the library: small, within the bound, and as good as their metadata says."""

import pytest
import torch

from orthogonium import certify, lipschitz_bound
from orthogonium.data import load_dataset, unit_pixels
from orthogonium.errors import ParameterError
from orthogonium.models import create_model, describe_pretrained, list_models, shipped_weights

SHIPPED = ("aocnet_tiny_cifar10", "aocnet_tiny_digits")


def test_what_is_shipped():
    assert tuple(list_models(pretrained=True)) == SHIPPED
    assert sum(path.stat().st_size for path in shipped_weights.FOLDER.iterdir()) <= 10e6


@pytest.mark.parametrize("name", SHIPPED)
def test_bound(name):
    found = describe_pretrained(name)
    assert lipschitz_bound(create_model(name, pretrained=True), found.image_shape).value <= 1 + 1e-4


def test_digits_are_certified_as_promised():
    found = describe_pretrained("aocnet_tiny_digits")
    test = load_dataset("digits").test
    loader = [(unit_pixels(test.pixels), test.labels)]
    eps = [float(radius) for radius in found.certified_accuracy]
    certificates = certify(create_model("aocnet_tiny_digits", pretrained=True), loader, eps=eps)
    one = 1.5 / len(test)  # rounding may move one input across a radius
    assert certificates.accuracy == pytest.approx(found.accuracy, abs=one) and found.accuracy >= 0.97
    assert certificates.certified_accuracy == pytest.approx(tuple(found.certified_accuracy.values()), abs=one)
    assert found.certified_accuracy["0.25"] >= 0.88 and found.certified_accuracy["0.5"] >= 0.6


def test_a_shape_chooses_among_the_weights_of_one_model():
    assert create_model("aocnet_tiny", (1, 8, 8), pretrained=True)(torch.rand(1, 1, 8, 8)).shape == (1, 10)
    assert create_model("aocnet_tiny", (3, 32, 32), pretrained=True)(torch.rand(1, 3, 32, 32)).shape == (1, 10)


@pytest.mark.parametrize("name", SHIPPED)
def test_another_number_of_classes_gets_a_new_head(name):
    found = describe_pretrained(name)
    torch.manual_seed(0)
    model, trained = create_model(name, pretrained=True, n_classes=5), create_model(name, pretrained=True)
    x = torch.rand(3, *found.image_shape)
    assert model(x).shape == (3, 5) and not model.training
    assert torch.equal(model[:-1](x), trained[:-1](x))
    assert lipschitz_bound(model, found.image_shape).value <= 1 + 1e-4
    torch.manual_seed(1)
    other = create_model(name, pretrained=True, n_classes=5)
    assert not torch.equal(model(x), other(x))  # the head is random
    assert torch.equal(create_model(name, pretrained=True, n_classes=found.n_classes)(x), trained(x))


def test_a_name_that_is_neither_a_model_nor_weights_is_answered_with_both_lists():
    with pytest.raises(ParameterError, match=r"nor weights of this name\. Trained: .*aocnet_tiny_digits.*Models: aoc"):
        create_model("aocnet_tiny_digit", pretrained=True)
