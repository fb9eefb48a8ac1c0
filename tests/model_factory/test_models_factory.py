"""The published names and arguments; what the networks compute is tested with `orthogonium.models`."""

import functools
import inspect

import pytest
import torch

from orthogonium.layers import (
    Abs,
    AdaptiveOrthoConv2d,
    AdaptiveSOCConv2d,
    AdditiveResidual,
    AOLConv2d,
    BatchCentering2D,
    MaxMin,
    OrthoLinear,
    UnitNormLinear,
)
from orthogonium.model_factory import ClassParam, models_factory
from orthogonium.model_factory.models_factory import (
    MODELS,
    AOCNetV1,
    BCOPLargeCNN,
    ConvMixerInspired,
    LargeStagedCNN,
    LipResNet,
    StagedCNN,
)

DEFAULTS = {
    "AOCNetV1": dict(
        img_shape=(3, 224, 224), n_classes=1000, expand_factor=2, block_depth=2, kernel_size=3, embedding_dim=1024,
        groups=8
    ),
    "LipResNet": dict(img_shape=(3, 224, 224), n_classes=1000, norm=None),
    "LipVGG": dict(img_shape=(3, 224, 224), n_classes=1000),
    "PatchBasedCNN": dict(
        img_shape=(3, 32, 32), dim=128, depth=8, kernel_size=3, patch_size=2, n_classes=10, groups=1
    ),
    "PatchBasedExapandedCNN": dict(
        img_shape=(3, 224, 224), dim=128, depth=12, kernel_size=5, patch_size=2, expand_factor=2, groups=None,
        n_classes=1000, skip=False,
    ),
    "ConvMixerInspired": dict(
        img_shape=(3, 32, 32), dim=128, depth=8, kernel_size=3, patch_size=2, expand_factor=1, channels_per_group=1,
        n_classes=10,
    ),
    "BCOPLargeCNN": dict(img_shape=(3, 32, 32), n_classes=10, norm=None),
    "StagedCNN": dict(
        img_shape=(3, 32, 32), dim_repeats=((64, 2), (128, 2)), dim_nb_dense=(256, 2), n_classes=10, pool=None
    ),
    "LargeStagedCNN": dict(
        img_shape=(3, 224, 224), patch_size=7, dim_repeats=((128, 4), (256, 4), (512, 4), (1024, 4)),
        dim_nb_dense=(1024, 5), n_classes=1000, norm=None, pool=None,
    ),
    "SLLxBCOPResNet50": dict(img_shape=(3, 224, 224), n_classes=1000, norm=None),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFAULTS)
def test_published_defaults(name):
    parameters = inspect.signature(getattr(models_factory, name)).parameters
    assert {key: parameters[key].default for key in DEFAULTS[name]} == DEFAULTS[name]
    assert MODELS[name] is getattr(models_factory, name)


def test_the_published_table_of_models():
    assert {"SplitConcatNet-M", "SplitConcatNet-M2", "LipResNet"} <= MODELS.keys()
    with torch.device("meta"):
        model = MODELS["SplitConcatNet-M"]()
    assert sum(type(m).__name__ == "PrescaledAdditiveResidual" for m in model) == 8
    assert model[-1].in_features == 1024 and model[-1].out_features == 1000


def test_a_script_with_its_own_layers():
    conv = ClassParam(AdaptiveOrthoConv2d, bias=True, padding_mode="circular")
    model = BCOPLargeCNN(
        img_shape=(1, 8, 8), n_classes=3, conv=conv, act=ClassParam(MaxMin), lin=ClassParam(OrthoLinear, bias=False)
    )
    assert [m.bias is not None for m in model if isinstance(m, AdaptiveOrthoConv2d)] == [True] * 4
    assert [m.bias is None for m in model if isinstance(m, OrthoLinear)] == [True] * 3
    assert [m.kernel_size for m in model if isinstance(m, AdaptiveOrthoConv2d)] == [(3, 3), (5, 5), (3, 3), (5, 5)]
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 3)


