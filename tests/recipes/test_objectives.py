import pytest
import torch

from orthogonium.errors import ParameterError
from orthogonium.recipes.objectives import create_loss
from orthogonium.training import LOSSES, LipschitzClassifier, Recipe

REQUIRED = {"tau-cross-entropy": {"tau": 5.0}, "hkr": {"alpha": 0.9}}


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_prefers_right_logits(name):
    loss = create_loss(name, REQUIRED.get(name, {}), n_classes=4, head="global")
    right = (torch.eye(4) + 0.2).requires_grad_()
    labels = torch.arange(4)
    value = loss(right, labels)
    (gradient,) = torch.autograd.grad(value, right)
    assert value.shape == () and value < loss(-right, labels)
    assert gradient.diagonal().max() < 0  # larger margins are better


def test_the_head_of_the_network_is_used_unless_told_otherwise():
    assert create_loss("emma", {}, n_classes=4, head="global").last_layer_type == "global"
    assert create_loss("emma", {}, n_classes=4, head="unknown").last_layer_type == "classwise"
    assert (
        create_loss("emma", {"last_layer_type": "classwise"}, n_classes=4, head="global").last_layer_type == "classwise"
    )
    assert create_loss("offset-cross-entropy", {}, n_classes=7).n_classes == 7


@pytest.mark.parametrize("name", ["emma", "certificate-regularized", "cosine-vra"])
def test_radii_are_those_of_the_constant_of_the_network(name):
    options = {"std": 0.25, "lipschitz": 0.5, "stride_kernel": 2, "hidden": []}
    classifier = LipschitzClassifier(Recipe(loss=name, model_options=options, eps=(0.1,)), image_shape=(1, 8, 8))
    assert classifier.loss.L == classifier.certified.L == 2.0
    assert create_loss(name, {"L": 2.0}, n_classes=4, lipschitz=4.0).L == 2.0


def test_wrong_options_are_named():
    with pytest.raises(ParameterError, match="'hkr' needs the option alpha. Its options are alpha, min_margin"):
        create_loss("hkr", {}, n_classes=4)
    with pytest.raises(ParameterError, match="has no option tau"):
        create_loss("cosine", {"tau": 1.0}, n_classes=4)
    with pytest.raises(ParameterError, match="choose one of offset-cross-entropy"):
        create_loss("mse", {}, n_classes=4)
