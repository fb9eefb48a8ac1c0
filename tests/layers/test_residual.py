import pytest
import torch
from torch import nn

from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers import OrthoLinear
from orthogonium.layers.residual import (
    AdditiveResidual,
    ConcatResidual,
    L2NormResidual,
    PrescaledAdditiveResidual,
)
from tests.jacobians import singular_values, worst_ratio

GATES = [-1e4, -30.0, -1.0, -1e-8, 0.0, 1e-8, 0.5, 1.0, 30.0, 1e4]
WRAPPERS = {
    "concat": lambda fn, gate: ConcatResidual(fn),
    "l2": lambda fn, gate: L2NormResidual(fn),
    "additive": AdditiveResidual,
    "prescaled": PrescaledAdditiveResidual,
}
GATED = {name: WRAPPERS[name] for name in ("additive", "prescaled")}


def rotation(n):
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q


def branches(channels):
    """1-Lipschitz functions of (n, channels, w): orthogonal ones, and those that line up with the skip connection."""
    q = rotation(channels)
    return {
        "orthogonal": lambda x: torch.einsum("ij,njw->niw", q, x),
        "orthogonal then abs": lambda x: torch.einsum("ij,njw->niw", q, x).abs(),
        "identity": lambda x: x,
        "minus identity": lambda x: -x,
        "abs": torch.abs,
        "constant": lambda x: 0 * x + 3,
    }


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", WRAPPERS)
def test_one_lipschitz_for_any_one_lipschitz_branch_and_any_gate(name, gate):
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    for fn in branches(3 if name == "concat" else 6).values():
        wrapper = WRAPPERS[name](fn, gate).double()
        assert wrapper(x).shape == x.shape
        assert singular_values(wrapper, x).max() <= 1 + 1e-12
        assert wrapper.lipschitz_bound() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", WRAPPERS)
def test_searched_inputs_are_never_moved_apart(name):
    for fn in branches(3 if name == "concat" else 6).values():
        x, y = torch.randn(2, 2, 6, 2, dtype=torch.float64)
        assert worst_ratio(WRAPPERS[name](fn, 0.7).double(), x, y, steps=25) <= 1 + 1e-12


@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0, 3.0])
@pytest.mark.parametrize("name", WRAPPERS)
def test_the_stated_bound_is_attained(name, factor):
    """By fn = L · id: an over-cautious wrapper (say, one that divides by 2) fails here."""
    wrapper = WRAPPERS[name](lambda x: factor * x, 0.7).double()
    x = 10 + torch.rand(1, 4, 3, dtype=torch.float64)
    largest = singular_values(wrapper, x).max().item()
    assert largest == pytest.approx(wrapper.lipschitz_bound(factor), abs=1e-6)


def test_concat_keeps_the_first_half_and_the_isometry_of_its_branch():
    q = rotation(3)
    wrapper = ConcatResidual(lambda x: torch.einsum("ij,njw->niw", q, x))
    x = torch.randn(2, 6, 2, dtype=torch.float64)
    assert torch.equal(wrapper(x)[:, :3], x[:, :3])
    assert (singular_values(wrapper, x) - 1).abs().max() < 1e-12
    last = ConcatResidual(torch.abs, dim=-1)(x)
    assert torch.equal(last, torch.cat([x[..., :1], x[..., 1:].abs()], dim=-1))


def test_formulas():
    x, y = torch.randn(2, 2, 4, dtype=torch.float64)
    assert torch.allclose(L2NormResidual(lambda _: y, eps=1e-3)(x), ((x**2 + y**2) / 2 + 1e-3).sqrt())
    g = 1 / (1 + torch.exp(torch.tensor(-0.7, dtype=torch.float64)))
    assert torch.allclose(AdditiveResidual(lambda _: y, 0.7, dtype=torch.float64)(x), g * x + (1 - g) * y)
    prescaled = PrescaledAdditiveResidual(torch.sin, -2.0, dtype=torch.float64)
    assert torch.allclose(prescaled(x), (x + torch.sin(-2 * x)) / 3)


