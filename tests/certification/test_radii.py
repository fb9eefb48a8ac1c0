import math

import pytest
import torch

from orthogonium.certification.radii import VRA, certified_radii, input_scaling, margins
from orthogonium.errors import ParameterError, ShapeError


def linear_model(classes=5, features=7, n=40):
    weight, bias = torch.randn(classes, features, dtype=torch.float64), torch.randn(classes, dtype=torch.float64)
    return weight, bias, torch.randn(n, features, dtype=torch.float64)


def attack(weight, bias, x, sizes):
    """Predictions after the worst step of each size towards each other class, (classes, n)."""
    y = (x @ weight.T + bias).argmax(dim=1)
    predictions = []
    for j in range(len(weight)):
        direction = weight[j] - weight[y]
        step = sizes[:, None] * direction / direction.norm(dim=1, keepdim=True).clamp(min=1e-12)
        predictions.append(((x + step) @ weight.T + bias).argmax(dim=1))
    return torch.stack(predictions), y


def test_radius_of_a_linear_model_is_the_distance_to_the_boundary():
    weight, bias, x = linear_model()
    radii = certified_radii(x @ weight.T + bias, None, weight)
    below, y = attack(weight, bias, x, 0.999 * radii)
    above, _ = attack(weight, bias, x, 1.001 * radii)
    assert (below == y).all()
    assert (above != y).any(dim=0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_coarse_radii_are_below_the_exact_ones_and_attained(dtype):
    _, bias, x = linear_model()
    orthonormal = torch.linalg.qr(torch.randn(7, 5, dtype=torch.float64)).Q.T
    logits = (x @ orthonormal.T + bias).to(dtype)
    exact = certified_radii(logits, None, orthonormal.to(dtype))
    assert torch.allclose(certified_radii(logits, None, "global"), exact)  # orthonormal rows are √2 apart

    opposite = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=dtype)
    logits = torch.randn(9, 2, dtype=dtype) @ opposite.T
    assert torch.allclose(certified_radii(logits, None, "classwise"), certified_radii(logits, None, opposite))
    unit = torch.nn.functional.normalize(torch.randn(5, 3, dtype=dtype), dim=1)
    logits = torch.randn(9, 3, dtype=dtype) @ unit.T
    assert (certified_radii(logits, None, "classwise") <= certified_radii(logits, None, unit) + 1e-6).all()


def test_radius_scales_with_the_constant_and_is_signed_by_the_label():
    logits = torch.tensor([[3.0, 1.0, 2.5], [3.0, 1.0, 2.5]])
    labels = torch.tensor([0, 1])
    assert torch.allclose(margins(logits, labels), torch.tensor([0.5, -2.0]))
    for kind, factor in [("global", math.sqrt(2)), ("classwise", 2.0)]:
        for L in (1.0, 0.5, 3.0):
            expected = torch.tensor([0.5, -2.0]) / (factor * L)
            assert torch.allclose(certified_radii(logits, labels, kind, L), expected)
    weight = torch.randn(3, 4)
    assert torch.allclose(certified_radii(logits, labels, weight, 2.0), certified_radii(logits, labels, weight) / 2)


def test_equal_rows_of_the_head_have_an_endless_radius_and_finite_gradients():
    weight = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    logits = torch.tensor([[2.0, 1.0], [1.0, 2.0], [1.0, 1.0]])
    labels = torch.zeros(3, dtype=torch.long)
    assert certified_radii(logits, labels, weight).tolist() == [math.inf, -math.inf, 0]
    weight = torch.eye(3, requires_grad=True)
    logits = torch.randn(4, 3, requires_grad=True)
    certified_radii(logits, torch.tensor([0, 1, 2, 0]), weight).sum().backward()
    assert torch.isfinite(logits.grad).all() and torch.isfinite(weight.grad).all()


def test_vra_counts_strictly_and_returns_certificates():
    logits = torch.tensor([[1.0, 0.0], [0.0, 4.0], [0.0, 4.0], [2.0, 0.0]])
    labels = torch.tensor([0, 1, 0, 0])
    assert VRA(logits, labels, eps=0.5).tolist() == [0, 1, 0, 1]  # radii ½, 2, −2, 1
    assert VRA(logits, labels, eps=0.4999).tolist() == [1, 1, 0, 1]
    assert VRA(logits, labels, "global", 1.0, 0.5).tolist() == [1, 1, 0, 1]
    assert VRA(logits, labels, "classwise", 1.0, 36 / 255, True).tolist() == [0.5, 2, -2, 1]


def test_runs_where_its_inputs_are():
    """No device is chosen for the user; meta tensors show it without one."""
    logits = torch.randn(4, 3, device="meta")
    labels = torch.zeros(4, dtype=torch.long, device="meta")
    assert VRA(logits, labels).is_meta
    assert certified_radii(logits, labels, torch.randn(3, 5, device="meta")).is_meta


def test_half_precision_is_computed_in_float32():
    logits, labels = torch.randn(6, 3).bfloat16(), torch.tensor([0, 1, 2, 0, 1, 2])
    assert certified_radii(logits, labels).dtype == torch.float32
    assert torch.equal(certified_radii(logits, labels), certified_radii(logits.float(), labels))
    assert torch.equal(margins(logits, labels.to(torch.uint8)), margins(logits.float(), labels))


