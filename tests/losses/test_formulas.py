"""Each loss against its formula, computed sample by sample."""

import math

import pytest
import torch
import torch.nn.functional as F

from orthogonium import losses
from orthogonium.errors import NumericalWarning, ParameterError
from tests.losses.batches import CLASSES, batch


def by_sample(formula):
    logits, labels = batch()
    values = [formula([float(v) for v in z], int(y)) for z, y in zip(logits, labels, strict=True)]
    return logits, labels, torch.tensor(values, dtype=torch.float64)


def log_softmax(z, y):
    return z[y] - math.log(sum(math.exp(v) for v in z))


def others(z, y):
    return [v for j, v in enumerate(z) if j != y]


def test_offset_cross_entropy():
    def formula(z, y):
        shifted = [(v - (1.5 * math.sqrt(2) if j == y else 0)) / 0.25 for j, v in enumerate(z)]
        return -0.25 * log_softmax(shifted, y)

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(losses.LossXent(CLASSES, reduction="none")(logits, labels), expected, atol=1e-5)
    assert torch.allclose(losses.LossXent(CLASSES, 1.5 * math.sqrt(2))(logits, labels), expected.mean())


def test_offset_cross_entropy_becomes_a_hinge_on_the_margin():
    logits, labels = batch(40)
    margin = logits.gather(1, labels[:, None])[:, 0] - logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    cold = losses.LossXent(CLASSES, 1.3, 1e-4, reduction="none")(logits, labels)
    assert torch.allclose(cold, F.relu(1.3 - margin), atol=1e-3)


def test_tau_cross_entropy():
    logits, labels, expected = by_sample(lambda z, y: -log_softmax([5 * v for v in z], y) / 5)
    assert torch.allclose(losses.TauCrossEntropyLoss(5.0, reduction="none")(logits, labels), expected)
    smoothed = losses.TauCrossEntropyLoss(1.0, label_smoothing=0.3)(logits, labels)
    assert torch.allclose(smoothed, F.cross_entropy(logits, labels, label_smoothing=0.3))


def test_cosine():
    logits, labels, expected = by_sample(lambda z, y: -z[y] / math.sqrt(sum(v * v for v in z)))
    assert torch.allclose(losses.CosineLoss(reduction="none")(logits, labels), expected)


def test_cosine_of_probabilities_is_that_of_the_vector():
    logits, _ = batch()
    q = F.softmax(torch.randn(6, CLASSES, dtype=torch.float64), dim=1)
    cosine = (logits * q).sum(dim=1) / (logits.norm(dim=1) * q.norm(dim=1))
    assert torch.allclose(losses.CosineLoss(reduction="none")(logits, q), -cosine)
    violation = losses.Cosine_VRA_Loss(1.0, eps=1.0, reduction="none")
    expected = sum(q[:, k] * violation(logits, torch.full((6,), k)) for k in range(CLASSES))
    loss = losses.Cosine_VRA_Loss(0.4, eps=1.0, reduction="none")
    assert torch.allclose(loss(logits, q), 0.4 * expected - 0.6 * cosine)


@pytest.mark.parametrize(("kind", "constant"), [("classwise", 2.0), ("global", math.sqrt(2))])
def test_cosine_vra(kind, constant):
    def formula(z, y):
        h = [max(0.0, 0.8 - (z[y] - v) / (constant * 1.5)) for v in others(z, y)]
        total = sum(math.exp(v) for v in h)
        violation = sum(math.exp(v) / total * v for v in h)
        return -0.7 * z[y] / math.sqrt(sum(v * v for v in z)) + 0.3 * violation

    logits, labels, expected = by_sample(formula)
    loss = losses.Cosine_VRA_Loss(0.3, 1.5, 0.8, kind, reduction="none")
    assert torch.allclose(loss(logits, labels), expected)


