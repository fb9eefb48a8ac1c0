from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.normalization import (
    BatchCentering,
    BatchCentering2D,
    BatchLipNorm,
    LayerCentering,
    LayerCentering2D,
)
from tests.jacobians import singular_values, worst_ratio
from tests.processes import run_distributed

SHAPES = [(4, 3), (4, 3, 5), (4, 3, 2, 3), (2, 3, 2, 2, 2)]
LAYERS = {
    "BatchCentering": lambda: BatchCentering(3),
    "cumulative": lambda: BatchCentering(3, momentum=None),
    "BatchLipNorm": lambda: BatchLipNorm(3),
    "LayerCentering": lambda: LayerCentering(3),
    "LayerCentering all axes": lambda: LayerCentering(3, dim=(1, -1)),
}


def trained(layer, dtype=torch.float64):
    """After a few batches with a mean, a spread and a bias of their own."""
    layer = layer.to(dtype)
    with torch.no_grad():
        layer.bias.normal_()
    for _ in range(3):
        layer(0.3 * torch.randn(8, 3, 4, dtype=dtype) + torch.tensor([[[1.0], [-2.0], [5.0]]], dtype=dtype))
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_centering_is_an_isometry_in_eval(shape, dtype):
    layer = trained(BatchCentering(3), dtype).eval()
    x, y = torch.randn(2, *shape, dtype=dtype)
    assert layer(x).shape == x.shape and layer(x).dtype == dtype
    assert (singular_values(layer, x) - 1).abs().max() < 1e-6
    assert torch.allclose(layer(x) - layer(y), x - y, atol=1e-5)
    assert layer.guarantee.kind == "orthogonal"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_centering_projects_orthogonally_in_training(shape):
    """Also the batch mean is differentiated: singular values 1, and one 0 for the mean of each channel."""
    layer = BatchCentering(3).double()
    values = singular_values(layer, torch.randn(shape, dtype=torch.float64))
    assert (values[:-3] - 1).abs().max() < 1e-12 and values[-3:].max() < 1e-12


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_centering_removes_the_mean_of_each_channel_and_adds_the_bias(shape):
    layer = BatchCentering(3).double()
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, -2.0, 7.0]))
    y = layer(torch.randn(shape, dtype=torch.float64) + 3)
    assert torch.allclose(y.transpose(0, 1).flatten(1).mean(dim=1), layer.bias)


def test_running_mean_is_an_exponential_average():
    layer, expected = BatchCentering(3, momentum=0.3).double(), torch.zeros(3, dtype=torch.float64)
    for _ in range(4):
        x = torch.randn(6, 3, 2, dtype=torch.float64) + 2
        layer(x)
        expected = 0.7 * expected + 0.3 * x.mean(dim=(0, 2))
    assert torch.allclose(layer.running_mean, expected)
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    assert torch.allclose(layer.eval()(x), x - expected[:, None])


def test_momentum_none_averages_all_batches():
    for layer in (BatchCentering(3, momentum=None).double(), BatchLipNorm(3, momentum=None).double()):
        batches = torch.randn(5, 6, 3, 2, dtype=torch.float64) + 2
        for x in batches:
            layer(x)
        assert torch.allclose(layer.running_mean, batches.mean(dim=(0, 1, 3)))
        if isinstance(layer, BatchLipNorm):
            assert torch.allclose(layer.running_var, batches.transpose(1, 2).flatten(2).var(dim=2).mean(dim=0))
        layer.reset_parameters()
        layer(batches[0])
        assert torch.allclose(layer.running_mean, batches[0].mean(dim=(0, 2)))


@pytest.mark.parametrize("name", LAYERS)
def test_eval_changes_no_state(name):
    layer = trained(LAYERS[name]()).eval()
    before = deepcopy(layer.state_dict())
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    assert torch.equal(layer(x), layer(x))
    assert all(torch.equal(v, before[k]) for k, v in layer.state_dict().items())


@pytest.mark.parametrize("name", LAYERS)
def test_checkpoint_round_trip(name, tmp_path):
    layer = trained(LAYERS[name]())
    torch.save(layer.state_dict(), tmp_path / "checkpoint.pt")
    copy = LAYERS[name]().double()
    copy.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    assert torch.equal(copy.eval()(x), layer.eval()(x))
    assert torch.equal(copy.train()(x), layer.train()(x))
    if "Layer" not in name:
        assert torch.equal(copy.running_mean, layer.running_mean)
        assert copy.num_batches_tracked == layer.num_batches_tracked == 4
        assert not any(p is layer.running_mean for p in layer.parameters())


