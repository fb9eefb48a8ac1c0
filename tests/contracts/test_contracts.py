"""What every constrained layer keeps, whatever its method: see the notes of `layers/parametrization.py`."""

import copy
import io

import pytest
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.nn.utils import parametrize

from tests.contracts.blocks import BLOCKS
from tests.contracts.table import LAYERS as TORCH_LAYERS

LAYERS = {**TORCH_LAYERS, **BLOCKS}
layers = pytest.mark.parametrize("name", LAYERS)


def make(name, **options):
    """A layer, an input for it, and the table's line."""
    case = LAYERS[name]
    layer = case.make(**options)
    return layer, case.input(layer)


def train_step(layer, x, lr=0.1):
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr)
    optimizer.zero_grad()
    out = layer(x)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    optimizer.step()


@layers
def test_it_is_its_torch_counterpart(name):
    layer, _ = make(name)
    assert isinstance(layer, LAYERS[name].counterpart)
    assert parametrize.is_parametrized(layer, "weight")
    assert layer.guarantee.kind in ("orthogonal", "lipschitz")


@layers
def test_gradients_reach_every_parameter(name):
    layer, x = make(name)
    out = layer(x)
    (out * torch.randn_like(out)).sum().backward()
    for key, parameter in layer.named_parameters():
        assert parameter.grad is not None and torch.isfinite(parameter.grad).all(), key
        assert parameter.grad.abs().sum() > 0, key


@layers
def test_same_parameters_same_output_and_no_drift(name):
    layer, x = make(name)
    first = layer(x)
    assert torch.equal(layer(x), first)
    state = copy.deepcopy(layer.state_dict())
    layer.eval()
    with torch.no_grad():
        assert torch.equal(layer(x), layer(x))
    assert all(torch.equal(v, state[k]) for k, v in layer.state_dict().items())


@layers
def test_dtype_moves(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        single = layer(x)
        double = layer.double()(x.double())
        assert double.dtype == torch.float64
        torch.testing.assert_close(double.float(), single, rtol=1e-3, atol=1e-4)
        back = layer.float()(x)
    torch.testing.assert_close(back, single)


@layers
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "f16"])
def test_half_precision_models(name, dtype):
    layer, x = make(name)
    single = layer(x)
    half = layer.to(dtype)(x.to(dtype))
    assert half.dtype == dtype
    torch.testing.assert_close(half.float(), single, atol=0.1, rtol=0.1)
    half.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@layers
def test_autocast_leaves_the_weight_alone(name):
    layer, x = make(name)
    expected = layer.weight
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.weight, expected)
        y = layer(x)
    assert y.dtype == torch.bfloat16 or name in BLOCKS  # which add inputs in float32


@layers
def test_state_dict_round_trips(name, tmp_path):
    layer, x = make(name)
    train_step(layer, x)
    expected = layer(x)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    safetensors.torch.save_model(layer, str(tmp_path / "layer.safetensors"))
    other, _ = make(name)
    other.load_state_dict(torch.load(tmp_path / "layer.pt", weights_only=True))
    assert torch.equal(other(x), expected)
    third, _ = make(name)
    safetensors.torch.load_model(third, tmp_path / "layer.safetensors")
    assert torch.equal(third(x), expected)


@layers
def test_deepcopy_is_independent(name):
    layer, x = make(name)
    expected = layer(x)
    twin = copy.deepcopy(layer)
    assert torch.equal(twin(x), expected)
    train_step(twin, x)
    assert torch.equal(layer(x), expected) and not torch.equal(twin(x), expected)
    parametrize.remove_parametrizations(twin, "weight")
    assert torch.equal(layer(x), expected)


@layers
def test_pickle(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        expected = layer(x)
        buffer = io.BytesIO()
        torch.save(nn.Sequential(layer), buffer)
        buffer.seek(0)
        assert torch.equal(torch.load(buffer, weights_only=False)(x), expected)


@layers
def test_remove_parametrizations(name):
    layer, x = make(name)
    train_step(layer, x)
    expected = layer(x)
    parametrize.remove_parametrizations(layer, "weight")
    assert isinstance(layer.weight, nn.Parameter) and not parametrize.is_parametrized(layer)
    assert type(layer) is LAYERS[name].cls
    assert torch.equal(layer(x), expected)
    buffer = io.BytesIO()
    torch.save(layer, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x), expected)


