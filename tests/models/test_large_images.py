"""Images of the size of ImageNet's: every family has a stem and a pooling for them, which small images do not see."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from orthogonium import lipschitz_bound
from orthogonium.layers import GlobalL2NormPool, InvertibleDownsampling
from orthogonium.model_factory.models_factory import LipVGG, SLLxBCOPResNet50
from orthogonium.models import create_model, describe_model, list_models
from orthogonium.models.registry import is_large

from .cases import SMALL
from .test_models import largest_singular_value, perturbed

LARGE = [name for name in list_models() if describe_model(name).large_options]
GFLOP = 1e9
# published with more parameters: factory, millions of them, and the options that ask for them by name
PUBLISHED = {
    "lip_vgg": (LipVGG, 131, {"pool": None}),  # a dense layer 25088→4096
    "sllxbcop_resnet50": (SLLxBCOPResNet50, 283, {"base_width": 64}),  # blocks of 2048→4096 channels
}


def on_meta(*arguments, **options):
    with torch.device("meta"):
        return create_model(*arguments, **options)


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", list_models())
def test_parameters_and_flops_for_imagenet(name):
    """A training step at batch 4 in ten seconds of two cores, at 100 Gflop/s each.

    Without values, there are always three passes of Cholesky, where one or two would do: this is more than a CPU takes.
    """
    model = on_meta(name, (3, 224, 224), 1000)
    assert count(model) <= 60e6
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.empty(4, 3, 224, 224, device="meta"))
        logits.sum().backward()
    assert logits.shape == (4, 1000)
    assert counter.get_total_flops() <= 2000 * GFLOP


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_factories_keep_their_shape(name):
    factory, millions, asked = PUBLISHED[name]
    with torch.device("meta"):
        model = factory()
    assert round(count(model) / 1e6) == millions
    assert str(model) == str(on_meta(name, (3, 224, 224), 1000, **asked)) == str(on_meta(name, **asked))
    assert model.eval()(torch.empty(1, 3, 224, 224, device="meta")).shape == (1, 1000)


@pytest.mark.parametrize("name", LARGE)
def test_small_images_keep_their_network(name):
    """The options of the function itself, up to 64×64 pixels and not a pixel further."""
    entry = describe_model(name)
    for shape in ((3, 32, 32), (3, 64, 64)):
        assert str(on_meta(name, shape)) == str(on_meta(name, shape, **entry.options))
    own = {option: entry.options[option] for option in entry.large_options}
    assert str(on_meta(name, (3, 64, 65))) != str(on_meta(name, (3, 64, 65), **own))


@pytest.mark.parametrize("name", LARGE)
def test_options_that_are_given_win(name):
    entry = describe_model(name)
    own = {option: entry.options[option] for option in entry.large_options}
    with torch.device("meta"):
        plain = entry.build((3, 68, 68), 10, **{**entry.options, **own})
    assert str(on_meta(name, (3, 68, 68), 10, **own)) == str(plain)
    if own.keys() >= {"patch", "pool"}:
        kinds = [type(m) for m in on_meta(name, (3, 68, 68), patch=1).modules()]
        assert GlobalL2NormPool in kinds and InvertibleDownsampling not in kinds


@pytest.mark.parametrize("name", LARGE)
def test_constant_on_large_images(name):
    """Also where the stem must continue the image to a multiple of its stride."""
    shape = (3, 72, 65)
    options = {option: value for option, value in SMALL[name][1].items() if option not in ("patch", "patch_size")}
    torch.manual_seed(0)
    model = perturbed(create_model(name, shape, 5, **options)).eval()
    if describe_model(name).large_options.keys() & {"patch", "patch_size"}:
        assert any(isinstance(m, torch.nn.ZeroPad2d) for m in model.modules())
    assert lipschitz_bound(model, shape).value <= 1 + 1e-4
    x = torch.rand(shape, dtype=torch.float64)
    assert 0.01 < largest_singular_value(model.double(), x) <= 1 + 1e-9


def test_what_is_large():
    assert not is_large((3, 64, 64)) and is_large((1, 40, 1000)) and not is_large((224, 224))


def test_every_pixel_counts():
    """Images are continued, not cut."""
    torch.manual_seed(0)
    model = create_model("patch_based_cnn", (1, 67, 68), 3, dim=8, depth=1).double().eval()
    x = torch.rand(1, 1, 67, 68, dtype=torch.float64, requires_grad=True)
    model(x).square().sum().backward()
    assert (x.grad[..., -1, :] != 0).all() and (x.grad[..., -1] != 0).all()