@pytest.mark.parametrize("shape", [s for s in SHAPES if len(s) > 2], ids=str)
def test_layer_centering_projects_away_the_spatial_mean(shape):
    layer = trained(LayerCentering(3))
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(layer(x).flatten(2).mean(dim=2), layer.bias.expand(shape[0], 3))
    values = singular_values(layer, x)
    lost = shape[0] * shape[1]
    assert (values[:-lost] - 1).abs().max() < 1e-12 and values[-lost:].max() < 1e-12
    assert torch.equal(layer(x), layer.eval()(x))


def test_layer_centering_of_vectors_and_over_chosen_axes():
    layer = LayerCentering(3).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    assert torch.allclose(layer(x), x - x.mean(dim=1, keepdim=True))
    x = torch.randn(4, 3, 5, 5, dtype=torch.float64)
    assert torch.allclose(LayerCentering(3, dim=(1, 2, 3))(x), x - x.mean(dim=(1, 2, 3), keepdim=True))
    assert torch.allclose(LayerCentering(3, dim=-1)(x), x - x.mean(dim=3, keepdim=True))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batch_lip_norm_states_its_exact_constant(shape):
    layer = trained(BatchLipNorm(3, momentum=1.0)).eval()
    values = singular_values(layer, torch.randn(shape, dtype=torch.float64))
    assert layer.lipschitz_constant > 1.5  # the spread of `trained` is 0.3: it does expand
    assert (values - layer.lipschitz_constant).abs().max() < 1e-12
    assert not hasattr(layer, "guarantee")


def test_batch_lip_norm_divides_by_the_largest_deviation():
    layer = BatchLipNorm(3, bias=False).double()
    spread = torch.tensor([0.5, 4.0, 2.0], dtype=torch.float64)
    x = spread[:, None] * torch.randn(10, 3, 50, dtype=torch.float64) + 3
    deviations = layer(x).transpose(0, 1).flatten(1).std(dim=1)
    expected = x.transpose(0, 1).flatten(1).std(dim=1)
    assert torch.allclose(deviations, expected / expected.max())


def test_batch_lip_norm_of_constant_channels():
    layer = BatchLipNorm(3, momentum=1.0, eps=1e-3).double()
    x = 0.01 * torch.randn(10, 3, 5, dtype=torch.float64)
    assert torch.allclose(layer(x), x - x.mean(dim=(0, 2), keepdim=True))
    assert layer.lipschitz_constant == 1


