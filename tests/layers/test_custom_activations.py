import math

import pytest
import torch

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers.activations.householder import householder, householder_order_2
from orthogonium.layers.custom_activations import (
    Abs,
    CReLU,
    FullSort,
    GroupSort,
    HouseHolder,
    HouseHolder_Order_2,
    MaxMin,
    NActivation,
    ReLUMaxMin,
    SoftHuber,
)
from tests.jacobians import assert_same_in_both_directions, largest_jump, singular_values, worst_ratio

# name → constructor for `channels` on `axis`
ISOMETRIC = {
    "Abs": lambda c, axis: Abs(),
    "CReLU": lambda c, axis: CReLU(axis),
    "FullSort": lambda c, axis: FullSort(axis),
    "GroupSort2": lambda c, axis: GroupSort(2, axis),
    "GroupSort3": lambda c, axis: GroupSort(3, axis),
    "HouseHolder": lambda c, axis: HouseHolder(c, axis),
    "HouseHolder_Order_2": lambda c, axis: HouseHolder_Order_2(c, axis),
    "MaxMin": lambda c, axis: MaxMin(axis),
    "NActivation": lambda c, axis: NActivation(c, axis),
    "ReLUMaxMin": lambda c, axis: ReLUMaxMin(axis),
}
ALL = {**ISOMETRIC, "SoftHuber": lambda c, axis: SoftHuber()}
PAIRED = ("MaxMin", "ReLUMaxMin", "HouseHolder", "HouseHolder_Order_2")
TRAINABLE = ("HouseHolder", "HouseHolder_Order_2", "NActivation")
SHAPES = [((2, 6), 1), ((6,), 0), ((2, 6, 3), 1), ((2, 6, 2, 2), 1), ((2, 2, 3, 6), -1), ((1, 6, 2, 1, 3), -4)]


