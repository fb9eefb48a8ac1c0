"""Programs whose rules were once wrong far from where an ascent looks: `relu(x − 1e5)` hides them from it."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from orthogonium import audit, certify, lipschitz_bound
from orthogonium.certification import TraceError
from orthogonium.layers import CPLLinear, OrthoLinear, check_last_linear_layer_type
from tests.certification.soundness import REFUSALS

HIDDEN = 1e5
HALF, LONG = torch.float16, torch.long


def far(x: Tensor) -> Tensor:
    return F.relu(x - HIDDEN)


class Program(nn.Module):
    def __init__(self, fn, dtype=torch.float64, **buffers):
        super().__init__()
        self.fn = fn
        self.register_buffer("kind", torch.ones((), dtype=dtype))
        for name, value in buffers.items():
            self.register_buffer(name, value)

    def forward(self, x):
        return self.fn(self, x)


def _square(x: Tensor) -> Tensor:
    return far(x - 1).roll(1, 1).unflatten(1, (2, 2)).square()


def _signed(e: Tensor, a: Any, b: Any) -> Tensor:
    return (a(e).sign() * b(e)).sqrt().flatten(1)


def _in_ball(x: Tensor) -> Tensor:
    return x / x.norm(dim=(1, 2), keepdim=True).clamp(min=10).expand(-1, -1, 7)


MASK = torch.tensor([False, True, True, True])
FAR_AWAY = {
    "masked_fill by a value": lambda s, x: torch.vmap(lambda v, w: v.masked_fill(MASK, w[0]))(far(x), 100 * far(x)),
    "index_fill by a value": lambda s, x: torch.stack(
        [row.index_fill(0, torch.tensor([1, 2, 3]), row[0]) for row in far(x)]
    ),
    "scatter_add of a part": lambda s, x: x.new_zeros(len(x), 4).scatter_add(
        1, torch.zeros(len(x), 1, dtype=LONG), far(x)
    ),
    "scatter into integers": lambda s, x: torch.slice_scatter(torch.zeros(len(x), 4, dtype=LONG), far(x), 1).to(
        x.dtype
    ),
    "scatter into half": lambda s, x: torch.slice_scatter(torch.zeros(len(x), 4, dtype=HALF), far(x), 1).to(x.dtype),
    "select_scatter into half": lambda s, x: torch.select_scatter(
        torch.zeros(len(x), 4, dtype=HALF), far(x)[:, 0], 1, 0
    ).to(x.dtype),
    "energy in half": lambda s, x: far(x).square().sum(1, keepdim=True, dtype=HALF).sqrt().to(x.dtype),
    "the sign of an energy and its positive maximum": lambda s, x: _signed(
        _square(x), lambda e: e, lambda e: e.clamp(min=1)
    ),
    "the sign of an energy and its transpose": lambda s, x: _signed(_square(x), lambda e: e, lambda e: e.mT.relu()),
    "the sign of a transpose and the energy": lambda s, x: _signed(_square(x), lambda e: e.mT, lambda e: e),
    "the sign of an energy for each entry of it": lambda s, x: _signed(
        _square(x), lambda e: e.reshape(-1, 1, 4), lambda e: e.reshape(-1, 4, 1).relu()
    ),
    "a ball of copies": lambda s, x: _in_ball(far(x).unsqueeze(2)).flatten(1),
    "mean energy in half": lambda s, x: far(x).square().mean(1, keepdim=True, dtype=HALF).sqrt().to(x.dtype),
}


def steepest_far_away(model):
    """Quotients of neighbours around the hidden place, over distances of all sizes."""
    best = 0.0
    torch.manual_seed(0)
    for distance in (1.0, 1e-2, 1e-3):
        x = HIDDEN + torch.rand(4000, 4, dtype=torch.float64) * 3
        y = x.clone()
        y[:, 0] += distance
        best = max(best, float(((model(x) - model(y)).norm(dim=1) / (x - y).norm(dim=1)).max()))
    return best


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", FAR_AWAY)
def test_far_away(name):
    model = Program(FAR_AWAY[name]).eval()
    try:
        bound = lipschitz_bound(model, (4,)).value
    except REFUSALS:
        return
    assert steepest_far_away(model) <= bound * (1 + 1e-9)


def test_copies_count_where_they_are_rounded():
    copies = lambda s, x: x.new_zeros(len(x), 4, 7).copy_(far(x).double().unsqueeze(2)).flatten(1)  # noqa: E731
    assert lipschitz_bound(Program(copies, torch.float32), (4,)).value >= math.sqrt(7)


class Tenfold(nn.DataParallel):
    def forward(self, *inputs):
        return 10 * super().forward(*inputs)


class Compiled(nn.Module):
    def __init__(self, module):
        super().__init__()
        self._orig_mod = module

    def forward(self, x):
        return 10 * self._orig_mod(x)


def _hooked(module):
    wrapped = nn.DataParallel(module)
    wrapped.register_forward_hook(lambda m, args, output: 10 * output)
    return wrapped


def _compiled_and_hooked(module):
    wrapped = torch.compile(module, backend="eager")
    wrapped.register_forward_hook(lambda m, args, output: 10 * output)
    return wrapped


@pytest.mark.parametrize("wrap", [Tenfold, Compiled, _hooked, _compiled_and_hooked])
def test_wrappers_that_compute(wrap):
    """Nothing is known about a wrapper but that it is torch's own, and untouched."""
    model = wrap(nn.Sequential(OrthoLinear(4, 4)).eval()).eval()
    assert lipschitz_bound(model, (4,)).value >= 10 * (1 - 1e-6)
    assert audit(model, (4,)).lipschitz_bound >= 10 * (1 - 1e-6)
    assert check_last_linear_layer_type(model) == "unknown"


