"""Names, import paths and leading arguments of the published library: scripts written for it run unchanged."""

import importlib
import inspect

import pytest
import torch

CONV = (
    "in_channels out_channels kernel_size stride=1 padding='same' dilation=1 groups=1 bias=True "
    "padding_mode='circular' ortho_params"
)
TRANSPOSE = (
    "in_channels out_channels kernel_size stride=1 padding=0 output_padding=0 groups=1 bias=True dilation=1 "
    "padding_mode='zeros' ortho_params"
)
AOL = (
    "in_channels out_channels kernel_size stride=1 padding=0 dilation=1 groups=1 bias=True padding_mode='zeros' "
    "device=None dtype=None niter=1"
)
AOL_TRANSPOSE = TRANSPOSE.replace("ortho_params", "device=None dtype=None niter=1")
SURFACE = {
    "orthogonium": {"ClassParam": "fct"},
    "orthogonium.layers": dict.fromkeys(
        [
            "Abs", "SoftHuber", "MaxMin", "HouseHolder", "HouseHolder_Order_2", "OrthoLinear", "UnitNormLinear",
            "BatchCentering2D", "LayerCentering2D", "ChannelShuffle", "AdaptiveOrthoConv2d",
            "AdaptiveOrthoConvTranspose2d",
        ]
    ),
    "orthogonium.layers.conv.AOC": {
        "AdaptiveOrthoConv2d": CONV,
        "AdaptiveOrthoConvTranspose2d": TRANSPOSE,
        "FastBlockConv2d": CONV,
        "FastBlockConvTranspose2D": TRANSPOSE,
        "RKOConv2d": CONV,
        "RkoConvTranspose2d": TRANSPOSE,
        "BcopRkoConv2d": CONV,
        "BcopRkoConvTranspose2d": TRANSPOSE,
    },
    "orthogonium.layers.conv.adaptiveSOC": {"AdaptiveSOCConv2d": CONV, "AdaptiveSOCConvTranspose2d": TRANSPOSE},
    "orthogonium.layers.conv.AOL": {
        "AOLConv2D": AOL,
        "AOLConv2d": AOL,
        "AOLConvTranspose2D": AOL_TRANSPOSE,
    },
    "orthogonium.layers.conv.SLL": {
        "SDPBasedLipschitzResBlock": "cin inner_dim_factor kernel_size=3 groups=1",
        "SDPBasedLipschitzConv": "cin inner_dim_factor kernel_size=3 groups=1",
        "SDPBasedLipschitzDense": "in_features out_features inner_dim",
        "SLLxAOCLipschitzResBlock": "cin cout inner_dim_factor kernel_size=3 stride=2 groups=1",
        "AOCLipschitzResBlock": (
            "in_channels inner_dim_factor kernel_size dilation=1 groups=1 bias=True padding_mode='circular' "
            "ortho_params"
        ),
    },
    "orthogonium.layers.conv.singular_values": {
        "get_conv_sv": "layer n_iter agg_groups=True return_stab_rank=True device=None detach=True imsize=None"
    },
    "orthogonium.layers.conv.init": {
        "conv_orthogonal_": "tensor stride=1 groups=1 gain=1.0 ortho_params generator=None"
    },
    "orthogonium.layers.linear": {
        "OrthoLinear": "in_features out_features bias=True ortho_params",
        "UnitNormLinear": "in_features out_features bias=True",
    },
    "orthogonium.layers.custom_activations": {
        "Abs": "", "SoftHuber": "delta=0.05", "MaxMin": "axis=1", "HouseHolder": "channels axis=1",
        "HouseHolder_Order_2": "channels axis=1",
    },
    "orthogonium.layers.normalization": {
        "BatchCentering2D": "num_features momentum=0.1",
        "LayerCentering2D": "num_features",
        "BatchCentering": "num_features",
        "LayerCentering": "num_features",
    },
    "orthogonium.layers.residual": {
        "ConcatResidual": "fn",
        "L2NormResidual": "fn eps=1e-6",
        "AdditiveResidual": "fn init_val=1.0",
        "PrescaledAdditiveResidual": "fn init_val=1.0",
    },
    "orthogonium.layers.channel_shuffle": {"ChannelShuffle": "group_in group_out dim=1"},
    "orthogonium.reparametrizers": {
        "OrthoParams": "spectral_normalizer orthogonalizer",
        "BatchedPowerIteration": "weight_shape power_it_niter=3 eps=1e-12",
        "BatchedIdentity": "weight_shape",
        "BatchedBjorckOrthogonalization": "weight_shape beta=0.5 niters=12 pass_through=False",
        "BatchedCholeskyOrthogonalization": "weight_shape stable=False",
        "BatchedExponentialOrthogonalization": "weight_shape niters",
        "BatchedQROrthogonalization": "weight_shape",
        "BatchedCayleyOrthogonalization": "weight_shape",
        "L2Normalize": "dtype dim=None",
        **dict.fromkeys(
            f"{name}_ORTHO_PARAMS"
            for name in "DEFAULT DEFAULT_TEST BJORCK_PASS_THROUGH EXP QR CHOLESKY CHOLESKY_STABLE CAYLEY".split()
        ),
    },
    "orthogonium.losses": {
        "LossXent": "n_classes offset=2.12132 temperature=0.25",
        "CosineLoss": "",
        "Cosine_VRA_Loss": "gamma=0.1 L=1.0 eps=36/255 last_layer_type='classwise'",
        "SoftHKRMulticlassLoss": "alpha min_margin=1.0 alpha_mean=0.99 temperature=1.0",
        "VRA": "output class_indices last_layer_type='classwise' L=1.0 eps=36/255 return_certs=False",
        "check_last_linear_layer_type": "model",
    },
    "orthogonium.model_factory": {"ClassParam": "fct"},
    "orthogonium.model_factory.models_factory": {
        "AOCNetV1": (
            "img_shape n_classes expand_factor block_depth kernel_size embedding_dim groups "
            "skip conv act lin norm pool"
        ),
        "LipResNet": "img_shape n_classes skip conv act lin norm",
        "LipVGG": "img_shape n_classes conv act lin norm",
        "PatchBasedCNN": (
            "img_shape dim depth kernel_size patch_size n_classes groups conv act pool lin norm"
        ),
        "PatchBasedExapandedCNN": (
            "img_shape dim depth kernel_size patch_size expand_factor groups n_classes skip conv act pool lin norm"
        ),
        "ConvMixerInspired": (
            "img_shape dim depth kernel_size patch_size expand_factor channels_per_group n_classes "
            "conv act pool lin norm"
        ),
        "BCOPLargeCNN": "img_shape n_classes conv act lin norm",
        "StagedCNN": "img_shape dim_repeats dim_nb_dense n_classes conv act pool lin norm",
        "LargeStagedCNN": "img_shape patch_size dim_repeats dim_nb_dense n_classes conv act lin norm pool",
        "SLLxBCOPResNet50": "img_shape n_classes norm",
        "MODELS": None,
    },
    "orthogonium.legacy.block_ortho_conv": {
        "BCOP": (
            "in_channels out_channels kernel_size stride=1 padding=None padding_mode='circular' bias=True "
            "bjorck_beta=0.5 bjorck_iters bjorck_order=1 power_iteration_scaling=True"
        )
    },
    "orthogonium.legacy.skew_ortho_conv": {"SOC": ""},
    "orthogonium.legacy.cayley_ortho_conv": {"Cayley": "", "CayleyLinear": ""},
}  # fmt: skip
NAMES = [(path, name, arguments) for path, names in SURFACE.items() for name, arguments in names.items()]