def test_a_plain_torch_network():
    model = LipResNet(
        img_shape=(3, 32, 32),
        n_classes=3,
        conv=ClassParam(torch.nn.Conv2d, bias=False, padding="same"),
        lin=torch.nn.Linear,
        norm=torch.nn.BatchNorm2d,
        base_width=4,
    )
    assert model(torch.rand(2, 3, 32, 32)).shape == (2, 3)


@pytest.mark.parametrize(
    "norm",
    [lambda: torch.nn.Identity(), torch.nn.Identity, ClassParam(torch.nn.Identity), ClassParam(), BatchCentering2D],
)
def test_norms_that_are_called_without_arguments(norm):
    model = LipResNet(img_shape=(3, 16, 16), n_classes=3, norm=norm, base_width=4, depths=(1, 1))
    kind = BatchCentering2D if norm is BatchCentering2D else torch.nn.Identity
    assert sum(type(m) is kind for m in model.modules()) == 6
    assert model.eval()(torch.rand(1, 3, 16, 16)).shape == (1, 3)


def test_norms_that_are_called_with_the_channels():
    def norm(channels=1):
        return torch.nn.BatchNorm2d(channels)

    made = AOCNetV1(img_shape=(3, 32, 32), n_classes=3, norm=norm, base_width=4, embedding_dim=16, groups=2)
    assert {m.num_features for m in made.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {4, 8, 16, 32, 64}


def test_kernel_size_and_border_chosen_by_the_caller():
    conv = ClassParam(AdaptiveOrthoConv2d, bias=False, kernel_size=5, padding=2, padding_mode="zeros")
    model = StagedCNN(
        img_shape=(1, 8, 8), dim_repeats=[(4, 1), (8, 1)], dim_nb_dense=(8, 1), conv=conv, norm=BatchCentering2D
    )
    layers = [m for m in model if isinstance(m, AdaptiveOrthoConv2d)]
    assert [(m.kernel_size, m.stride, m.padding_mode) for m in layers] == [
        ((5, 5), (1, 1), "zeros"),
        ((5, 5), (2, 2), "zeros"),
        ((5, 5), (1, 1), "zeros"),
    ]
    assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)


def test_unit_rows_are_for_the_head_only():
    model = LargeStagedCNN((3, 14, 14), dim_repeats=[(8, 1)], dim_nb_dense=(8, 2), n_classes=3)
    dense = [type(m).__mro__[1] for m in model if isinstance(m, torch.nn.Linear)]
    assert dense == [OrthoLinear, OrthoLinear, UnitNormLinear]


def partial_conv(**options):
    return functools.partial(AdaptiveOrthoConv2d, **options)


@pytest.mark.parametrize("wrap", [lambda **o: ClassParam(AdaptiveOrthoConv2d, **o), partial_conv])
def test_depthwise_layers_have_the_options_of_the_others(wrap):
    conv = wrap(bias=True, padding_mode="zeros", lipschitz=0.5)
    model = ConvMixerInspired((3, 8, 8), dim=4, depth=1, conv=conv, n_classes=3)
    layers = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert [type(m).__mro__[1] for m in layers] == [AdaptiveOrthoConv2d, AdaptiveSOCConv2d, AdaptiveOrthoConv2d]
    assert all(m.bias is not None and m.padding_mode == "zeros" and m.lipschitz == 0.5 for m in layers)
    own = ConvMixerInspired((3, 8, 8), dim=4, depth=1, conv=conv, n_classes=3, depthwise=ClassParam(AOLConv2d))
    assert sum(isinstance(m, AOLConv2d) for m in own.modules()) == 1