def test_head_weight_takes_the_place_of_the_type():
    logits, _ = batch()
    labels = logits.argmax(dim=1)
    orthonormal = torch.eye(CLASSES, dtype=torch.float64)  # rows √2 apart: the global type
    for loss in (losses.Cosine_VRA_Loss, losses.EMMALoss, losses.CertificateRegularizedLoss):
        by_type = loss(last_layer_type="global")(logits, labels)
        assert torch.allclose(loss()(logits, labels, head_weight=orthonormal), by_type)
        assert not torch.allclose(loss()(logits, labels), by_type)
        with pytest.raises(ParameterError, match="unknown"):
            loss(last_layer_type="unknown")


def test_kr_is_the_difference_of_the_means():
    scores, labels = torch.randn(9, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 0])
    kr = scores[labels == 1].mean() - scores[labels == 0].mean()
    for form in (labels, 2 * labels - 1, labels.bool(), labels.double(), labels[:, None]):
        assert torch.allclose(losses.KRLoss()(scores, form), -kr)
        assert torch.allclose(losses.KRLoss()(scores[:, None], form), -kr)
    sign = 2 * labels - 1
    hinge = F.relu(0.75 - sign * scores).mean()
    assert torch.allclose(losses.HKRLoss(0.6, 1.5)(scores, labels), 0.6 * hinge - 0.4 * kr)
    assert torch.allclose(losses.HKRLoss(1.0, 1.5)(scores, sign), hinge)


def test_multiclass_kr_is_one_against_the_rest():
    logits, labels = batch(10)
    krs, hinges = [], []
    for k in range(CLASSES):
        mine = labels == k
        krs.append(logits[mine, k].mean() - logits[~mine, k].mean())
        values = torch.where(mine, (CLASSES - 1) * F.relu(0.5 - logits[:, k]), F.relu(0.5 + logits[:, k]))
        hinges.append(values.mean())
    kr, hinge = sum(krs) / CLASSES, sum(hinges) / CLASSES
    assert torch.allclose(losses.KRMulticlassLoss()(logits, labels), -kr)
    assert torch.allclose(losses.HKRMulticlassLoss(0.7)(logits, labels), 0.7 * hinge - 0.3 * kr)