def test_untouched_wrappers_are_seen_through():
    layer = OrthoLinear(4, 4).eval()
    for model in (nn.DataParallel(layer), torch.compile(layer, backend="eager")):
        assert lipschitz_bound(model, (4,)).value < 1 + 1e-5


def test_a_call_of_its_own():
    class Loud(nn.Sequential):
        def __call__(self, x):
            return 100 * super().__call__(x)

    model = Loud(OrthoLinear(4, 4)).eval()
    assert check_last_linear_layer_type(model) == "unknown"
    assert lipschitz_bound(model, (4,)).value >= 99


def radius_of_one(model, harmless, label, x, y, **arguments):
    """The radius of a sample that is not among those that the certifier attacks."""
    inputs, labels = harmless[None].repeat(64, 1), torch.full((64,), label)
    inputs[1], labels[1] = x, y
    try:
        return float(certify(model, [(inputs, labels)], **arguments).radii[1])
    except REFUSALS:
        return 0.0


def flips_within(model, x, radius, dtype, points=4001):
    """Whether some input on the line through x (along each axis) has another class within the radius."""
    label = int(model(x[None])[0].argmax())
    if not radius > 0:
        return False
    for axis in range(len(x)):
        line = x.double()[None].repeat(points, 1)
        line[:, axis] += torch.linspace(-radius, radius, points, dtype=torch.float64)
        moved = line.to(dtype)
        inside = (moved.double() - x.double()).norm(dim=1) < radius
        with torch.no_grad():
            if bool((model(moved[inside]).argmax(1) != label).any()):
                return True
    return False


class AddedProduct(nn.Module):
    def __init__(self, size, dtype):
        super().__init__()
        self.register_buffer("a", torch.ones(1, 1, dtype=dtype))
        self.register_buffer("b", torch.full((1, 2), size, dtype=dtype))

    def forward(self, x):
        return torch.addmm(x, self.a.expand(len(x), 1), self.b)


class SmallSquares(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("c", torch.full((1, 1), 0.005, dtype=HALF))

    def forward(self, x):
        return torch.cat([self.c.expand(len(x), 1), (1e4 * x.square()).sqrt()], 1)


class ManySquares(nn.Module):
    def __init__(self, c=51.82, count=1000):
        super().__init__()
        self.count = count
        self.register_buffer("c", torch.full((1, 1), c, dtype=HALF))

    def forward(self, x):
        square = x.square()
        energy = square
        for _ in range(self.count):
            energy = energy + square
        return torch.cat([self.c.expand(len(x), 1), energy.sqrt()], 1)


def biased_block():
    block = CPLLinear(2, 4)
    parametrize.remove_parametrizations(block, "weight")
    w = torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0], [0, -1.0]])
    block.weight.data = torch.cat([w.flatten(), (-0.75 * w.T).flatten()])
    block.bias.data = torch.full((4,), 64.0)
    return block.half().eval()


@pytest.mark.parametrize("rounding", ["measured", "proved"])
@pytest.mark.parametrize(
    ("model", "harmless", "label", "x"),
    [
        (AddedProduct(100.0, HALF), [0.0, 100.0], 1, [0.0, 2**-4]),
        (AddedProduct(2.0**17, torch.float32), [0.0, 2.0**17], 1, [0.0, 2**-6]),
        (biased_block(), [-5.0, 0.0], 0, [-0.0157, 0.0]),
        (SmallSquares(), [0.5], 1, [2.0**-12]),
        (ManySquares(), [4.0], 1, [1.732421875]),
        (ManySquares(), [4.0], 1, [1.7314453125]),
    ],
    ids=["addmm", "addmm in float32", "block with a bias", "small squares", "many squares", "many squares, beside"],
)
def test_rounding_on_the_way(model, harmless, label, x, rounding):
    model = model.eval()
    dtype = next(t.dtype for t in (*model.parameters(), *model.buffers()))
    x = torch.tensor(x, dtype=dtype)
    y = int(model(x[None])[0].argmax())
    radius = radius_of_one(model, torch.tensor(harmless, dtype=dtype), label, x, y, rounding=rounding)
    if rounding == "proved" or not isinstance(model, ManySquares):  # measured is no proof
        assert not flips_within(model, x, radius, dtype)


