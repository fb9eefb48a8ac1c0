"""Every rule: the constant is never below a Jacobian, and where it is attained it is exactly that."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import lipschitz_bound
from orthogonium.certification import TraceError, UnboundedError
from orthogonium.certification.rules import entrywise
from tests.certification.networks import Fn, steepest

torch_matrix = torch.tensor([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0]], dtype=torch.float64)
kernel = torch.arange(24.0, dtype=torch.float64).reshape(2, 3, 4) / 10 - 1
std = torch.tensor([0.5, 0.25, 0.2], dtype=torch.float64)[:, None]
mask = torch.tensor([True, False, True, False])

SHAPE = (3, 4)
# function on (n, 3, 4) → whether the constant is attained
FUNCTIONS = {
    "relu": (F.relu, True),
    "leaky": (lambda x: F.leaky_relu(x, -3.0), True),
    "elu": (lambda x: F.elu(x, 2.0), False),
    "sigmoid": (torch.sigmoid, False),
    "tanh": (torch.tanh, False),
    "gelu": (F.gelu, False),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), False),
    "silu": (F.silu, False),
    "mish": (F.mish, False),
    "selu": (F.selu, False),
    "hardswish": (F.hardswish, False),
    "hardsigmoid": (F.hardsigmoid, True),
    "softplus": (lambda x: F.softplus(x, threshold=40), False),
    "logsigmoid": (F.logsigmoid, False),
    "softsign": (F.softsign, False),
    "tanhshrink": (F.tanhshrink, False),
    "softshrink": (F.softshrink, True),
    "hardtanh": (F.hardtanh, True),
    "erf": (torch.erf, False),
    "abs": (torch.abs, True),
    "neg": (lambda x: -x, True),
    "clamp": (lambda x: x.clamp(-1, 1), True),
    "sin": (torch.sin, False),
    "softmax": (lambda x: x.softmax(-1), False),
    "log_softmax": (lambda x: F.log_softmax(x, dim=1), False),
    "logsumexp": (lambda x: x.logsumexp((1, 2)), False),
    "cumsum": (lambda x: x.cumsum(2), True),
    "mean": (lambda x: x.mean((1, 2)), True),
    "sum": (lambda x: x.sum(dim=2, keepdim=True), True),
    "max": (lambda x: x.max(dim=1).values, True),
    "amax": (lambda x: x.amax(dim=(1, 2)), True),
    "norm": (lambda x: x.norm(dim=2), True),
    "norm 1": (lambda x: x.norm(p=1, dim=2), True),
    "vector_norm": (lambda x: torch.linalg.vector_norm(x, ord=3, dim=(1, 2)), False),
    "sort": (lambda x: x.sort(dim=1).values, True),
    "topk": (lambda x: x.topk(2, dim=2).values, True),
    "normalization": (lambda x: (x - 0.3) / std, True),
    "scale": (lambda x: 2 * x * std - 1, True),
    "rsub": (lambda x: 1 - x, True),
    "broadcast constant": (lambda x: x[:, :, :1] * torch.ones(1, 1, 5, dtype=x.dtype), True),
    "broadcast sum": (lambda x: x + x.mean(2, keepdim=True), True),
    "residual": (lambda x: x + torch.tanh(x), False),
    "alpha": (lambda x: torch.sub(x, F.relu(-x), alpha=2), False),
    "cat": (lambda x: torch.cat([x, 2 * x, -x], 1), True),
    "stack": (lambda x: torch.stack([x, 2 * x], 1), True),
    "concat residual": (lambda x: torch.cat([x[:, :1], 3 * x[:, 1:].relu()], 1), True),
    "swapped halves": (lambda x: torch.cat(x.chunk(2, 2)[::-1], 2), True),
    "unbind": (lambda x: torch.stack([(i + 1) * t for i, t in enumerate(x.unbind(1))], 1), True),
    "coupling": (lambda x: torch.cat([x[..., :2], x[..., 2:] + torch.sin(x[..., :2])], 2), False),
    "half of the sum": (lambda x: x[..., :2] + x[..., 2:], True),
    "overlapping slices": (lambda x: torch.cat([x[:, :2], x[:, 1:]], 1), True),
    "one slice twice": (lambda x: torch.cat([x[:, :2], x[:, :2]], 1), True),
    "mirrored pieces": (lambda x: torch.cat([x[..., :2], x.flip(2)[..., 2:]], 2), True),
    "rolled pieces": (lambda x: torch.cat([x[..., :2], x.roll(2, dims=2)[..., 2:]], 2), True),
    "nested pieces": (lambda x: _nested(x), True),
    "strided slice": (lambda x: x[:, ::2, 1], True),
    "index": (lambda x: x[:, torch.tensor([0, 2, 2, 2])], True),
    "index_select": (lambda x: x.index_select(1, torch.tensor([1, 1])), True),
    "boolean index": (lambda x: x[:, :, mask], True),
    "where": (lambda x: torch.where(mask, x, 3 * x), False),
    "masked_fill": (lambda x: x.masked_fill(mask, 7.0), True),
    "maximum": (lambda x: torch.maximum(x, 2 * x.flip(1)), False),
    "expand": (lambda x: x[:, :, None].expand(-1, -1, 5, -1), True),
    "repeat": (lambda x: x.repeat(1, 2, 3), True),
    "permute": (lambda x: x.permute(0, 2, 1).flatten(1).unflatten(1, (2, 6)), True),
    "linear": (lambda x: F.linear(x.transpose(1, 2), torch_matrix), True),
    "matmul": (lambda x: x.mT @ torch_matrix.T, True),
    "matmul left": (lambda x: torch_matrix @ x, True),
    "conv": (lambda x: F.conv1d(x, kernel[:, :, :3], stride=2, padding=1), True),
    "conv_transpose": (lambda x: F.conv_transpose1d(x, kernel.transpose(0, 1).contiguous(), stride=2), True),
    "avg_pool": (lambda x: F.avg_pool1d(x, 3, 2), True),
    "avg_pool uncounted": (lambda x: F.avg_pool1d(x, 3, 1, 1, count_include_pad=False), True),
    "avg_pool ceil": (lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), True),
    "avg_pool2d": (lambda x: F.avg_pool2d(x[:, None], 2, 1), True),
    "avg_pool divisor": (lambda x: F.avg_pool2d(x[:, None], 2, divisor_override=1), True),
    "max_pool": (lambda x: F.max_pool1d(x, 2, 1), False),
    "max_pool2d": (lambda x: F.max_pool2d(x[:, None], 2), True),
    "lp_pool": (lambda x: F.lp_pool1d(x, 2.0, 2), True),
    "adaptive_avg": (lambda x: F.adaptive_avg_pool2d(x[:, None], (2, 3)), True),
    "adaptive_max": (lambda x: F.adaptive_max_pool1d(x, 3), False),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2.5), True),
    "bilinear": (lambda x: F.interpolate(x[:, None], size=(5, 9), mode="bilinear", align_corners=True), True),
    "bicubic": (lambda x: F.interpolate(x[:, None], scale_factor=2, mode="bicubic"), True),
    "area": (lambda x: F.interpolate(x, size=3, mode="area"), True),
    "pad": (lambda x: F.pad(x, (1, 2, 1, 0)), True),
    "pad circular": (lambda x: F.pad(x, (3, 2), mode="circular"), True),
    "pad replicate": (lambda x: F.pad(x, (2, 1), mode="replicate"), True),
    "pad reflect": (lambda x: F.pad(x[:, None], (2, 2, 1, 1), mode="reflect"), True),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x.reshape(-1, 12, 1, 1)[:, :8], 2), True),
    "in place": (lambda x: (2 * x).mul_(3).relu_(), True),
    "merged batch": (lambda x: x.reshape(-1, 2).relu().reshape(-1, 12), True),
    "assignment": (lambda x: _assigned(x), True),
    "view changed in place": (lambda x: _stale_view(x), True),
    "einsum": (lambda x: torch.einsum("nij,kj->nik", x, torch_matrix[:, [0, 1, 2, 0]]), True),
    "batch turned and back": (lambda x: torch.relu(x.transpose(0, 2)).mul(2).transpose(0, 2), True),
    "softsign by hand": (lambda x: x / (1 + x.abs()), False),
    "centering by hand": (lambda x: x - x.mean(2, keepdim=True), True),
    "projection": (lambda x: x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=1), True),
    "root mean square": (lambda x: (x.square().mean(2) + 1e-9).sqrt(), False),
    "continuous choice": (lambda x: torch.where(x > 1, 3 * x - 2, x), True),
    "fold": (lambda x: F.fold(F.unfold(x[:, None], 2), (3, 4), 2), True),
    "lerp": (lambda x: torch.lerp(x, x.flip(1), 0.25), True),
    "gather": (lambda x: x.gather(1, torch.zeros(len(x), 3, 4, dtype=torch.long)), True),
    "list index": (lambda x: x[:, [0, 1, 1, 1]], True),
    "scatter add": (lambda x: torch.zeros(len(x), 2, 4, dtype=x.dtype).index_add(1, torch.tensor([0, 1, 1]), x), True),
    "filled by slices": (lambda x: _filled(x), True),
    "softmin": (lambda x: F.softmin(x, dim=2), False),
    "overlapping tensor_split": (lambda x: torch.cat(x.tensor_split((2, 1), 1), 1), True),
    "accumulated": (lambda x: _accumulated(x), True),
}  # fmt: skip


def _nested(x):
    a, b = x.split([1, 2], dim=1)
    b1, b2 = b.chunk(2, dim=1)
    return torch.cat([2 * a, b1, 3 * b2.relu()], 1)


def _accumulated(x):
    total = x * 1
    for _ in range(3):
        total += x
    return total


@pytest.mark.parametrize("name", FUNCTIONS)
def test_constant(name):
    if name in ("elu", "selu") and not entrywise.ELU_IS_EXACT:
        pytest.skip("refused with this version of torch")
    fn, attained = FUNCTIONS[name]
    model = Fn(fn).double()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    bound = lipschitz_bound(model, SHAPE).value
    found = steepest(model, SHAPE)
    assert found <= bound * (1 + 1e-9)
    if attained:
        assert bound <= found * (1 + 1e-6)
    assert bound <= 1.75 * found


@pytest.mark.parametrize("fn", [F.elu, F.selu, F.celu])
def test_an_elu_that_loses_digits_has_no_bound(fn, monkeypatch):
    """As that of older versions of torch: its rounding is relative to 1, not to its value."""
    monkeypatch.setattr(entrywise, "ELU_IS_EXACT", False)
    with pytest.raises(UnboundedError, match="loses digits"):
        lipschitz_bound(Fn(fn), SHAPE)


MODULES = {
    "batch norm": (nn.BatchNorm1d(3), True),
    "prelu": (nn.PReLU(3, init=-2.0), True),
    "flatten": (nn.Flatten(), True),
    "dropout": (nn.Dropout(0.5), True),
    "conv": (nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"), True),
    "conv reflect": (nn.Conv1d(3, 4, 3, padding=1, padding_mode="reflect"), True),
    "transposed": (nn.ConvTranspose1d(3, 2, 4, stride=2, padding=1), True),
    "linear": (nn.Linear(4, 7), True),
    "upsample": (nn.Upsample(scale_factor=3), True),
    "lstm-free sequence": (nn.Sequential(nn.Identity(), nn.Unflatten(2, (2, 2)), nn.ZeroPad2d(1)), True),
    "spectral norm": (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), True),
    "instance forward": (nn.Linear(4, 4), True),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_constant(name):
    layer, attained = MODULES[name]
    layer = layer.double()
    if isinstance(layer, nn.BatchNorm1d):
        nn.init.normal_(layer.weight)
        layer.running_var.uniform_(0.1, 2)
    model = nn.Sequential(layer, Fn(lambda x: x)).double().eval()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    bound, found = lipschitz_bound(model, SHAPE).value, steepest(model, SHAPE)
    assert found <= bound * (1 + 1e-9)
    assert not attained or bound <= found * (1 + 1e-6)


UNBOUNDED = {
    "product": (lambda x: x * x.sigmoid(), "product of two values"),
    "square": (torch.square, "Squares"),
    "power": (lambda x: x**3, "Powers"),
    "exp": (torch.exp, "exponential"),
    "division": (lambda x: x / x.norm(dim=1, keepdim=True), "Division by a value"),
    "reciprocal": (lambda x: 1 / x, "Lipschitz"),
    "normalize": (lambda x: F.normalize(x, dim=1), "Clamp"),
    "layer norm": (lambda x: F.layer_norm(x, (4,)), "LayerCentering"),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), "Attention"),
    "scores": (lambda x: x @ x.mT, "product of two values"),
    "batch mean": (lambda x: x - x.mean(0), "samples of the batch"),
    "total sum": (lambda x: x / 2 + x.sum(), "samples of the batch"),
    "comparison": (lambda x: (x > 0).to(x), "jumps"),
    "argmax": (lambda x: x.argmax(1).to(x.dtype), "jumps"),
    "indices": (lambda x: x.sort(dim=1).indices.to(x.dtype), "jump"),
    "rounding": (torch.round, "jumps"),
    "mask of values": (lambda x: torch.where(x > 0, x, x + 1), "jump"),
}  # fmt: skip


def _assigned(x):
    y = x.clone()
    y[:, 0] = 100 * x[:, 1]
    return y


def _filled(x):
    out = torch.empty(len(x), 6, 4, dtype=x.dtype)
    out[:, :3] = 2 * x
    out[:, 3:].copy_(x.flip(1))
    return out


def _stale_view(x):
    y = x.clone()
    view = y[:, :1]
    y.mul_(100)
    return view


@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_operations_are_named(name):
    fn, text = UNBOUNDED[name]
    model = nn.Sequential(nn.ReLU(), nn.Sequential(Fn(fn))).double()
    model.register_buffer("kind", torch.zeros((), dtype=torch.float64))
    with pytest.raises(UnboundedError, match=text) as caught:
        lipschitz_bound(model, SHAPE)
    assert all(node.remedy for node in caught.value.nodes)
    assert {node.place for node in caught.value.nodes} <= {"1.0", "(model)"}


def test_all_causes_are_listed():
    norm = nn.LayerNorm(4)
    model = nn.Sequential(nn.Linear(4, 4), Fn(lambda x: torch.cat([norm(x), torch.exp(x)], 1)), nn.GroupNorm(1, 6))
    with pytest.raises(UnboundedError) as caught:
        lipschitz_bound(model, SHAPE)
    assert [node.operation for node in caught.value.nodes] == ["layer_norm", "exp", "group_norm"]


def test_batch_norm_and_dropout_in_training_have_no_bound():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.2)).train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(UnboundedError, match="BatchNorm in training"):
        lipschitz_bound(model, SHAPE)
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())


@pytest.mark.parametrize("fn", [
    lambda x: x.roll(1, 0),
    lambda x: x.flip(0),
    lambda x: x.transpose(0, 1).reshape(len(x), -1),
    lambda x: x[[0] * len(x)],
])  # fmt: skip
def test_samples_stay_where_they_are(fn):
    with pytest.raises(TraceError, match="samples in front, and apart"):
        lipschitz_bound(Fn(fn), SHAPE)


@pytest.mark.parametrize("fn", [lambda x: x * len(x), lambda x: x / x.shape[0], lambda x: x if len(x) == 2 else 2 * x])
def test_constants_do_not_depend_on_the_number_of_samples(fn):
    with pytest.raises(TraceError, match="size of the batch"):
        lipschitz_bound(Fn(fn), SHAPE)


def test_bits_are_not_read():
    with pytest.raises(TraceError, match="bits"):
        lipschitz_bound(Fn(lambda x: x.view(torch.int32).to(x.dtype)), SHAPE)


class Branch(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize("fn", [lambda x: x * x.max().item(), lambda x: torch.tensor(x.tolist()), Branch()])
def test_control_flow_over_values_is_refused_by_name(fn):
    model = nn.Sequential(nn.ReLU(), fn if isinstance(fn, nn.Module) else Fn(fn))
    with pytest.raises(TraceError, match="^1 (calls|does)"):
        lipschitz_bound(model, SHAPE)


class ByShape(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)

    def forward(self, x, scale=2.0):
        for _ in range(x.shape[1] - 1):
            x = self.first(x)
        if x.dim() == 3 and not self.training:
            x = scale * x
        return x


def test_control_flow_over_shapes_and_reuse_of_layers():
    model = ByShape().double().eval()
    norm = torch.linalg.matrix_norm(model.first.weight, ord=2).item()
    found = lipschitz_bound(model, SHAPE)
    assert math.isclose(found.value, 2 * norm**2, rel_tol=1e-9)
    assert [step.place for step in found.steps] == ["first", "first", "(model)"]


def test_bad_shapes_and_outputs():
    for shape in ((), (0, 3), (3.0,)):
        with pytest.raises(ValueError, match="input_shape"):
            lipschitz_bound(nn.ReLU(), shape)
    with pytest.raises(TraceError, match="tuple"):
        lipschitz_bound(Fn(lambda x: (x, x)), (3,))
    with pytest.raises(TraceError, match="does not depend"):
        lipschitz_bound(Fn(lambda x: torch.zeros(len(x), 2)), (3,))