def test_classes_absent_from_the_batch_are_left_out():
    logits = torch.randn(3, CLASSES, requires_grad=True)
    loss = losses.HKRMulticlassLoss(0.5)(logits, torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("labels,which", [([1, 1, 1], "positive"), ([0, 0, 0], "negative"), ([-1, -1, -1], "negative")])
def test_a_batch_of_one_class_says_so(labels, which):
    """KR has no second mean then: what is left is that of one class, and the warning has the line of the caller."""
    scores, labels = torch.randn(3), torch.tensor(labels)
    for loss in (losses.KRLoss(), losses.HKRLoss(0.5)):
        with pytest.warns(NumericalWarning, match=f"All 3 labels are {which}") as found:
            value = loss(scores, labels)
        assert found[0].filename == __file__ and value.isfinite()
    with pytest.warns(NumericalWarning):
        assert torch.allclose(losses.KRLoss()(scores, labels), -scores.mean() * (1 if which == "positive" else -1))
    losses.KRLoss()(scores, torch.tensor([1, 1, 0]))  # warnings are errors here
    losses.KRLoss()(scores, torch.full((3,), 0.5))


def test_soft_hkr():
    def formula(z, y):
        mean = 0.99 * 0.8 + 0.01 * 5.0
        tau = 2.0 * 0.8 / max(mean, 0.8)
        total = sum(math.exp(tau * v) for v in others(z, y))
        p = [math.exp(tau * v) / total for v in others(z, y)]
        kr = -z[y] + sum(w * v for w, v in zip(p, others(z, y), strict=True))
        hinge = max(0.0, 0.4 - z[y]) + sum(w * max(0.0, 0.4 + v) for w, v in zip(p, others(z, y), strict=True))
        return 0.3 * kr + 0.7 * hinge

    logits, labels, expected = by_sample(formula)
    loss = losses.SoftHKRMulticlassLoss(0.7, 0.8, 0.99, 2.0, reduction="none")
    loss(torch.full((2, CLASSES), 5.0), torch.tensor([0, 1]))  # one training step moves the mean
    assert torch.allclose(loss.eval()(logits, labels), expected, atol=1e-6)


def test_soft_hkr_moves_its_mean_only_in_training_steps():
    loss = losses.SoftHKRMulticlassLoss(min_margin=0.5)
    logits, labels = torch.full((3, CLASSES), -9.0, requires_grad=True), torch.tensor([0, 1, 2])
    assert loss.mean.item() == 0.5 and "mean" in dict(loss.named_buffers())
    loss.eval()(logits, labels)
    with torch.no_grad():
        loss.train()(logits, labels)
    assert loss.mean.item() == 0.5
    first, second = loss(logits, labels), loss(logits, labels)
    (first + second).backward()  # the second step did not spoil the graph of the first
    assert loss.mean.item() == pytest.approx(0.99 * (0.99 * 0.5 + 0.09) + 0.09)
    copy = losses.SoftHKRMulticlassLoss(min_margin=0.5)
    copy.load_state_dict(loss.state_dict())
    assert copy.mean == loss.mean
    loss(1e9 * logits, labels)
    assert loss.mean.item() == 1000


def test_soft_hkr_has_a_legal_default():
    assert 0 <= losses.SoftHKRMulticlassLoss().alpha <= 1
    assert torch.isfinite(losses.SoftHKRMulticlassLoss(alpha=0.5)(*batch()))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_lse_hkr_lies_between_the_maximum_and_its_bound(classes):
    z, y = torch.randn(50, classes, dtype=torch.float64), torch.randint(classes, (50,))
    rival = z.scatter(1, y[:, None], -math.inf).amax(dim=1)
    true = z.gather(1, y[:, None])[:, 0]
    kr = losses.LseHKRMulticlassLoss(0.0, min_margin=0.6, penalty=0.5, reduction="none")(z, y)
    excess = kr - (rival - true)
    assert (excess >= -1e-12).all() and (excess <= 0.15 + 1e-12).all()
    smooth = kr + true
    hinge = losses.LseHKRMulticlassLoss(1.0, min_margin=0.6, penalty=0.5, reduction="none")(z, y)
    assert torch.allclose(hinge, F.relu(0.3 - true) + F.relu(0.3 + smooth))
    if classes == 2:
        assert torch.allclose(smooth, rival)


def test_la():
    def formula(z, y):
        log_p = log_softmax([(v - (2 if j == y else 0)) / 0.75 for j, v in enumerate(z)], y)
        return -0.75 * (1 - math.exp(log_p)) ** 5 * log_p

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(losses.LALoss(reduction="none")(logits, labels), expected)
    assert torch.allclose(
        losses.LALoss(0.25, 1.0, 0.0)(logits, labels), losses.LossXent(CLASSES, 1.0, 0.25)(logits, labels)
    )


def test_emma():
    def formula(z, y):
        reach = 0.6 * 2 * 1.5
        attacked = []
        for j, v in enumerate(z):
            share = min(1.0, max(0.01, (z[y] - v) / reach))
            attacked.append(0.0 if j == y else v - z[y] + share * reach)
        return -log_softmax(attacked, y)

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(losses.EMMALoss(0.6, 1.5, reduction="none")(logits, labels), expected)


def test_emma_takes_its_shares_as_constants():
    """Brought level, a class would have no gradient at all if the share were differentiated."""
    logits = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    losses.EMMALoss(0.5)(logits, torch.tensor([0])).backward()
    assert torch.allclose(logits.grad, torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_certificate_regularization():
    def formula(z, y):
        radius = (z[y] - max(others(z, y))) / 3
        return -log_softmax(z, y) - 0.3 * max(0.0, radius)

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(losses.CertificateRegularizedLoss(0.3, 1.5, reduction="none")(logits, labels), expected)
