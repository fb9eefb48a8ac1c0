"""What every constrained layer keeps, whatever its method: see the notes of `layers/parametrization.py`."""

import copy
import io

import pytest
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.utils import parametrize, prune

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


def count_builds(layer):
    """Count the evaluations of the constraint from now on."""
    kernel = layer.parametrizations.weight[0].kernel
    count = []
    build = kernel.build
    kernel.build = lambda *raw: count.append(1) or build(*raw)
    return count


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
def test_eval_builds_once(name):
    layer, x = make(name)
    layer.eval()
    count = count_builds(layer)
    with torch.no_grad():
        for _ in range(3):
            layer(x)
    assert len(count) == 1
    with torch.inference_mode():
        layer(x)
    assert len(count) == 1


@layers
def test_frozen_layers_build_once_also_with_gradients(name):
    layer, x = make(name)
    layer.eval().requires_grad_(False)
    count = count_builds(layer)
    for _ in range(3):
        layer(x.requires_grad_()).sum().backward()
    assert len(count) == 1 and x.grad is not None


def _double_in_place(layer):
    for p in layer.parametrizations.parameters():
        p.mul_(torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p))


def _double_data(layer):
    for p in layer.parametrizations.parameters():
        p.data.mul_(torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p))


def _swap_data(layer):
    for p in layer.parametrizations.parameters():
        p.data = p.data * torch.linspace(0.5, 2, p.numel(), dtype=p.dtype).view_as(p)


def _load(layer):
    layer.load_state_dict({k: v * torch.linspace(0.5, 2, v.numel()).view_as(v) for k, v in layer.state_dict().items()})


def _optimize(layer):
    optimizer = torch.optim.SGD(layer.parametrizations.parameters(), lr=1.0)
    for p in layer.parametrizations.parameters():
        p.grad = torch.randn_like(p)
    optimizer.step()


def assert_noticed(layer, x, edit):
    """In eval the layer applies another weight after the edit, and the one that training would build."""
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        edit(layer)
        after = layer(x)
        expected = copy.deepcopy(layer).train()(x)
    assert not torch.equal(before, after)
    torch.testing.assert_close(after, expected)


@layers
@pytest.mark.parametrize("edit", [_double_in_place, _double_data, _swap_data, _load, _optimize])
def test_eval_never_serves_a_stale_weight(name, edit):
    assert_noticed(*make(name), edit)


@layers
def test_cache_survives_edits_of_what_it_served(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        before = layer(x)
        layer.weight.mul_(3)
        torch.testing.assert_close(layer(x), before)


@layers
def test_eval_does_not_keep_fake_weights(name):
    layer, x = make(name)
    layer.eval()
    with torch.no_grad():
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert isinstance(layer(mode.from_tensor(x)), FakeTensor)
        assert torch.isfinite(layer(x)).all()


@layers
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("place", ["weight.0", "weight"])
def test_hooks_of_the_constraint_are_called(name, place, training):
    layer, x = make(name)
    layer.train(training)
    layer.parametrizations.get_submodule(place).register_forward_hook(lambda _, raw, weight: weight * 0)
    with torch.no_grad():
        before = layer(x)
        for p in layer.parametrizations.parameters():
            p.mul_(torch.linspace(0.5, 2, p.numel()).view_as(p))
        assert torch.equal(layer(x), before)


@layers
@pytest.mark.parametrize("training", [True, False])
def test_pruned_raw_parameters(name, training):
    """`torch.nn.utils.prune` keeps a parameter of another name, and sets what is left of it at each call."""
    layer, x = make(name)
    other, chain = copy.deepcopy(layer.train(training)), layer.parametrizations.weight
    first = next(iter(chain._parameters))
    with torch.no_grad():
        layer(x)
        prune.random_unstructured(chain, first, amount=1)
        other.parametrizations.weight._parameters[first].mul_(getattr(chain, f"{first}_mask"))
        assert torch.equal(layer(x), other(x))


@layers
@pytest.mark.parametrize("training", [True, False])
def test_tensors_in_the_place_of_parameters(name, training):
    """As replicas of other devices and dual numbers are set, each at a time."""
    layer, x = make(name)
    chain = layer.train(training).parametrizations.weight
    with torch.no_grad():
        for key in list(chain._parameters):
            raw = chain._parameters[key].detach() * 1.5
            getattr(chain, key).copy_(raw)
            expected = layer(x)
            delattr(chain, key)
            setattr(chain, key, raw)
            assert torch.equal(layer(x), expected)


@layers
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's own
def test_eval_does_not_lose_forward_derivatives(name):
    """no_grad leaves them on. Most constraints refuse them; none may serve the kept weight without its tangent."""
    layer, x = make(name)
    layer.eval()
    raw = {k: p.detach() for k, p in layer.named_parameters() if "original" in k}
    with torch.no_grad(), forward_ad.dual_level():
        layer(x)
        dual = {k: forward_ad.make_dual(p, torch.randn_like(p)) for k, p in raw.items()}
        try:
            y = functional_call(layer, dual, (x,))
        except (RuntimeError, NotImplementedError) as refusal:
            assert "forward" in str(refusal)
        else:
            assert forward_ad.unpack_dual(y).tangent is not None


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
        layer(x)


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
    torch._dynamo.reset()
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