@pytest.mark.parametrize("path,name,arguments", NAMES, ids=[f"{p}.{n}" for p, n, _ in NAMES])
def test_name_leading_arguments_and_defaults(path, name, arguments):
    thing = getattr(importlib.import_module(path), name)
    if arguments is None:
        return
    published = [argument.partition("=") for argument in arguments.split()]
    own = inspect.signature(thing).parameters
    assert list(own)[: len(published)] == [argument for argument, _, _ in published]
    for argument, has_default, value in published:
        if has_default:
            assert own[argument].default == eval(value)


def test_a_script_for_the_published_library():
    from orthogonium import ClassParam
    from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d, MaxMin, OrthoLinear
    from orthogonium.reparametrizers import (
        DEFAULT_ORTHO_PARAMS,
        BatchedBjorckOrthogonalization,
        BatchedPowerIteration,
        OrthoParams,
    )

    conv = ClassParam(AdaptiveOrthoConv2d, padding_mode="circular", ortho_params=DEFAULT_ORTHO_PARAMS)
    params = OrthoParams(
        spectral_normalizer=ClassParam(BatchedPowerIteration, power_it_niter=3, eps=1e-6),
        orthogonalizer=ClassParam(BatchedBjorckOrthogonalization, beta=0.5, niters=12, pass_through=False),
    )
    model = torch.nn.Sequential(
        conv(3, 16, kernel_size=3, padding="same", bias=True),
        MaxMin(),
        conv(16, 32, kernel_size=4, stride=2, padding="same"),
        MaxMin(),
        AdaptiveOrthoConvTranspose2d(32, 16, kernel_size=3, stride=2, padding=1, output_padding=1),
        torch.nn.Flatten(),
        OrthoLinear(16 * 8 * 8, 10, ortho_params=params),
    )
    x, y = torch.randn(2, 2, 3, 8, 8)
    with torch.no_grad():
        assert (model(x) - model(y)).norm() <= (x - y).norm() * (1 + 1e-5)
