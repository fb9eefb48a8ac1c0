"""A script for 0.0.4 with annotations: what type checkers see at the paths that paper and documentation name."""

from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import assert_type

import orthogonium.legacy
from orthogonium import ClassParam
from orthogonium.layers import AdaptiveOrthoConv2d as FlatConv
from orthogonium.layers.channel_shuffle import ChannelShuffle
from orthogonium.layers.conv.adaptiveSOC import AdaptiveSOCConv2d, AdaptiveSOCConvTranspose2d
from orthogonium.layers.conv.AOC import (
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConvTranspose2d,
    BcopRkoConv2d,
    BcopRkoConvTranspose2d,
    FastBlockConv2d,
    FastBlockConvTranspose2D,
    RKOConv2d,
    RkoConvTranspose2d,
)
from orthogonium.layers.conv.AOL import AOLConv2D, AOLConv2d, AOLConvTranspose2D
from orthogonium.layers.conv.init import conv_orthogonal_
from orthogonium.layers.conv.singular_values import get_conv_sv
from orthogonium.layers.conv.SLL import (
    AOCLipschitzResBlock,
    SDPBasedLipschitzConv,
    SDPBasedLipschitzDense,
    SDPBasedLipschitzResBlock,
    SLLxAOCLipschitzResBlock,
)
from orthogonium.layers.custom_activations import Abs, HouseHolder, HouseHolder_Order_2, MaxMin, SoftHuber
from orthogonium.layers.linear import OrthoLinear, UnitNormLinear
from orthogonium.layers.normalization import BatchCentering, BatchCentering2D, LayerCentering, LayerCentering2D
from orthogonium.layers.residual import (
    AdditiveResidual,
    ConcatResidual,
    L2NormResidual,
    PrescaledAdditiveResidual,
)
from orthogonium.legacy.block_ortho_conv import BCOP
from orthogonium.legacy.cayley_ortho_conv import Cayley, CayleyLinear
from orthogonium.legacy.skew_ortho_conv import SOC
from orthogonium.losses import (
    VRA,
    Cosine_VRA_Loss,
    CosineLoss,
    LossXent,
    SoftHKRMulticlassLoss,
    check_last_linear_layer_type,
)
from orthogonium.model_factory import ClassParam as SameParam
from orthogonium.model_factory.models_factory import MODELS, AOCNetV1, LargeStagedCNN, SLLxBCOPResNet50
from orthogonium.reparametrizers import (
    DEFAULT_ORTHO_PARAMS,
    BatchedBjorckOrthogonalization,
    BatchedPowerIteration,
    OrthoParams,
)

assert_type(FlatConv(3, 8, 3), AdaptiveOrthoConv2d)
assert_type(SameParam(nn.Conv2d), ClassParam)

params = OrthoParams(
    spectral_normalizer=ClassParam(BatchedPowerIteration, power_it_niter=3, eps=1e-6),
    orthogonalizer=ClassParam(BatchedBjorckOrthogonalization, beta=0.5, niters=12, pass_through=False),
)
convolutions: list[nn.Conv2d] = [
    AdaptiveOrthoConv2d(4, 8, 3, stride=2, padding="same", padding_mode="circular", ortho_params=params),
    FastBlockConv2d(4, 8, kernel_size=(3, 3), padding=1, bias=False),
    RKOConv2d(4, 8, 2, stride=2, ortho_params=DEFAULT_ORTHO_PARAMS),
    BcopRkoConv2d(4, 8, 3, stride=2),
    AOLConv2D(4, 8, 3, padding=1, niter=2),
    AOLConv2d(4, 8, 3),
    AdaptiveSOCConv2d(4, 8, 3, padding=3),
]
transposes: list[nn.ConvTranspose2d] = [
    AdaptiveOrthoConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
    FastBlockConvTranspose2D(8, 4, 3),
    RkoConvTranspose2d(8, 4, 2, stride=2),
    BcopRkoConvTranspose2d(8, 4, 3, stride=2),
    AOLConvTranspose2D(8, 4, 3),
    AdaptiveSOCConvTranspose2d(8, 4, 3),
]
blocks: list[nn.Module] = [
    SDPBasedLipschitzResBlock(4, inner_dim_factor=2.0),
    SDPBasedLipschitzConv(4, 2.0),
    SLLxAOCLipschitzResBlock(4, 8, 1.0, kernel_size=3, stride=2),
    AOCLipschitzResBlock(4, 2.0, 3),
    ConcatResidual(nn.Identity()),
    L2NormResidual(nn.Identity()),
    AdditiveResidual(nn.Identity(), init_val=1.0),
    PrescaledAdditiveResidual(nn.Identity()),
    ChannelShuffle(2, 2),
    BatchCentering2D(4),
    LayerCentering2D(4),
    BatchCentering(4, momentum=0.1),
    LayerCentering(4),
    Abs(),
    SoftHuber(delta=0.05),
    MaxMin(axis=1),
    HouseHolder(4),
    HouseHolder_Order_2(4, axis=1),
    SOC(4, 4, 3, update_freq=200),
    Cayley(4, 4, 3, padding="same"),
]
images = torch.randn(2, 4, 8, 8)
for layer in (*convolutions, *blocks):
    layer(images)
for transpose in transposes:
    assert_type(transpose.weight, Tensor)
assert_type(BCOP(4, 4, 3).forward(images), Tensor)
assert_type(MaxMin().forward(images), Tensor)
assert_type(convolutions[0].bias, Tensor | None)

dense: list[nn.Module] = [OrthoLinear(8, 4), UnitNormLinear(8, 4, bias=False), CayleyLinear(8, 4)]
dense.append(SDPBasedLipschitzDense(8, 4, inner_dim=16))
assert_type(OrthoLinear(8, 4).singular_values(), tuple[float, float, float])
assert_type(OrthoLinear(8, 4).weight, Tensor)

sigma, stable_rank = get_conv_sv(convolutions[0], n_iter=3)
assert_type(stable_rank, Tensor)
assert_type(get_conv_sv(convolutions[0], 3, return_stab_rank=False), Tensor)
assert_type(conv_orthogonal_(torch.empty(4, 4, 3, 3), stride=1), Tensor)

logits, labels = torch.randn(4, 10), torch.zeros(4, dtype=torch.long)
losses: list[nn.Module] = [LossXent(10), CosineLoss(), Cosine_VRA_Loss(gamma=0.1), SoftHKRMulticlassLoss(alpha=0.9)]
for loss in losses:
    loss(logits, labels)
assert_type(LossXent(10).forward(outputs=logits, labels=labels), Tensor)
assert_type(VRA(logits, labels, last_layer_type="global", eps=36 / 255), Tensor)
head: Literal["global", "classwise", "unknown"] = check_last_linear_layer_type(nn.Sequential(OrthoLinear(8, 4)))

conv = ClassParam(AdaptiveOrthoConv2d, bias=False, padding="same", ortho_params=DEFAULT_ORTHO_PARAMS)
options: dict[str, Any] = {"conv": conv, "act": ClassParam(MaxMin), "lin": ClassParam(UnitNormLinear, bias=False)}
with torch.device("meta"):
    assert_type(LargeStagedCNN(img_shape=(3, 224, 224), n_classes=10, **options), nn.Module)
    models = [factory for name, factory in MODELS.items() if name.startswith("SplitConcatNet")]
    models += [AOCNetV1, SLLxBCOPResNet50]
assert orthogonium.legacy.__name__