def train(layer, channels, steps=10, lr=1.0):
    """A few large steps on random data, so that parameters are anywhere."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        target = torch.randn(32, channels)
        (layer(torch.randn(32, channels)) - target).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
@pytest.mark.parametrize("name", ISOMETRIC)
def test_all_singular_values_of_the_jacobian_are_one(name, shape, axis, dtype):
    layer = ISOMETRIC[name](6, axis).to(dtype)
    x = torch.randn(shape, dtype=dtype)
    assert layer.guarantee.kind == "orthogonal"
    assert name == "CReLU" or layer(x).shape == x.shape
    assert layer(x).dtype == dtype
    assert (singular_values(layer, x) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("name", ALL)
def test_forward_derivatives(name):
    layer = ALL[name](6, 1).double()

    def fn(x, *parameters):
        named = dict(zip(dict(layer.named_parameters()), parameters, strict=True))
        return torch.func.functional_call(layer, named, (x,))

    start = [p.detach() for p in layer.parameters()]
    for parameters in (start, [10 * torch.randn_like(p) for p in start]):
        assert_same_in_both_directions(fn, torch.randn(4, 6, 3).double(), *parameters)


@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 3), (2, 6, 2, 2), (1, 6, 2, 1, 3)], ids=str)
@pytest.mark.parametrize("name", TRAINABLE)
def test_training_changes_the_map_and_keeps_it_isometric(name, shape):
    layer = ISOMETRIC[name](6, 1)
    before = [p.detach().clone() for p in layer.parameters()]
    train(layer, 6)
    assert all((p - q).abs().max() > 0.1 for p, q in zip(layer.parameters(), before, strict=True))
    assert (singular_values(layer, torch.randn(shape)) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("name", ISOMETRIC)
def test_jacobian_is_orthogonal_at_ties_and_zeros(name):
    layer = ISOMETRIC[name](6, 1)
    for x in (torch.zeros(2, 6), torch.ones(2, 6), torch.tensor([[0.0, 1, 1, 0, 1, -1]])):
        assert (singular_values(layer, x) - 1).abs().max() < 1e-6


@pytest.mark.parametrize("name", ALL)
def test_no_jumps_across_the_kinks(name):
    layer = ALL[name](6, 1).double()
    for trial in range(4):
        if name in TRAINABLE and trial:
            for p in layer.parameters():
                torch.nn.init.uniform_(p, -8, 8)
        x, y = 3 * torch.randn(2, 1, 6, dtype=torch.float64)
        assert largest_jump(layer, x, y) <= 1 + 1e-9


@pytest.mark.parametrize("name", ALL)
def test_searched_inputs_are_never_moved_apart(name):
    layer = ALL[name](6, 1).double()
    x, y = torch.randn(2, 4, 6, dtype=torch.float64)
    assert worst_ratio(layer, x, y) <= 1 + 1e-12


def test_the_judges_reject_a_map_with_a_jump_and_an_expansive_one():
    x, y = torch.randn(2, 1, 6, dtype=torch.float64)
    assert largest_jump(torch.sign, x - 1, y + 1) > 10
    assert worst_ratio(lambda z: z * torch.tanh(z), x, y) > 1.01


@pytest.mark.parametrize("name", TRAINABLE)
def test_gradients_reach_the_parameters(name):
    layer = ISOMETRIC[name](4, 1).double()
    x = torch.randn(5, 4, 3, dtype=torch.float64, requires_grad=True)
    parameter = next(layer.parameters())

    def call(inputs, values):
        return torch.func.functional_call(layer, {next(iter(dict(layer.named_parameters()))): values}, (inputs,))

    values = (parameter.detach() + 0.1 * torch.randn_like(parameter)).requires_grad_()
    assert torch.autograd.gradcheck(call, (x, values))


# ---- values --------------------------------------------------------------------------------------------------------


def test_max_min_pairs_halves_and_group_sort_neighbours():
    x = torch.tensor([[4.0, 1.0, 2.0, 3.0]])
    assert MaxMin()(x).tolist() == [[4, 3, 2, 1]]
    assert GroupSort(2)(x).tolist() == [[1, 4, 2, 3]]
    assert FullSort()(x).tolist() == [[1, 2, 3, 4]]
    assert CReLU()(-x).tolist() == [[0, 0, 0, 0, 4, 1, 2, 3]]


@pytest.mark.parametrize("group_size", [2, 3, 4, 6, 12])
def test_group_sort_sorts_each_group(group_size):
    x = torch.randn(3, 12, 4)
    expected = torch.cat([part.sort(dim=1).values for part in x.split(group_size, dim=1)], dim=1)
    assert torch.equal(GroupSort(group_size)(x), expected)


def test_relu_max_min_equals_max_min_and_uses_only_affine_operations_and_relu():
    x = torch.randn(2, 8, 5, 5, dtype=torch.float64)
    assert torch.allclose(ReLUMaxMin()(x), MaxMin()(x), rtol=0, atol=1e-15)
    graph = torch.export.export(ReLUMaxMin(), (x,)).graph
    called = {node.target.__name__.split(".")[0] for node in graph.nodes if node.op == "call_function"}
    assert called <= {"split", "getitem", "sub", "relu", "add", "cat"}


def test_soft_huber_slope():
    x = torch.tensor([0.01, -0.05, 3.0], dtype=torch.float64, requires_grad=True)
    SoftHuber(0.05)(x).sum().backward()
    expected = [z / math.hypot(z, 0.05) for z in (0.01, -0.05, 3.0)]
    assert torch.allclose(x.grad, torch.tensor(expected, dtype=torch.float64))
    assert abs(x.grad[0]) < 0.2  # so the singular values are far from 1 near 0
    assert SoftHuber().guarantee.kind == "lipschitz"


def test_n_activation_is_an_n_and_ignores_the_order_of_its_thresholds():
    layer = NActivation(1)
    with torch.no_grad():
        layer.thresholds.copy_(torch.tensor([[2.0, -1.0]]))
    x = torch.tensor([[-3.0], [-1.0], [0.0], [2.0], [5.0]])
    assert layer(x).flatten().tolist() == [-1, 1, 0, -2, 1]


def test_n_activation_can_leave_the_identity():
    """Both thresholds of a channel start at 0; each must get the gradient of its own side."""
    layer = NActivation(2)
    layer(torch.tensor([[0.0, -1.0]] * 3 + [[0.0, 1.0]])).sum().backward()
    assert layer.thresholds.grad[1].tolist() == [-6, -2]


@pytest.mark.parametrize("angle", [0.3, math.pi / 2, 4.0, -7.0])
def test_householder_keeps_one_side_and_mirrors_the_other(angle):
    line = torch.tensor([math.cos(angle / 2), math.sin(angle / 2)], dtype=torch.float64)
    z = torch.randn(64, 2, dtype=torch.float64)
    mirrored = 2 * (z @ line)[:, None] * line - z  # mirror image in the line
    y = householder(z, torch.tensor([angle], dtype=torch.float64))
    kept = (y - z).norm(dim=1) < 1e-12
    assert kept.any() and not kept.all()
    assert torch.allclose(y[~kept], mirrored[~kept])
    side = z[:, 0] * line[1] - z[:, 1] * line[0]
    assert (side[kept] <= 0).all() and (side[~kept] > 0).all()


def test_householder_starts_as_min_max():
    x = torch.randn(3, 6, 2)
    a, b = x.chunk(2, dim=1)
    assert torch.allclose(HouseHolder(6)(x), torch.cat([torch.minimum(a, b), torch.maximum(a, b)], 1), atol=1e-6)


def test_householder_keeps_norm_and_shape_of_images_and_of_vectors():
    """No factor 1/√2 on images, no broadcasting of vectors."""
    for layer in (HouseHolder(4), HouseHolder_Order_2(4)):
        for shape in [(2, 4), (2, 4, 5, 5)]:
            x = torch.randn(shape)
            assert layer(x).shape == x.shape
            assert torch.allclose(layer(x).norm(), x.norm(), rtol=1e-6)


@pytest.mark.parametrize("t0", [-9.0, 0.0, 1.3, 6.0])
def test_order_2_has_its_four_pieces_around_the_circle(t0):
    t1, t2 = 1.1, 2.3
    theta = torch.tensor([[t0], [t1], [t2]], dtype=torch.float64)
    bounds = [0, t1 / 2, (t1 + t2) / 2, math.pi + t2 / 2, 2 * math.pi]
    reflection = [[math.cos(t0 + t1), math.sin(t0 + t1)], [math.sin(t0 + t1), -math.cos(t0 + t1)]]
    rotation = [[math.cos(t2), math.sin(t2)], [-math.sin(t2), math.cos(t2)]]
    last = [[math.cos(t0), math.sin(t0)], [math.sin(t0), -math.cos(t0)]]
    for low, high, matrix in zip(bounds, bounds[1:], [[[1, 0], [0, 1]], reflection, rotation, last], strict=False):
        angle = torch.linspace(low + 1e-6, high - 1e-6, 20, dtype=torch.float64) + t0 / 2
        z = torch.stack([angle.cos(), angle.sin()], dim=1)
        expected = z @ torch.tensor(matrix, dtype=torch.float64).T
        assert torch.allclose(householder_order_2(z, theta), expected, atol=1e-9)


def test_order_2_is_continuous_around_the_circle_for_any_angles():
    angle = torch.linspace(0, 2 * math.pi, 4001, dtype=torch.float64)
    circle = torch.stack([angle.cos(), angle.sin()], dim=1)
    for _ in range(50):
        theta = torch.empty(3, 1, dtype=torch.float64).uniform_(-20, 20)
        y = householder_order_2(circle, theta)
        assert (y[1:] - y[:-1]).norm(dim=1).max() <= 2 * math.pi / 4000 + 1e-9


def test_order_2_keeps_the_norm_where_rounding_gives_a_full_turn():
    """A tiny negative angle modulo 2π is exactly 2π in float32."""
    x = torch.tensor([[1.0, -1e-12], [1.0, 0.0], [0.0, 0.0]])
    y = householder_order_2(x, torch.tensor([[0.0], [0.0], [0.0]]))
    assert torch.allclose(y.norm(dim=1), x.norm(dim=1))


def test_order_2_angles_outside_their_interval_still_get_gradients():
    layer = HouseHolder_Order_2(2).double()
    with torch.no_grad():
        layer.theta.copy_(torch.tensor([[0.5], [7.0], [-0.9]]))
    layer(torch.randn(200, 2, dtype=torch.float64)).square().mul(torch.rand(2, dtype=torch.float64)).sum().backward()
    assert (layer.theta.grad.abs() > 1e-3).all()


def test_gradients_are_finite_at_the_origin():
    for layer in (HouseHolder(4), HouseHolder_Order_2(4), SoftHuber(), Abs()):
        x = torch.zeros(3, 4, requires_grad=True)
        layer(x).sum().backward()
        assert torch.isfinite(x.grad).all()
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("name", ALL)
def test_nan_is_not_hidden(name):
    assert ALL[name](6, 1)(torch.full((1, 6), math.nan)).isnan().any()


# ---- precision, device, compilation --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALL)
def test_half_precision_keeps_dtype_and_norm(name, dtype):
    layer = ALL[name](66, 1).to(dtype)
    x = torch.randn(16, 66, dtype=dtype)
    y = layer(x)
    assert y.dtype == dtype
    if name in ("HouseHolder", "HouseHolder_Order_2"):
        # Output rounding errors average out over the entries; cosines in bfloat16 would not.
        assert abs(y.double().norm() / x.double().norm() - 1) < 3e-4


@pytest.mark.parametrize("name", TRAINABLE)
def test_state_dict_round_trip_and_meta_device(name):
    layer = ISOMETRIC[name](6, 1)
    train(layer, 6, steps=2)
    copy = ISOMETRIC[name](6, 1)
    copy.load_state_dict(layer.state_dict())
    x = torch.randn(2, 6)
    assert torch.equal(copy(x), layer(x))
    meta = type(layer)(6, device="meta", dtype=torch.float64)
    assert next(meta.parameters()).is_meta and next(meta.parameters()).dtype == torch.float64


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiles_in_one_graph(backend):
    torch.compiler.reset()
    layers = torch.nn.Sequential(*(ALL[name](6, 1) for name in ALL if name != "CReLU"), CReLU())
    x = torch.randn(2, 6, 3, requires_grad=True)
    compiled = torch.compile(layers, backend=backend, fullgraph=True)(x)
    assert torch.allclose(compiled, layers(x))
    compiled.sum().backward()
    assert torch.isfinite(x.grad).all()


# ---- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRED)
def test_odd_sizes_are_rejected(name):
    with pytest.raises(ShapeError, match=r"even.*got 5"):
        ISOMETRIC[name](6, 1)(torch.randn(2, 5))


def test_bad_arguments_are_rejected():
    for layer in (HouseHolder, HouseHolder_Order_2):
        with pytest.raises(ParameterError, match="even.*channels=5"):
            layer(5)
        with pytest.raises(ShapeError, match="built for 6 channels, the input has 4 on axis 1"):
            layer(6)(torch.randn(2, 4))
    with pytest.raises(ParameterError, match="channels=0"):
        NActivation(0)
    with pytest.raises(ShapeError, match="built for 6 channels, the input has 1 on axis 1"):
        NActivation(6)(torch.randn(2, 1, 4))
    with pytest.raises(ParameterError, match="two channels"):
        GroupSort(1)
    with pytest.raises(ShapeError, match="multiple of 4: got 6"):
        GroupSort(4)(torch.randn(2, 6))
    with pytest.raises(ParameterError, match="positive"):
        SoftHuber(0.0)
    for layer in (MaxMin(2), FullSort(2), GroupSort(2, axis=-3), CReLU(5)):
        with pytest.raises(ShapeError, match="does not exist"):
            layer(torch.randn(2, 6))


def test_printed_form():
    layers = [MaxMin(), MaxMin(-1), GroupSort(3), FullSort(2), HouseHolder(4), NActivation(3, axis=0), SoftHuber()]
    assert [repr(layer) for layer in layers] == [
        "MaxMin()",
        "MaxMin(axis=-1)",
        "GroupSort(3)",
        "FullSort(axis=2)",
        "HouseHolder(4)",
        "NActivation(3, axis=0)",
        "SoftHuber(delta=0.05)",
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")  # torch's own, at the first jvp
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", ["MaxMin", "GroupSort2"])
def test_all_derivatives_of_exchanges(name, memory, dtype):
    """Gradients are written by hand. They permute, so every derivative is exactly that of the plain operators."""

    def max_min(x):
        a, b = x.chunk(2, 1)
        return torch.cat([torch.where(a >= b, a, b), torch.where(a >= b, b, a)], 1)

    def group_sort(x):
        a, b = x[:, ::2], x[:, 1::2]
        return torch.stack([torch.where(a <= b, a, b), torch.where(a <= b, b, a)], 2).flatten(1, 2)

    layer = ALL[name](6, 1)
    plain = max_min if name == "MaxMin" else group_sort
    x = torch.randn(4, 6, 3, 5, dtype=dtype).to(memory_format=memory)
    x[0, 3:] = x[0, :3]  # ties
    x[1, 1] = x[1, 0]
    x.requires_grad_()
    weight, v = torch.randn(2, *x.shape, dtype=dtype)

    def derivatives(fn):
        def loss(x):
            return (weight * fn(fn(x).sin())).sin().sum()

        (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
        (second,) = torch.autograd.grad((first * v).sum(), x, create_graph=True)
        (third,) = torch.autograd.grad((second * v).sum(), x)
        forward = torch.func.jvp(loss, (x,), (v,))[1]
        forward_over_reverse = torch.func.jvp(torch.func.grad(loss), (x,), (v,))[1]
        each = torch.func.vmap(torch.func.grad(lambda one: (fn(one[None]) ** 3).sum()))(x)
        batched = torch.autograd.grad(fn(x), x, torch.stack([v, weight]), is_grads_batched=True)[0]
        half = torch.autograd.grad(fn(x.bfloat16()).float().square().sum(), x)[0]
        expanded = torch.autograd.grad(fn(x).sum(), x)[0]
        return first, second, third, forward, forward_over_reverse, each, batched, half, expanded

    for ours, reference in zip(derivatives(layer), derivatives(plain), strict=True):
        torch.testing.assert_close(ours, reference, rtol=0, atol=0)
    assert layer(x).is_contiguous(memory_format=memory)
    extremes = torch.tensor([0.0, -0.0, 1e-45, torch.inf, -torch.inf, 3e38], dtype=dtype)
    for values in (
        x.detach(),
        x.detach().bfloat16(),
        x.detach()[::2, :, ::2],
        torch.cartesian_prod(extremes, extremes),
    ):
        torch.testing.assert_close(layer(values), plain(values), rtol=0, atol=0)