INF, NAN = math.inf, math.nan
SAYS_NOTHING = [
    [INF, 60000.0], [60000.0, INF], [INF, INF], [NAN, 1.0], [1.0, NAN], [NAN, NAN], [INF, -INF], [INF, NAN],
    [-INF, -INF], [-INF, 1.0], [1.0, -INF],
]  # fmt: skip


@pytest.mark.parametrize("row", SAYS_NOTHING)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("head", ["global", "classwise", torch.eye(2), torch.ones(2, 2)])
def test_logits_that_say_nothing_are_never_certified(row, dtype, head):
    logits, labels = torch.tensor([row, row, [5.0, 1.0]], dtype=dtype), torch.tensor([0, 1, 0])
    radii = certified_radii(logits, labels, head)
    assert radii[:2].tolist() == [0, 0] and radii[2] > 0
    assert (margins(logits, labels)[:2] <= 0).all()
    assert certified_radii(logits, None, head)[0] == 0
    assert VRA(logits, labels, head, eps=0.0).tolist() == [0, 0, 1]
    assert VRA(logits, labels, head, return_certs=True).isnan().sum() == 0


def test_margins_of_overflown_logits_still_tell_who_lost():
    logits = torch.tensor([[1.0, INF, 0.0], [-INF, 1.0, 0.0], [INF, 1.0, 0.0], [1.0, NAN, 0.0]])
    assert margins(logits, torch.zeros(4, dtype=torch.long)).tolist() == [-INF, -INF, 0, 0]


def test_masked_classes_are_no_rivals():
    logits = torch.tensor([[3.0, -INF, 1.0, -INF], [1.0, -INF, 3.0, 2.0]])
    labels = torch.tensor([0, 0])
    kept = certified_radii(logits[:, [0, 2]], labels)
    assert certified_radii(logits, labels)[0] == kept[0] == 1
    assert certified_radii(logits, labels)[1] == -1
    assert margins(logits, labels).tolist() == [2, -2]
    assert torch.equal(certified_radii(logits, labels, torch.eye(4)), certified_radii(logits, labels, "global"))


@pytest.mark.parametrize("head", ["classwise", torch.eye(3)])
def test_gradients_are_finite_whatever_the_logits(head):
    rows = [[INF, 0.0, 1.0], [NAN, 0.0, 1.0], [2.0, -INF, 1.0], [-INF, 0.0, 1.0], [2.0, 0.0, 1.0]]
    logits = torch.tensor(rows, requires_grad=True)
    certified_radii(logits, torch.zeros(5, dtype=torch.long), head).sum().backward()
    assert logits.grad.isfinite().all() and logits.grad[-1].any()


def test_finite_logits_far_apart_have_finite_radii():
    logits = torch.tensor([[3e38, -3e38]])
    for head in ("classwise", torch.eye(2)):
        for L in (1.0, 1e-3):
            assert certified_radii(logits, None, head, L).item() > 1e38
            assert certified_radii(logits, None, head, L).isfinite().all()


@pytest.mark.parametrize("broken", [NAN, INF, -INF])
def test_a_head_that_is_not_finite_certifies_nothing(broken):
    head = torch.eye(3)
    head[1, 2] = broken
    logits = torch.tensor([[3.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    assert certified_radii(logits, None, head).tolist() == [0, 0]
    assert VRA(logits, torch.tensor([0, 1]), head, eps=0.0).tolist() == [0, 0]


def test_nothing_waits_for_the_device():
    # Whether values decide on control flow shows under a transform that has none to look at.
    batched = torch.vmap(lambda z: certified_radii(z, torch.zeros(2, dtype=torch.long), "global"))
    logits = torch.tensor([[[3.0, 1.0], [INF, 1.0]], [[NAN, 1.0], [0.0, 1.0]]])
    assert torch.equal(batched(logits).sign(), torch.tensor([[1.0, 0.0], [0.0, -1.0]]))


def test_input_scaling_is_the_norm_of_the_map():
    std = [0.2, 0.5, 0.4]
    matrix = torch.diag(1 / torch.tensor(std, dtype=torch.float64))
    assert input_scaling(std) == pytest.approx(torch.linalg.matrix_norm(matrix, ord=2).item())
    assert input_scaling(0.5) == 2


def test_bad_arguments_are_rejected():
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    with pytest.raises(ParameterError, match="'unknown'.*pass its weight"):
        VRA(logits, labels, "unknown")
    for L in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ParameterError, match="Lipschitz constant"):
            VRA(logits, labels, L=L)
    with pytest.raises(ParameterError, match="eps"):
        VRA(logits, labels, eps=-0.1)
    with pytest.raises(ShapeError, match="at least 2 classes"):
        VRA(logits[:, :1], labels)
    with pytest.raises(ShapeError, match="4 class indices"):
        VRA(logits, labels[:3])
    with pytest.raises(ShapeError, match="argmax"):
        VRA(logits, torch.eye(3)[labels])
    with pytest.raises(ShapeError, match=r"\[0, 2\]: got 0…3"):
        VRA(logits, torch.tensor([0, 1, 3, 0]))
    with pytest.raises(ShapeError, match="gives 5 logits"):
        VRA(logits, labels, torch.randn(5, 2))
    with pytest.raises(ShapeError, match=r"\(classes, features\)"):
        VRA(logits, labels, torch.randn(3))
    for std in ([0.5, 0.0], NAN, [0.5, -1.0], INF):
        with pytest.raises(ParameterError, match="positive"):
            input_scaling(std)