@layers
@pytest.mark.filterwarnings("ignore::orthogonium.errors.NumericalWarning")  # averages may be ill-conditioned
def test_averaged_models(name):
    layer, x = make(name)
    average = torch.optim.swa_utils.AveragedModel(layer, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))
    average.eval()
    with torch.no_grad():
        before = average(x)
    train_step(layer, x, lr=1.0)
    average.update_parameters(layer)
    with torch.no_grad():
        assert not torch.equal(average(x), before)


@layers
def test_compile_without_graph_breaks(name):
    torch.compiler.reset()
    layer, x = make(name)
    expected = layer(x)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    out = compiled(x)
    torch.testing.assert_close(out, expected)
    out.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)


@layers
def test_export(name):
    layer, x = make(name)
    layer.eval()
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x))


@layers
def test_meta_and_fake_construction(name):
    layer, x = make(name, device="meta")
    assert all(p.is_meta for p in layer.parameters())
    assert layer(x.to("meta")).is_meta
    with FakeTensorMode():
        layer, x = make(name)
        layer.eval()
        with torch.no_grad():
            shape = layer(x).shape
    real, x = make(name)
    assert real(x).shape == shape


@layers
def test_reset_after_empty(name):
    """meta → to_empty → reset_parameters, as sharded training initializes."""
    layer, _ = make(name, device="meta")
    layer.to_empty(device="cpu")
    layer.reset_parameters()
    x = LAYERS[name].input(layer)
    out = layer(x)
    assert torch.isfinite(out).all()
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)


@layers
def test_the_weight_has_standard_strides(name):
    layer, _ = make(name)
    assert layer.weight.stride() == torch.empty(layer.weight.shape).stride()


@layers
def test_per_sample_gradients(name):
    """vmap(grad) through the constraint, as private training needs it."""
    layer, x = make(name)
    parameters = {k: v.detach() for k, v in layer.named_parameters()}

    def loss(p, sample):
        return torch.func.functional_call(layer, p, (sample[None],)).sin().sum()

    per_sample = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    expected = torch.func.grad(loss)(parameters, x[1])
    for key, value in expected.items():
        torch.testing.assert_close(per_sample[key][1], value, rtol=1e-3, atol=1e-5)


@layers
def test_ensembles(name):
    """vmap over stacked parameters: values, and the gradient of each sample for each member."""
    members = [nn.Sequential(make(name)[0]) for _ in range(2)]
    x = LAYERS[name].input(members[0][0])
    stacked, _ = torch.func.stack_module_state(members)

    def loss(p, sample):
        y = functional_call(members[0], p, (sample[None],))
        return y.sin().sum(), y[0]

    gradients = torch.func.grad(loss, has_aux=True)
    each_sample = torch.vmap(gradients, in_dims=(None, 0))
    found, y = torch.vmap(each_sample, in_dims=(0, None))(stacked, x)
    for i, member in enumerate(members):
        torch.testing.assert_close(y[i], member(x))
        expected = gradients({k: v.detach() for k, v in member.named_parameters()}, x[1])[0]
        for key, value in expected.items():
            torch.testing.assert_close(found[key][i, 1], value, rtol=1e-3, atol=1e-5)


@layers
@pytest.mark.parametrize("dtype,scale", [(torch.float32, 1e-40), (torch.float64, 1e-310)], ids=str)
@pytest.mark.filterwarnings("ignore::orthogonium.errors.NumericalWarning")
def test_denormal_parameters(name, dtype, scale):
    """They say nothing of directions, but the function is finite and does not expand."""
    layer, x = make(name)
    layer, x = layer.to(dtype), x.to(dtype)
    with torch.no_grad():
        for p in layer.parametrizations.parameters():
            p.mul_(scale)
    y = layer(x)
    assert torch.isfinite(y).all()
    if name != "UnitNormLinear":  # 1-Lipschitz output by output
        noise = 1e-2 * torch.randn_like(x)
        moved = (layer(x + noise) - y).flatten(1).norm(dim=1)
        assert (moved <= noise.flatten(1).norm(dim=1) * (1 + 1e-3)).all()