def test_casts_of_smaller_range():
    """bfloat16 holds numbers that float16 does not."""

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.dense = nn.Linear(1, 2, bias=False)
            self.dense.weight.data = torch.tensor([[1.0], [1.2]])

        def forward(self, x):
            return self.dense(x).half()

    model = Cast().to(torch.bfloat16).eval()
    x = torch.tensor([[50000.0]], dtype=torch.bfloat16)
    found = certify(model, [(x, torch.tensor([1]))])
    assert float(found.radii[0]) < 5000 and not model(torch.tensor([[66000.0]], dtype=torch.bfloat16)).isfinite().all()


def test_factors_that_overflow():
    fn = lambda s, x: torch.addcmul(torch.zeros(2), x, s.c, value=1e30) @ torch.tensor([[1.0, 2.0], [0.0, 0.0]])  # noqa: E731
    model = Program(fn, torch.float32, c=torch.full((2,), 1e-30)).eval()
    assert lipschitz_bound(model, (2,)).reach < 3.45e8
    assert not model(torch.tensor([[3.45e8, 0.0]])).isfinite().all()


def test_batch_norm_whose_bias_cancels_its_mean():
    norm = nn.BatchNorm1d(2).eval()
    with torch.no_grad():
        norm.running_mean.fill_(1000.0)
        norm.running_var.fill_(0.09)
        norm.bias.copy_(1000 / (norm.running_var + norm.eps).sqrt())
    constant, slope = lipschitz_bound(norm, (2,)).error.proved
    x = 0.01 * torch.randn(500, 2)
    with torch.no_grad():
        error = (norm(x).double() - norm.double()(x.double())).norm(dim=1)
    assert bool((error <= constant + slope * x.double().norm(dim=1)).all())


@pytest.mark.parametrize(
    "fn",
    [
        lambda s, x: x.clone().add_(torch.arange(len(x), dtype=x.dtype)[:, None]),
        lambda s, x: torch.addmm(torch.arange(len(x), dtype=x.dtype)[:, None], x, torch.eye(4, dtype=x.dtype)),
    ],
    ids=["add_", "addmm"],
)
def test_constants_by_place(fn):
    with pytest.raises(REFUSALS):
        lipschitz_bound(Program(fn), (4,))


@pytest.mark.parametrize("name", ["triu", "tril"])
def test_triangles_of_the_batch(name):
    """The first samples of a batch keep their last feature, and later ones do not."""
    with pytest.raises(TraceError, match="by their place"):
        lipschitz_bound(Program(lambda s, x: getattr(x, name)(1)[:, 3:] if name == "triu" else x.tril(2)[:, :1]), (4,))
    assert lipschitz_bound(Program(lambda s, x: getattr(x[:, None], name)()), (4,)).value == 1.0


def test_samples_are_compared_with_more_than_the_walks_have():
    with pytest.raises(TraceError, match="among others"):
        lipschitz_bound(Program(lambda s, x: x * (1.0 if len(x) < 9 else 50.0)), (4,))


def test_noise_that_is_not_read():
    """The noise of RReLU in eval is memory that nobody has written to."""
    fn = lambda s, x: torch.ops.aten.rrelu_with_noise(x, torch.full_like(x, math.nan), 0.1, 0.3, False)  # noqa: E731
    assert lipschitz_bound(Program(fn), (4,)).value == 1.0


@pytest.mark.parametrize("change", [lambda x: x.swapaxes_(1, 2), lambda x: x.transpose_(1, 2).unsqueeze_(1)])
def test_shapes_that_are_changed_in_place(change):
    """Measuring the rounding sees them, too."""
    model = Program(lambda s, x: change(x.clone()).flatten(1), torch.float32).eval()
    x = torch.randn(5, 2, 3)
    found = certify(model, [(x, model(x).argmax(1))])
    assert bool((found.radii > 0).all())


def test_inputs_that_a_cast_moves():
    class Flip(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("kind", torch.zeros((), dtype=HALF))

        def forward(self, x):
            return x.flip(1)

    x = torch.tensor([[1.0006, 1.0]])
    radius = float(certify(Flip().eval(), [(x, torch.tensor([1]))]).radii[0])
    near = torch.tensor([[1.0004, 1.0]])
    assert float(near.half()[0, 0]) == 1.0 and radius < float((x - near).norm())


class Tripled(Tensor):
    """A weight that multiplies in its own way."""

    @staticmethod
    def __new__(cls, inner):
        self = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        self.inner = inner
        return self

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        output = func(*[a.inner if isinstance(a, Tripled) else a for a in args], **(kwargs or {}))
        return 3 * output if func is torch.ops.aten.mm.default else output


def test_weights_with_operators_of_their_own():
    weight = Tripled(torch.eye(4, dtype=torch.float64))
    model = Program(lambda s, x: far(x) @ weight).eval()
    with pytest.raises(REFUSALS):
        lipschitz_bound(model, (4,))


@pytest.mark.parametrize("dtype", [HALF, torch.float32])
def test_large_numbers_on_the_way_are_no_refutation(dtype):
    """(x + c) − c is the identity, with more rounding than its inputs and outputs show."""
    c = 1024.0 if dtype == HALF else 2.0**17
    model = Program(lambda s, x: (x + c) - c, dtype).eval()
    assert math.isclose(lipschitz_bound(model, (3,)).value, 1.0, rel_tol=1e-9)