CHOICES = {
    "conv": ClassParam(AdaptiveOrthoConv2d, bias=True, padding_mode="circular"),
    "act": ClassParam(Abs),
    "lin": ClassParam(UnitNormLinear, bias=False),
    "norm": lambda *channels: torch.nn.Dropout(0.25),
    "pool": ClassParam(torch.nn.AvgPool2d, ceil_mode=True),
    "skip": ClassParam(AdditiveResidual, init_val=3.0),
}
SIZES = {
    "AOCNetV1": {"img_shape": (3, 32, 32), "embedding_dim": 32, "base_width": 4, "groups": 2},
    "LipResNet": {"img_shape": (3, 16, 16), "base_width": 4, "depths": (1, 1)},
    "PatchBasedCNN": {"img_shape": (3, 16, 16), "dim": 8, "depth": 2},
    "PatchBasedExapandedCNN": {"img_shape": (3, 16, 16), "dim": 8, "depth": 2},
    "ConvMixerInspired": {"img_shape": (3, 16, 16), "dim": 8, "depth": 2},
    "BCOPLargeCNN": {"img_shape": (3, 16, 16)},
    "StagedCNN": {"img_shape": (3, 16, 16), "dim_repeats": [(8, 1), (16, 1)], "dim_nb_dense": (8, 1)},
    "LargeStagedCNN": {"img_shape": (3, 14, 14), "dim_repeats": [(8, 1), (16, 1)], "dim_nb_dense": (8, 1)},
}


@pytest.mark.parametrize("name", SIZES)
def test_every_choice_of_layers_is_taken(name):
    factory = MODELS[name]
    choices = {key: value for key, value in CHOICES.items() if key in inspect.signature(factory).parameters}
    model = factory(**SIZES[name], n_classes=3, **choices)
    assert model(torch.rand(2, *SIZES[name]["img_shape"])).shape == (2, 3)
    convolutions = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    assert all(m.bias is not None and m.padding_mode == "circular" for m in convolutions)
    kinds = [type(m) for m in model.modules()]
    assert MaxMin not in kinds and Abs in kinds
    assert (AdditiveResidual in kinds) == ("skip" in choices)
    assert (torch.nn.AvgPool2d in kinds) == ("pool" in choices)
    assert (torch.nn.Dropout in kinds) == ("norm" in choices)
    assert isinstance(model[-1], UnitNormLinear) and model[-1].bias is None
    assert all(m.ceil_mode for m in model.modules() if isinstance(m, torch.nn.AvgPool2d))
    assert all(m.alpha == 3 for m in model.modules() if isinstance(m, AdditiveResidual))


def test_widths_follow_the_embedding():
    """As 0.0.4 builds it: a sixteenth of the embedding first; other stages by convolutions of `kernel_size`."""
    model = AOCNetV1((3, 32, 32), 10, kernel_size=5, embedding_dim=64, groups=None, block_depth=1, norm=None)
    made = [m for m in model.modules() if isinstance(m, torch.nn.Conv2d)]
    sizes = [(m.in_channels, m.out_channels, m.kernel_size[0], m.stride[0], m.groups) for m in made]
    stages = [
        [(w // 2, w, 5, 2, 1)] * (w > 8) + [(w, 2 * w, 5, 1, w // 2), (2 * w, w, 5, 1, w // 2), (w, w, 1, 1, 1)]
        for w in (8, 16, 32, 64)
    ]
    assert sizes == [(3, 4, 7, 2, 1), (4, 8, 3, 2, 1), *(size for stage in stages for size in stage)]
    with pytest.raises(ValueError, match="embedding_dim=8"):
        AOCNetV1(embedding_dim=8)


@pytest.mark.parametrize("expand_factor,per_group,groups", [(1, 1, 16), (1, 4, 4), (2, 2, 16), (2, 4, 8), (4, 4, 16)])
def test_groups_of_the_mixer_count_their_outputs(expand_factor, per_group, groups):
    model = ConvMixerInspired(dim=16, depth=1, expand_factor=expand_factor, channels_per_group=per_group)
    first, grouped, pointwise = (m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    assert (first.groups, grouped.groups, pointwise.groups) == (1, groups, 1)
    assert (grouped.in_channels, grouped.out_channels) == (16, 16 * expand_factor)


def test_groups_that_cannot_share_the_inputs():
    with pytest.raises(ValueError, match="multiple of expand_factor=2"):
        ConvMixerInspired(dim=16, expand_factor=2, channels_per_group=1)
