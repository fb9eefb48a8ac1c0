"""`freeze(model, activations="relu")`: affine maps and ReLU, the same outputs, and only such nodes in ONNX."""

import onnx
import onnxruntime
import pytest
import torch
from torch import nn

from orthogonium import convert
from orthogonium.errors import ExportError, ParameterError
from orthogonium.layers import (
    Abs,
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    AdditiveResidual,
    BatchCentering,
    FullSort,
    GroupSort,
    HouseHolder,
    HouseHolder_Order_2,
    MaxMin,
    NActivation,
    OrthoLinear,
    ReLUMaxMin,
    freeze,
)
from orthogonium.layers.affine_relu import affine_relu
from tests.conversion.networks import ResNet18, UNet

ACTIVATIONS = {
    "MaxMin": MaxMin,
    "ReLUMaxMin": ReLUMaxMin,
    "GroupSort": lambda: GroupSort(2),
    "Abs": Abs,
    "HouseHolder": lambda: HouseHolder(8),
    "NActivation": lambda: NActivation(8),
}
# What verifiers read, and what only moves entries.
READ = {"Conv", "Gemm", "Relu", "Add", "Concat", "Reshape", "Flatten", "Slice", "Pad", "Split", "Identity", "Constant"}


def randomized(module):
    for p in module.parameters():
        nn.init.normal_(p)
    return module


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(8,), (8, 5), (8, 4, 3), (8, 2, 3, 4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_activations(name, shape, dtype):
    activation = randomized(ACTIVATIONS[name]()).to(dtype)
    x = 3 * torch.randn(16, *shape, dtype=dtype)
    written = affine_relu(activation, 8, x)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(written(x), activation(x), rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["MaxMin", "GroupSort", "HouseHolder"])
def test_the_last_axis(name):
    activation = randomized(ACTIVATIONS[name]())
    activation.axis = -1
    x = torch.randn(4, 5, 8)
    torch.testing.assert_close(affine_relu(activation, 8, x)(x), activation(x), rtol=0, atol=1e-5)


def network(name):
    body = [AdaptiveOrthoConv2d(3, 8, 3, padding=1, padding_mode="zeros", bias=False), BatchCentering(8)]
    model = nn.Sequential(
        *body, ACTIVATIONS[name](),
        AdaptiveOrthoConv2d(8, 8, 3, stride=2, padding=1, padding_mode="zeros"), BatchCentering(8), ACTIVATIONS[name](),
        nn.Flatten(), OrthoLinear(8 * 4 * 4, 8), ACTIVATIONS[name](), OrthoLinear(8, 4),
    )  # fmt: skip
    for module in model:
        if not isinstance(module, AdaptiveOrthoConv2d | OrthoLinear):
            randomized(module)
    for _ in range(3):
        model(1 + torch.randn(16, 3, 8, 8))
    return model.eval()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_onnx_files_have_affine_maps_and_relu_only(name, tmp_path):
    model, x = network(name), torch.randn(4, 3, 8, 8)
    plain = freeze(model, activations="relu")
    expected = model(x).detach()
    torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-5)
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(plain, (x,), path, dynamo=True, verbose=False)
    assert {node.op_type for node in onnx.load(path).graph.node} <= READ
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(output), expected, rtol=0, atol=1e-5)


def test_centering_is_part_of_the_bias_before_it():
    model = network("MaxMin")
    plain = freeze(model, activations="relu")
    assert isinstance(plain[1], nn.Identity) and isinstance(plain[4], nn.Identity)
    torch.testing.assert_close(plain[0].bias, model[1].bias - model[1].running_mean)
    assert isinstance(model[1], BatchCentering)  # of a copy


def test_centering_elsewhere_is_added():
    model = nn.Sequential(BatchCentering(3), AdaptiveOrthoConv2d(3, 4, 3), MaxMin())
    model(1 + torch.randn(8, 3, 6, 6))
    x = torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(freeze(model, "relu")(x), model.eval()(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("make, shape", [(lambda: ResNet18(width=4), (3, 32, 32)), (lambda: UNet(4), (1, 16, 16))])
def test_converted_networks(make, shape):
    model = convert(make(), shape).model.train()
    for _ in range(2):
        model(1 + torch.randn(4, *shape))
    x = torch.randn(2, *shape)
    plain = freeze(model, "relu", input_shape=shape)
    assert not any(isinstance(m, MaxMin | BatchCentering) for m in plain.modules())
    expected = model.eval()(x)
    torch.testing.assert_close(plain(x), expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


def test_the_shape_tells_what_layers_do_not():
    block = AdditiveResidual(nn.Sequential(AdaptiveOrthoConv1d(4, 4, 3), MaxMin()))
    with pytest.raises(ExportError, match="Pass input_shape"):
        freeze(block, "relu")
    x = torch.randn(2, 4, 6)
    torch.testing.assert_close(freeze(block, "relu", (4, 6))(x), block.eval()(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("activation", [GroupSort(4), FullSort(), HouseHolder_Order_2(8)])
def test_what_has_no_such_form_is_named(activation):
    with pytest.raises(ExportError, match="1 sort more than pairs"):
        freeze(nn.Sequential(OrthoLinear(8, 8), activation), "relu")


def test_mistakes():
    with pytest.raises(ParameterError, match="'relu' or None"):
        freeze(nn.Sequential(OrthoLinear(8, 8)), "sigmoid")
    with pytest.raises(ExportError, match="axis 2"):
        affine_relu(MaxMin(axis=2), 4, torch.zeros(()))(torch.randn(2, 3, 4, 5))


class OwnMaxMin(MaxMin):
    def forward(self, x):
        return -super().forward(x)


class OwnCentering(BatchCentering):
    def forward(self, x):
        return 2 * super().forward(x)


def centered(layer=None, follower=None):
    conv = AdaptiveOrthoConv2d(4, 4, 3, padding=1) if layer is None else layer
    centering = BatchCentering(4) if follower is None else follower
    centering.running_mean.normal_()
    return nn.Sequential(conv, centering, MaxMin())


def with_hook(index):
    model = centered()
    model[index].register_forward_hook(lambda module, inputs, output: 3 * output)
    return model


def replaced():
    model = centered()
    model[2].forward = lambda x: -x
    return model


class ReadsBias(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = centered()

    def forward(self, x):
        return self.layers[:2](x) + self.layers[0].bias.view(1, -1, 1, 1)


def shared_conv():
    model = centered()
    return nn.Sequential(*model, AdditiveResidual(model[0]))


def shared_centering():
    model = centered()
    return nn.Sequential(*model, AdditiveResidual(nn.Sequential(AdaptiveOrthoConv2d(4, 4, 3, padding=1), model[1])))


ODD = {
    "hook of MaxMin": lambda: with_hook(2),
    "hook of centering": lambda: with_hook(1),
    "hook of the layer before": lambda: with_hook(0),
    "own MaxMin": lambda: nn.Sequential(AdaptiveOrthoConv2d(4, 4, 3, padding=1), OwnMaxMin()),
    "own centering": lambda: centered(follower=OwnCentering(4)),
    "replaced forward": replaced,
    "shared convolution": shared_conv,
    "shared centering": shared_centering,
    "bias that is read": ReadsBias,
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("input_shape", [None, (4, 5, 5)])
def test_the_same_function_or_an_error(name, input_shape):
    model = randomized(ODD[name]()).eval()
    x = torch.randn(3, 4, 5, 5)
    try:
        written = freeze(model, activations="relu", input_shape=input_shape)
    except ExportError:
        return
    torch.testing.assert_close(written(x), model(x), rtol=1e-4, atol=1e-4)
