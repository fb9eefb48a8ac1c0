"""Every model keeps its constant, trains, and survives copies, other precisions and state dicts."""

import copy
import inspect

import pytest
import torch

from orthogonium import lipschitz_bound
from orthogonium.errors import GeometryError, ParameterError
from orthogonium.layers import MaxMin, OrthoLinear, UnitNormLinear
from orthogonium.layers.head import check_last_linear_layer_type
from orthogonium.methods import METHODS
from orthogonium.models import create_model, describe_model, list_models

from .cases import CLASSWISE, SMALL, small

METHODS_OF_THE_FAMILIES = ("aoc", "soc", "aol", "sll", "sandwich")
FAMILIES = ("aocnet_tiny", "lip_resnet_tiny", "lip_convmixer_tiny")


def largest_singular_value(f, x):
    """Of the Jacobian at x (no batch), by one backward per output and an SVD."""
    rows = torch.func.jacrev(lambda v: f(v[None])[0])(x).flatten(1)
    return torch.linalg.matrix_norm(rows, ord=2).item()


def perturbed(model):
    """Away from the initial parameters, where gates and biases have special values."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.05 * torch.randn_like(p))
    return model


def constant(bound, name):
    """Of the whole model, or of everything before a head whose rows have norm 1."""
    if name not in CLASSWISE:
        return bound.value
    assert bound.head.weight.norm(dim=1).max() <= 1 + 1e-5
    return bound.head.features_bound


def test_the_table_of_cases_is_complete():
    assert set(SMALL) == set(list_models())


@pytest.mark.parametrize("name", list_models())
def test_lipschitz_constant(name):
    model, shape = small(name)
    assert constant(lipschitz_bound(perturbed(model).eval(), shape), name) <= 1 + 1e-4


@pytest.mark.parametrize("name", list_models())
def test_jacobians_in_double_precision(name):
    model, shape = small(name)
    model = perturbed(model).double().eval()
    body = model if name not in CLASSWISE else torch.nn.Sequential(*list(model.children())[:-1])
    for x in torch.randn(2, *shape, dtype=torch.float64):
        assert 0.01 < largest_singular_value(body, x) <= 1 + 1e-9


@pytest.mark.parametrize("name", list_models())
def test_training_and_copies(name):
    model, shape = small(name)
    x, y = torch.rand(16, *shape), torch.arange(16) % 5
    twin = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(20 * model(x), y)
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert min(losses[4:]) < 0.97 * losses[0]

    model.eval(), twin.eval()
    assert not torch.equal(model(x), twin(x))
    twin.load_state_dict(model.state_dict())
    assert torch.equal(model(x), twin(x))
    assert torch.equal(model(x), copy.deepcopy(model)(x))


@pytest.mark.parametrize("padding_mode", ["circular", "zeros"])
@pytest.mark.parametrize("method", METHODS_OF_THE_FAMILIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_methods(name, method, padding_mode):
    model, shape = small(name, method=method, padding_mode=padding_mode)
    perturbed(model).double().eval()
    assert largest_singular_value(model, torch.randn(*shape, dtype=torch.float64)) <= 1 + 1e-9
    activations = [m for m in model.modules() if isinstance(m, MaxMin)]
    assert bool(activations) != METHODS[method].activated


@pytest.mark.parametrize("method", ["sll", "sandwich"])
def test_bound_of_layers_with_their_activation_inside(method):
    model, shape = small("lip_resnet_tiny", method=method, widths=(4,), depths=(1,))
    assert lipschitz_bound(model.eval(), shape).value <= 1 + 1e-4


@pytest.mark.parametrize("name", ["lip_resnet_tiny", "liresnet", "lip_shift_mixer"])
def test_block_reflectors(name):
    """Kernels as large as the image, with a skip connection, a stride, or one pixel."""
    model, shape = small(name, method="bro")
    perturbed(model).eval()
    assert lipschitz_bound(model, shape).value <= 1 + 1e-4
    assert largest_singular_value(model.double(), torch.randn(*shape, dtype=torch.float64)) <= 1 + 1e-9
    with pytest.raises(GeometryError, match="padding_mode='circular'"):
        small(name, method="bro", padding_mode="zeros")


def test_a_method_without_stride_leaves_it_to_another():
    model, _ = small("lip_resnet_tiny", method="cpl")
    kinds = [type(m).__name__.removeprefix("Parametrized") for m in model.features.modules()]
    assert "CPLConv2d" in kinds and "AdaptiveOrthoConv2d" in kinds


@pytest.mark.parametrize("pool", ["flatten", "avg", "l2", "max"])
@pytest.mark.parametrize(
    "head, kind, layer", [("global", "global", OrthoLinear), ("classwise", "classwise", UnitNormLinear)]
)
def test_pools_and_heads(pool, head, kind, layer):
    model, shape = small("aocnet_tiny", pool=pool, head=head)
    assert isinstance(model.head, layer) and check_last_linear_layer_type(model) == kind
    assert model(torch.rand(2, *shape)).shape == (2, 5)


@pytest.mark.parametrize("act", ["maxmin", "groupsort", "householder", "abs", "half-abs", "nactivation", "relu"])
@pytest.mark.parametrize("norm", [None, "batch-centering", "layer-centering"])
def test_activations_and_norms(act, norm):
    model, shape = small("aocnet_tiny", act=act, norm=norm)
    model.double().eval()
    assert largest_singular_value(model, torch.randn(*shape, dtype=torch.float64)) <= 1 + 1e-9


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (3, 9, 7), (2, 5, 12), (1, 28, 28)])
@pytest.mark.parametrize("name", ["aocnet_tiny", "lip_resnet_tiny"])
def test_any_image_size(name, shape):
    model = create_model(name, shape, 7, **SMALL[name][1])
    assert model(torch.rand(2, *shape)).shape == (2, 7)


def test_normalization_is_part_of_the_constant():
    shape = (3, 8, 8)
    centered = create_model("aocnet_tiny", shape, mean=(0.4, 0.5, 0.6), **SMALL["aocnet_tiny"][1]).eval()
    scaled = create_model("aocnet_tiny", shape, mean=0.5, std=(0.25, 0.2, 0.25), **SMALL["aocnet_tiny"][1]).eval()
    assert lipschitz_bound(centered, shape).value <= 1 + 1e-4
    assert lipschitz_bound(scaled, shape).value == pytest.approx(5, rel=1e-4)
    x = torch.rand(1, *shape)
    normalized = (x - 0.5) / torch.tensor([0.25, 0.2, 0.25])[:, None, None]
    torch.testing.assert_close(scaled.stem(x), normalized)


def test_layers_of_another_library():
    made = []

    class Conv(torch.nn.Conv2d):
        def __init__(self, in_channels, out_channels, **options):
            made.append(sorted(options))
            super().__init__(in_channels, out_channels, **options)

    model = create_model(
        "aocnet_tiny", (3, 32, 32), conv=Conv, lin=torch.nn.Linear, act=torch.nn.Tanh, norm=torch.nn.BatchNorm2d
    )
    assert made == [["bias", "kernel_size", "padding", "padding_mode", "stride"]] * 5
    assert type(model.head) is torch.nn.Linear
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 10)
    kinds = {type(m) for m in model.modules() if not list(m.children())}
    assert kinds <= {Conv, torch.nn.Linear, torch.nn.Tanh, torch.nn.BatchNorm2d, torch.nn.Flatten, torch.nn.Sequential}


@pytest.mark.parametrize("name", [n for n in list_models() if describe_model(n).n_classes == 1000])
def test_defaults_for_large_images(name):
    with torch.device("meta"):
        model = create_model(name)
    shape = describe_model(name).image_shape
    assert shape == (3, 224, 224)
    assert model.eval()(torch.empty(1, *shape, device="meta")).shape == (1, 1000)


@pytest.mark.parametrize("name", [n for n in list_models() if describe_model(n).n_classes == 10])
def test_defaults_for_small_images(name):
    with torch.device("meta"):
        model = create_model(name)
    assert model.eval()(torch.empty(1, *describe_model(name).image_shape, device="meta")).shape == (1, 10)


@pytest.mark.parametrize("name", list_models())
def test_every_argument_of_a_factory_is_an_option(name):
    options = describe_model(name).options
    assert "conv" in options or name == "sllxbcop_resnet50"
    assert inspect.Parameter.empty not in options.values()


@pytest.mark.parametrize("lipschitz", [0.25, 9.0])
@pytest.mark.parametrize("name", sorted(SMALL))
def test_constants_of_networks(name, lipschitz):
    """Shared by all layers of the chain, whatever else the network is made of; counted by the bound."""
    torch.manual_seed(0)
    model, shape = small(name, lipschitz=lipschitz)
    torch.manual_seed(0)
    plain, _ = small(name)
    found, expected = (lipschitz_bound(m.eval(), shape).value for m in (model, plain))
    assert found == pytest.approx(lipschitz * expected, rel=1e-4)
    assert model.state_dict().keys() == plain.state_dict().keys()


def test_trained_weights_have_their_constant():
    with pytest.raises(ParameterError, match="Scale"):
        create_model("aocnet_tiny_digits", pretrained=True, lipschitz=2.0)
