"""Attacks find what is there, nothing else, and leave no trace; judged by the exact distances of linear models."""

import math
import sys
from importlib.util import find_spec

import pytest
import torch
from torch import nn

from orthogonium.attacks import attack, break_certificates, empirical_accuracy, l2_pgd, list_attacks
from orthogonium.attacks.balls import NumberedUnitBalls, UnitBalls
from orthogonium.attacks.distances import distances, inner_radii
from orthogonium.attacks.pgd import _projected
from orthogonium.errors import NumericalWarning, ParameterError, ShapeError

IMAGE = (2, 5, 5)


def linear_model(dtype=torch.float32, classes=5):
    """A linear classifier on images, inputs, their classes, and the exact distance to the nearest other class."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(IMAGE), classes)).to(dtype).eval()
    x = torch.rand(30, *IMAGE, dtype=dtype)
    logits, w = model(x).detach().double(), model[1].weight.detach().double()
    labels = logits.argmax(1)
    gaps = (logits.gather(1, labels[:, None]) - logits) / (w[labels][:, None] - w).norm(dim=2)
    exact = gaps.scatter(1, labels[:, None], math.inf).amin(1)
    return model, x, labels, exact


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pgd_finds_what_is_just_inside_and_nothing_just_outside(dtype):
    model, x, labels, exact = linear_model(dtype)
    outside = l2_pgd(model, x, labels, 0.99 * exact)
    assert torch.equal(outside, x)
    inside = l2_pgd(model, x, labels, 1.02 * exact, steps=60)
    found = model(inside).argmax(1) != labels
    assert found.float().mean() > 0.95
    distance = (inside.double() - x.double()).flatten(1).norm(dim=1)
    assert (distance <= 1.02 * exact).all() and (distance[found] >= exact[found] * 0.999).all()


@pytest.mark.parametrize("size", [3, 3072, 150528])
def test_projected_points_are_inside(size):
    """Also where all pixels differ by the same: many equal squares add up inexactly in float32."""
    x, radii = torch.zeros(2, size), torch.full((2,), 0.1, dtype=torch.float64)
    points = _projected(x + 3.3, x, inner_radii(x, radii), -math.inf, math.inf)
    assert (distances(points, x) <= radii).all()


def test_points_are_drawn_back_to_the_boundary():
    model, x, labels, exact = linear_model()
    found = attack(model, (x, labels), 20 * exact)
    assert found.success.all() and (found.distances < 3 * exact).all() and (found.distances >= exact * 0.9999).all()


def test_a_vanishing_gradient_is_left_at_random():
    def flat(x):  # logits (0, 1) beyond 0.5 from the origin in the first axis, (1, 0) before: no gradient anywhere
        beyond = (x[:, :1] > 0.5).to(x) + 0 * x[:, :1]
        return torch.cat([1 - beyond, beyond], dim=1)

    x = torch.zeros(50, 3)
    found = attack(flat, (x, torch.zeros(50, dtype=torch.long)), 2.0)
    assert found.success.float().mean() > 0.3


def test_pixels_stay_in_their_box():
    model, x, labels, exact = linear_model()
    found = attack(model, (x, labels), 3 * exact, bounds=(0.0, 1.0))
    assert found.success.any() and found.points.min() >= 0 and found.points.max() <= 1
    with pytest.raises(ParameterError, match="leave the bounds"):
        attack(model, (x, labels), 1.0, bounds=(0.0, 0.5))
    with pytest.raises(ParameterError, match="smaller and a larger"):
        attack(model, (x, labels), 1.0, bounds=(1.0, 0.0))


@pytest.mark.parametrize("everywhere", [True, False])
def test_an_answer_that_is_not_a_number_is_no_right_answer(everywhere):
    """NaN is neither above nor below another logit: comparisons alone would count such points as withstood."""
    model, x, labels, _ = linear_model()

    def fails(points):
        logits = model(points)
        moved = torch.tensor([everywhere or not (x == point).flatten(1).all(1).any() for point in points])
        return logits.masked_fill(moved[:, None] & (torch.arange(5) == 2), math.nan)

    assert empirical_accuracy(fails, x, labels, [0.0, 1e-3], steps=5).accuracy == (float(not everywhere), 0.0)


def test_results_tell_distances_and_take_loaders():
    model, x, labels, exact = linear_model()
    labels[0] = (labels[0] + 1) % 5  # wrong from the start
    whole = attack(model, (x, labels), 1.5 * exact)
    assert whole.distances[0] == 0 and whole.success[0] and torch.equal(whole.points[0], x[0])
    broken = whole.success.nonzero().flatten()
    moved = (whole.points.double() - x.double()).flatten(1).norm(dim=1)
    assert torch.allclose(whole.distances[broken], moved[broken], rtol=1e-12, atol=0)
    assert (model(whole.points).argmax(1) != labels)[broken].all()
    assert whole.distances[~whole.success].isinf().all()
    loader = [(x[:13], labels[:13]), (x[13:], labels[13:])]
    assert torch.equal(attack(model, loader, 1.5 * exact).distances, whole.distances)
    assert whole.accuracy == 1 - len(broken) / 30 and f"{len(broken)} of 30" in str(whole)


def test_batches_and_seeds():
    model, x, labels, exact = linear_model()
    once, again = (attack(model, (x, labels), 1.2 * exact, seed=4) for _ in range(2))
    assert torch.equal(once.points, again.points)
    small = attack(model, (x, labels), 1.2 * exact, batch_size=7)
    assert small.success.float().mean() > 0.9


def test_nothing_is_left_behind():
    model, x, labels, exact = linear_model()
    model[1].bias.requires_grad_(False)
    state = torch.get_rng_state()
    attack(model, (x, labels), exact)
    assert torch.equal(torch.get_rng_state(), state)
    assert [p.requires_grad for p in model.parameters()] == [True, False]
    assert all(p.grad is None for p in model.parameters())


def test_curve_is_nested_and_brackets_the_exact_one():
    model, x, labels, exact = linear_model()
    labels[:3] = (labels[:3] + 1) % 5
    eps = [0.5, 0.0, 0.05, 0.2]
    curve = empirical_accuracy(model, x, labels, eps, steps=60)
    assert curve.eps == tuple(eps) and curve.accuracy[1] == 0.9
    ordered = [a for _, a in sorted(zip(curve.eps, curve.accuracy, strict=True))]
    assert ordered == sorted(ordered, reverse=True)
    for e, a in zip(curve.eps, curve.accuracy, strict=True):
        assert (exact[3:] > e).sum() / 30 <= a + 1e-9  # never below the truth
        assert a <= (exact[3:] > 0.9 * e).sum() / 30 + 1e-6  # and not far above it
    assert "0.2000" in str(curve)


def test_certificates_are_broken_exactly_where_they_are_wrong():
    model, x, labels, exact = linear_model()
    radii = exact.clone()
    radii[5:10] *= 1.2
    radii[10:12] = -1.0
    radii[12] = math.inf
    labels[13] = (labels[13] + 1) % 5
    found = break_certificates(model, x, labels, radii, steps=80)
    assert set(found.broken.nonzero().flatten().tolist()) == {5, 6, 7, 8, 9, 12, 13}
    assert found.attacked.sum() == 28 and "7 of 28 certificates broken" in str(found)
    assert (found.distances[5:10] < 0.999 * radii[5:10]).all()
    assert (model(found.points[5:10]).argmax(1) != labels[5:10]).all()
    nothing = break_certificates(model, x, labels, -exact)
    assert not nothing.attacked.any() and not nothing.broken.any()


def test_half_precision_is_searched_or_named():
    """What rounding may add is kept out of the radius; where it takes all of it, nothing is searched."""
    model, x, labels, exact = linear_model()
    model, x = model.bfloat16(), x.bfloat16()
    labels = model(x).argmax(1)
    assert break_certificates(model, x, labels, exact + 0.5).broken.double().mean() > 0.8
    with pytest.warns(NumericalWarning, match="30 of 30 inputs were not attacked: what torch.bfloat16 rounds"):
        break_certificates(model, x, labels, torch.full_like(exact, 0.01))


def test_bad_arguments():
    model, x, labels, exact = linear_model()
    with pytest.raises(ParameterError, match="one of adam-pgd, autoattack.*got 'magic'"):
        attack(model, (x, labels), 1.0, method="magic")
    with pytest.raises(ParameterError, match="eval"):
        attack(nn.Linear(3, 2), (x, labels), 1.0)
    with pytest.raises(ShapeError, match="per input"):
        attack(model, (x, labels), exact[:3])
    for eps in (-1.0, math.nan, math.inf):
        with pytest.raises(ParameterError, match="finite"):
            attack(model, (x, labels), eps)
    with pytest.raises(ParameterError, match="no batch"):
        attack(model, [], 1.0)
    with pytest.raises(ShapeError, match="pair"):
        attack(model, [(x,)], 1.0)
    with pytest.raises(ShapeError, match="label per input"):
        attack(model, (x, labels[:3]), 1.0)
    with pytest.raises(ParameterError, match="step"):
        attack(model, (x, labels), 1.0, steps=0)
    with pytest.raises(ParameterError, match="eps_list"):
        empirical_accuracy(model, x, labels, [])
    with pytest.raises(ParameterError, match="fraction"):
        break_certificates(model, x, labels, exact, fraction=1.5)
    with pytest.raises(ShapeError, match="radius per input"):
        break_certificates(model, x, labels, exact[:4])
    with pytest.raises(ParameterError, match="1 of 30 radii are NaN"):
        break_certificates(model, x, labels, torch.where(exact == exact.max(), math.nan, exact))
    with pytest.raises(TypeError, match="step"):
        break_certificates(model, x, labels, exact, step=3)
    for name in ("steps", "restarts", "batch_size"):
        with pytest.raises(ParameterError, match=f"{name} of an attack is at least 1: got 0"):
            attack(model, (x, labels), 1.0, method="ddn", **{name: 0})


@pytest.mark.parametrize(("method", "library"), [("ddn", "foolbox"), ("autoattack", "pyautoattack")])
def test_a_missing_library_is_named_with_its_extra(method, library, monkeypatch):
    model, x, labels, _ = linear_model()
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{library}.*\.\[attack\].*'pgd' does without"):
        attack(model, (x, labels), 1.0, method=method)


def test_unit_balls_are_the_model_around_each_input():
    model, x, labels, exact = linear_model(torch.float64)
    balls = UnitBalls(model, x, exact, (-math.inf, math.inf))
    d = torch.randn_like(x)
    assert torch.allclose(balls(d), model(x + exact.reshape(-1, 1, 1, 1) * d))
    numbered = NumberedUnitBalls(balls)
    assert numbered.start.shape == (30, 3, 5, 5) and numbered.start.min() == 0 and numbered.start.max() == 1
    some = torch.tensor([17, 3, 29, 0])
    z = numbered.start[some]
    z[:, :2] += numbered.scale * d[some]
    z[:, 2:] += 0.24 * torch.randn_like(z[:, 2:]).clamp(-1, 1)  # numbers withstand what a ball allows
    assert torch.allclose(numbered(z), balls(d)[some])


def needs(library):
    return pytest.mark.skipif(find_spec(library) is None, reason=f"{library} is not installed")


@needs("foolbox")
@pytest.mark.parametrize("method", sorted(set(list_attacks()) - {"pgd", "autoattack"}))
def test_attacks_of_foolbox(method):
    model, x, labels, exact = linear_model()
    state = torch.get_rng_state()
    beyond = attack(model, (x, labels), 1.5 * exact, method=method)
    assert torch.equal(torch.get_rng_state(), state)
    assert beyond.success.float().mean() > (0.2 if method != "noise" else -1)
    assert (beyond.distances >= exact * 0.9999).all()
    assert not attack(model, (x, labels), 0.99 * exact, method=method, bounds=(0.0, 1.0)).success.any()


@needs("foolbox")
def test_steps_reach_foolbox():
    model, x, labels, exact = linear_model()
    few, many = (attack(model, (x, labels), 9.0, method="ddn", steps=n).distances for n in (5, 200))
    assert many.mean() < few.mean() and many.mean() < 1.5 * exact.mean()
    with pytest.raises(ParameterError, match="no steps"):
        attack(model, (x, labels), 1.0, method="fgm", steps=3)


@needs("pyautoattack")
@pytest.mark.slow
@pytest.mark.parametrize("classes", [3, 5])
def test_autoattack_finds_what_is_just_inside(classes):
    model, x, labels, exact = linear_model(classes=classes)
    radii = exact * torch.where(torch.arange(30) % 2 == 0, 0.995, 1.02)
    tracer = sys.gettrace()
    found = attack(model, (x, labels), radii, method="autoattack")
    assert sys.gettrace() is tracer
    assert torch.equal(found.success, radii > exact)
    with pytest.raises(ParameterError, match="steps"):
        attack(model, (x, labels), 1.0, method="autoattack", steps=3)
    with pytest.raises(ShapeError, match="images"):
        attack(nn.Identity().eval(), (torch.eye(3), torch.tensor([0, 1, 2])), 1.0, method="autoattack")