@pytest.mark.parametrize("name", GATED)
def test_training_moves_the_gate_and_keeps_the_bound(name):
    model = WRAPPERS[name](nn.Sequential(OrthoLinear(6, 6), nn.ReLU()), 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.alpha.item()
    for _ in range(10):
        optimizer.zero_grad()
        model(torch.randn(16, 6)).square().sum().neg().backward()  # as expansive as it can get
        optimizer.step()
    assert abs(model.alpha.item() - before) > 0.1
    exact = model.double()  # the same parameters, without the rounding of float32
    assert singular_values(exact, torch.randn(1, 6, dtype=torch.float64)).max() <= 1 + 1e-12


@pytest.mark.parametrize("name", WRAPPERS)
def test_gradients_are_right_and_finite_at_zero(name):
    wrapper = WRAPPERS[name](torch.tanh, 0.3).double()
    assert torch.autograd.gradcheck(wrapper, (torch.randn(2, 4, dtype=torch.float64, requires_grad=True),))
    x = torch.zeros(2, 4, dtype=torch.float64, requires_grad=True)
    wrapper(x).sum().backward()
    assert torch.isfinite(x.grad).all()
    for p in wrapper.parameters():
        assert torch.isfinite(p.grad).all()


@pytest.mark.parametrize("name", WRAPPERS)
def test_half_precision_does_not_expand(name):
    """Gates rounded to bfloat16 would: g + (1 − g) > 1."""
    wrapper = WRAPPERS[name](lambda x: x, 0.777).bfloat16()
    x = torch.full((4, 8), 2.0, dtype=torch.bfloat16)
    y = wrapper(x)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, x)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_branch_that_changes_the_shape_is_rejected(name):
    changing = {
        "mean": lambda x: x.mean(dim=2, keepdim=True),  # would broadcast
        "channels": lambda x: torch.cat([x, x], dim=1),
        "crop": lambda x: x[..., 1:],
    }
    for fn in changing.values():
        with pytest.raises(ShapeError, match="keep the shape"):
            WRAPPERS[name](fn, 1.0)(torch.randn(2, 4, 3))


def test_bad_arguments_are_rejected():
    with pytest.raises(ShapeError, match=r"even.*\(2, 5, 3\)"):
        ConcatResidual(torch.abs)(torch.randn(2, 5, 3))
    with pytest.raises(ShapeError, match="axis 3"):
        ConcatResidual(torch.abs, dim=3)(torch.randn(2, 4, 4))
    with pytest.raises(ParameterError, match="eps"):
        L2NormResidual(torch.abs, eps=0)
    for wrapper in (AdditiveResidual, PrescaledAdditiveResidual):
        with pytest.raises(ParameterError, match="finite"):
            wrapper(torch.abs, init_val=float("nan"))


def test_modules_inside_are_registered_and_state_round_trips():
    for build in WRAPPERS.values():
        wrapper = build(nn.Conv1d(3, 3, 3, padding="same"), 1.0)
        copy = build(nn.Conv1d(3, 3, 3, padding="same"), 2.0)
        assert "fn.weight" in wrapper.state_dict()
        copy.load_state_dict(wrapper.state_dict())
        x = torch.randn(1, 6 if build is WRAPPERS["concat"] else 3, 5)
        assert torch.equal(copy(x), wrapper(x))


def test_compiles_in_one_graph():
    torch.compiler.reset()
    model = nn.Sequential(*(build(torch.tanh, 0.4) for build in WRAPPERS.values()))
    x = torch.randn(2, 4, 3)
    assert torch.allclose(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


@pytest.mark.parametrize("name", GATED)
def test_gates_have_an_axis_and_load_without(name):
    model = nn.Sequential(WRAPPERS[name](nn.Tanh(), 0.3))
    assert model[0].alpha.shape == (1,)
    for assign in (False, True):
        other = nn.Sequential(WRAPPERS[name](nn.Tanh(), 1.0))
        old = {"0.alpha": torch.tensor(0.3)}
        other.load_state_dict(old, strict=True, assign=assign)
        assert other[0].alpha.shape == (1,) and other[0].alpha.item() == model[0].alpha.item()
        assert old["0.alpha"].dim() == 0  # theirs is left alone
    for x in (torch.tensor(0.5), torch.randn(3), torch.randn(2, 3, 4)):
        assert model(x).shape == x.shape


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("way", ["training", "no_grad", "inference", "vmap", "compile"])
def test_branches_that_write_into_their_input(name, way):
    """Either what the formula says, or an error: never the branch of an overwritten input."""
    torch.compiler.reset()
    plain = WRAPPERS[name](nn.ReLU(), 0.4)
    writing = WRAPPERS[name](nn.ReLU(inplace=True), 0.4)
    x = torch.randn(3, 2, 4, 5)
    expected = plain(x.clone())
    run = {
        "training": lambda: writing(1 * x.clone().requires_grad_()),
        "no_grad": torch.no_grad()(lambda: writing(x.clone())),
        "inference": torch.inference_mode()(lambda: writing(x.clone())),
        "vmap": lambda: torch.func.vmap(lambda v: writing(v[None])[0])(x.clone()),
        "compile": lambda: torch.compile(writing, backend="eager", fullgraph=True)(x.clone()),
    }[way]
    try:
        found = run()
    except (ParameterError, RuntimeError) as error:
        assert "writes into its input" in str(error) or "in-place" in str(error) or "inplace" in str(error)
        assert way in ("training", "no_grad", "vmap")
    else:
        torch.testing.assert_close(found, expected)