@pytest.mark.parametrize("name", ["BatchCentering", "BatchLipNorm", "LayerCentering"])
def test_training_gradients(name):
    layer = trained(LAYERS[name]())
    x = torch.randn(3, 3, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


@pytest.mark.parametrize("name", ["BatchCentering", "LayerCentering"])
@pytest.mark.parametrize("training", [True, False])
def test_searched_inputs_are_never_moved_apart(name, training):
    layer = trained(LAYERS[name]()).train(training)
    x, y = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    assert worst_ratio(layer, x, y, steps=20) <= 1 + 1e-9


@pytest.mark.parametrize("name", LAYERS)
def test_half_precision_statistics_are_not_rounded(name):
    layer = LAYERS[name]().bfloat16()
    x = (100 + torch.randn(64, 3, 16)).bfloat16()
    y = layer(x)
    assert y.dtype == torch.bfloat16
    if "Batch" in name or name == "cumulative":
        assert y.double().mean().abs() < 0.02  # the mean rounded to bfloat16 would be up to 0.25 off


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("training", [True, False])
def test_compiles_in_one_graph(training, backend):
    torch.compiler.reset()
    layers = nn.Sequential(*(build() for build in LAYERS.values())).train(training)
    reference = deepcopy(layers)
    x = torch.randn(4, 3, 5, requires_grad=True)
    y = torch.compile(layers, backend=backend, fullgraph=True)(x)
    y.sum().backward()
    assert torch.allclose(y, reference(x), atol=1e-6)
    for key, value in layers.state_dict().items():
        assert torch.allclose(value, reference.state_dict()[key]), key


def test_published_names():
    x = torch.randn(4, 3, 6, 6)
    assert BatchCentering2D(3, 0.2).momentum == 0.2
    assert BatchCentering2D(num_features=3)(x).shape == LayerCentering2D(num_features=3)(x).shape == x.shape
    assert BatchCentering2D(3)(x[:, :, 0, 0]).shape == (4, 3)  # vectors are no exception


def test_no_bias():
    for layer in (BatchCentering(3, bias=False), BatchLipNorm(3, bias=False), LayerCentering(3, bias=False)):
        assert not list(layer.parameters())
        layer.reset_parameters()
        assert layer(torch.randn(4, 3, 2)).mean().abs() < 1e-6


def test_bad_arguments_are_rejected():
    for layer in (BatchCentering, BatchLipNorm):
        with pytest.raises(ParameterError, match="num_features=0"):
            layer(0)
        with pytest.raises(ParameterError, match=r"momentum.*1.5"):
            layer(3, momentum=1.5)
        with pytest.raises(ShapeError, match="more than one value"):
            layer(3)(torch.randn(1, 3))
    for layer in (BatchCentering(3), BatchLipNorm(3), LayerCentering(3)):
        for shape in [(4, 5), (3,), (4, 5, 3)]:
            with pytest.raises(ShapeError, match=r"built for.* 3"):
                layer(torch.randn(shape))
    with pytest.raises(ParameterError, match="eps"):
        BatchLipNorm(3, eps=0)
    for dim in (0, (), (0, 1)):
        with pytest.raises(ParameterError, match="dim"):
            LayerCentering(3, dim=dim)
    with pytest.raises(ShapeError, match="lacks"):
        LayerCentering(3, dim=3)(torch.randn(2, 3, 4))


def test_printed_form():
    layers = [BatchCentering(3), BatchLipNorm(4, None, bias=False, sync=False), LayerCentering(3, dim=1)]
    assert [repr(layer) for layer in layers] == [
        "BatchCentering(3)",
        "BatchLipNorm(4, momentum=None, bias=False, sync=False)",
        "LayerCentering(3, dim=(1,))",
    ]


# ---- several processes ---------------------------------------------------------------------------------------------


def _compare_with_one_process(rank):
    """Batches of 5 and 3 in two processes against the 8 samples in one."""
    torch.manual_seed(0)
    whole = (torch.randn(8, 3, 4, dtype=torch.float64) + 2).requires_grad_()
    weight = torch.randn(8, 3, 4, dtype=torch.float64)
    mine = slice(0, 5) if rank == 0 else slice(5, 8)
    for build in (BatchCentering, BatchLipNorm):
        single, synced, local = build(3, sync=False).double(), build(3).double(), build(3, sync=False).double()
        expected = single(whole)
        (gradient,) = torch.autograd.grad((expected * weight).sum(), whole)

        x = whole.detach()[mine].requires_grad_()
        y = synced(x)
        (y * weight[mine]).sum().backward()
        assert torch.allclose(y, expected[mine])
        assert torch.allclose(x.grad, gradient[mine])
        for name, value in single.named_buffers():
            assert torch.allclose(synced.get_buffer(name), value), name

        assert not torch.allclose(local(x), expected[mine])
        assert torch.allclose(synced.eval()(x), single.eval()(whole)[mine])

    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 3), BatchCentering(3)))
    for _ in range(2):
        model(torch.randn(6, 4) + rank).square().sum().backward()
    mean = model.module[1].running_mean
    gathered = [torch.empty_like(mean) for _ in range(2)]
    torch.distributed.all_gather(gathered, mean)
    assert torch.equal(*gathered)

    torch.compiler.reset()
    compiled = BatchCentering(3).double()
    x = whole.detach()[mine].requires_grad_()
    y = torch.compile(compiled, backend="eager", fullgraph=True)(x)
    (y * weight[mine]).sum().backward()
    expected = BatchCentering(3, sync=False).double()(whole)
    (gradient,) = torch.autograd.grad((expected * weight).sum(), whole)
    assert torch.allclose(y, expected[mine]) and torch.allclose(x.grad, gradient[mine])


def test_statistics_of_two_processes_are_those_of_the_global_batch(tmp_path):
    run_distributed(_compare_with_one_process, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_layer_centering_of_tokens(dtype):
    """(batch, time, channels): over time, or over channels of each token as LayerNorm does; the bias is of channels."""
    x = torch.randn(2, 5, 6, dtype=dtype)
    over_time, over_channels = LayerCentering(6, axis=-1, dtype=dtype), LayerCentering(6, dim=-1, axis=-1, dtype=dtype)
    torch.testing.assert_close(over_time(x), x - x.mean(1, keepdim=True))
    torch.testing.assert_close(over_channels(x), x - x.mean(-1, keepdim=True))
    b = torch.randn(6, dtype=dtype)
    for layer in (over_time, over_channels):
        before = layer(x)
        nn.init.zeros_(layer.bias).data.add_(b)
        torch.testing.assert_close(layer(x), before + b)
        assert singular_values(layer, x)[0] <= 1 + 1e-6
    assert str(over_channels) == "LayerCentering(6, dim=(-1,), axis=-1)"
    torch.testing.assert_close(LayerCentering(6, axis=2, bias=False)(x), x - x.mean(1, keepdim=True))
    torch.testing.assert_close(LayerCentering(6, axis=-1)(x[0].float()), (x[0] - x[0].mean(1, keepdim=True)).float())
    with pytest.raises(ShapeError, match="axis=-1 for tokens"):
        LayerCentering(6)(x)
    with pytest.raises(ShapeError, match="6 channels on axis 3"):
        LayerCentering(6, axis=3)(x)
    with pytest.raises(ParameterError, match="holds the samples"):
        LayerCentering(6, axis=0)
