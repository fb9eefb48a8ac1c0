import math

import pytest
import torch
import torch.nn.functional as F

import orthogonium.losses
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.losses import (
    CertificateRegularizedLoss,
    Cosine_VRA_Loss,
    CosineLoss,
    EMMALoss,
    HKRLoss,
    HKRMulticlassLoss,
    KRLoss,
    KRMulticlassLoss,
    LALoss,
    LossXent,
    LseHKRMulticlassLoss,
    SoftHKRMulticlassLoss,
    TauCrossEntropyLoss,
)

CLASSES = 4
MULTICLASS = {
    "LossXent": lambda **k: LossXent(CLASSES, **k),
    "LossXent smoothed": lambda **k: LossXent(CLASSES, 1.0, 0.5, label_smoothing=0.2, **k),
    "Tau": lambda **k: TauCrossEntropyLoss(5.0, **k),
    "Cosine": lambda **k: CosineLoss(**k),
    "Cosine_VRA": lambda **k: Cosine_VRA_Loss(gamma=0.4, eps=1.0, **k),
    "KR": lambda **k: KRMulticlassLoss(**k),
    "HKR": lambda **k: HKRMulticlassLoss(0.7, **k),
    "SoftHKR": lambda **k: SoftHKRMulticlassLoss(0.7, **k),
    "LseHKR": lambda **k: LseHKRMulticlassLoss(0.7, **k),
    "LA": lambda **k: LALoss(**k),
    "LA root": lambda **k: LALoss(beta=0.5, **k),
    "EMMA": lambda **k: EMMALoss(0.1, **k),
    "CR": lambda **k: CertificateRegularizedLoss(0.3, **k),
}
BINARY = {"KR": KRLoss, "HKR": lambda **k: HKRLoss(0.7, **k)}
WITH_HEAD = ("Cosine_VRA", "EMMA", "CR")
EXPECTATIONS = ("SoftHKR", "LseHKR", "LA", "EMMA", "CR")


def batch(n=6, dtype=torch.float64):
    return torch.randn(n, CLASSES, dtype=dtype), torch.arange(n) % CLASSES


# ---- contracts of all ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MULTICLASS)
def test_gradients(name):
    logits, labels = batch()
    loss = MULTICLASS[name](reduction="none").eval()
    if name == "EMMA":  # the shares are constants of the gradient: check where they are clipped, so constant anyway
        logits = 5 * logits
    assert torch.autograd.gradcheck(lambda z: loss(z, labels), (logits.requires_grad_(),))
    smoothed = 0.9 * F.one_hot(labels, CLASSES) + 0.1 / CLASSES
    if name != "EMMA":
        assert torch.autograd.gradcheck(lambda z: loss(z, smoothed), (logits,))


@pytest.mark.parametrize("name", BINARY)
def test_gradients_binary(name):
    scores, labels = torch.randn(6, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1, 1, 0, 1, 0])
    assert torch.autograd.gradcheck(lambda f: BINARY[name](reduction="none")(f, labels), (scores,))


@pytest.mark.parametrize("name", WITH_HEAD)
def test_gradients_reach_the_weight_of_the_head(name):
    logits, labels = batch()
    weight = torch.randn(CLASSES, 3, dtype=torch.float64, requires_grad=True)
    loss = MULTICLASS[name](reduction="none")
    scale = 20 if name == "EMMA" else 1
    assert torch.autograd.gradcheck(lambda z, w: loss(z, labels, w), ((scale * logits).requires_grad_(), weight))


@pytest.mark.parametrize("name", MULTICLASS)
def test_one_hot_labels_mean_indices(name):
    logits, labels = batch()
    loss = MULTICLASS[name](reduction="none").eval()
    one_hot = F.one_hot(labels, CLASSES)
    for form in (one_hot, one_hot.float(), one_hot.double(), labels.int(), labels.to(torch.uint8)):
        assert torch.allclose(loss(logits, form), loss(logits, labels))


@pytest.mark.parametrize("name", EXPECTATIONS)
def test_probabilities_give_the_expected_loss(name):
    logits, _ = batch()
    q = torch.rand(6, CLASSES, dtype=torch.float64)
    q /= q.sum(dim=1, keepdim=True)
    q[0] = torch.tensor([0.3, 0.0, 0.7, 0.0])
    loss = MULTICLASS[name](reduction="none").eval()
    expected = sum(q[:, k] * loss(logits, torch.full((6,), k)) for k in range(CLASSES))
    assert torch.allclose(loss(logits, q), expected)


@pytest.mark.parametrize("name", MULTICLASS)
def test_reductions(name):
    logits, labels = batch()
    values = MULTICLASS[name](reduction="none").eval()(logits, labels)
    assert values.shape == (6,)
    assert torch.allclose(MULTICLASS[name]().eval()(logits, labels), values.mean())
    assert torch.allclose(MULTICLASS[name](reduction="sum").eval()(logits, labels), values.sum())
    with pytest.raises(ParameterError, match="reduction"):
        MULTICLASS[name](reduction="average")


@pytest.mark.parametrize("name", MULTICLASS)
def test_device_and_precision_follow_the_input(name):
    loss = MULTICLASS[name]().eval()
    logits, labels = batch(dtype=torch.float32)
    assert loss(logits, labels).dtype == torch.float32
    assert loss(logits.double(), labels).dtype == torch.float64
    half = loss(logits.bfloat16(), labels)
    assert half.dtype == torch.float32 and torch.allclose(half, loss(logits.bfloat16().float(), labels))
    assert loss.to("meta")(logits.to("meta"), labels.to("meta")).is_meta


@pytest.mark.parametrize("name", MULTICLASS)
def test_descent_raises_the_true_logit(name):
    """From a wrong prediction, following the gradient makes it right."""
    logits, labels = torch.tensor([[0.1, 0.3, 0.0, -0.2], [0.0, 0.2, 0.3, 0.1]]), torch.tensor([0, 1])
    loss = MULTICLASS[name]()
    for _ in range(300):
        logits.requires_grad_()
        (gradient,) = torch.autograd.grad(loss(logits, labels), logits)
        logits = (logits - 0.05 * gradient).detach()
    assert torch.equal(logits.argmax(dim=1), labels)


@pytest.mark.parametrize("name", MULTICLASS)
def test_extreme_logits_give_finite_values_and_gradients(name):
    for logits in (torch.zeros(2, CLASSES), 1e4 * torch.eye(CLASSES)[:2], -1e4 * torch.eye(CLASSES)[:2]):
        logits.requires_grad_()
        loss = MULTICLASS[name]()(logits, torch.tensor([0, 1]))
        loss.backward()
        assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", MULTICLASS)
def test_bad_labels_are_rejected(name):
    logits, labels = batch()
    loss = MULTICLASS[name]()
    for bad in (labels[:3], labels.float(), labels[:, None], torch.rand(6, CLASSES + 1)):
        with pytest.raises(ShapeError, match="class indices"):
            loss(logits, bad)
    with pytest.raises(ShapeError, match=r"0…4"):
        loss(logits, labels + (labels == CLASSES - 1))
    with pytest.raises(ShapeError, match="probabilities"):
        loss(logits, 2 * F.one_hot(labels, CLASSES) - 1)
    with pytest.raises(ShapeError, match="probabilities"):
        loss(logits, torch.ones(6, CLASSES))
    with pytest.raises(ShapeError):
        loss(logits[0], labels)


# ---- formulas, computed sample by sample ---------------------------------------------------------------------------


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
    assert torch.allclose(LossXent(CLASSES, reduction="none")(logits, labels), expected, atol=1e-5)
    assert torch.allclose(LossXent(CLASSES, 1.5 * math.sqrt(2))(logits, labels), expected.mean())


def test_offset_cross_entropy_becomes_a_hinge_on_the_margin():
    logits, labels = batch(40)
    margin = logits.gather(1, labels[:, None])[:, 0] - logits.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    cold = LossXent(CLASSES, 1.3, 1e-4, reduction="none")(logits, labels)
    assert torch.allclose(cold, F.relu(1.3 - margin), atol=1e-3)


def test_tau_cross_entropy():
    logits, labels, expected = by_sample(lambda z, y: -log_softmax([5 * v for v in z], y) / 5)
    assert torch.allclose(TauCrossEntropyLoss(5.0, reduction="none")(logits, labels), expected)
    smoothed = TauCrossEntropyLoss(1.0, label_smoothing=0.3)(logits, labels)
    assert torch.allclose(smoothed, F.cross_entropy(logits, labels, label_smoothing=0.3))


def test_cosine():
    logits, labels, expected = by_sample(lambda z, y: -z[y] / math.sqrt(sum(v * v for v in z)))
    assert torch.allclose(CosineLoss(reduction="none")(logits, labels), expected)


def test_cosine_of_probabilities_is_that_of_the_vector():
    logits, _ = batch()
    q = F.softmax(torch.randn(6, CLASSES, dtype=torch.float64), dim=1)
    cosine = (logits * q).sum(dim=1) / (logits.norm(dim=1) * q.norm(dim=1))
    assert torch.allclose(CosineLoss(reduction="none")(logits, q), -cosine)
    violation = Cosine_VRA_Loss(1.0, eps=1.0, reduction="none")
    expected = sum(q[:, k] * violation(logits, torch.full((6,), k)) for k in range(CLASSES))
    loss = Cosine_VRA_Loss(0.4, eps=1.0, reduction="none")
    assert torch.allclose(loss(logits, q), 0.4 * expected - 0.6 * cosine)


@pytest.mark.parametrize(("kind", "constant"), [("classwise", 2.0), ("global", math.sqrt(2))])
def test_cosine_vra(kind, constant):
    def formula(z, y):
        h = [max(0.0, 0.8 - (z[y] - v) / (constant * 1.5)) for v in others(z, y)]
        total = sum(math.exp(v) for v in h)
        violation = sum(math.exp(v) / total * v for v in h)
        return -0.7 * z[y] / math.sqrt(sum(v * v for v in z)) + 0.3 * violation

    logits, labels, expected = by_sample(formula)
    loss = Cosine_VRA_Loss(0.3, 1.5, 0.8, kind, reduction="none")
    assert torch.allclose(loss(logits, labels), expected)


def test_head_weight_takes_the_place_of_the_type():
    logits, _ = batch()
    labels = logits.argmax(dim=1)
    orthonormal = torch.eye(CLASSES, dtype=torch.float64)  # rows √2 apart: the global type
    for loss in (Cosine_VRA_Loss, EMMALoss, CertificateRegularizedLoss):
        by_type = loss(last_layer_type="global")(logits, labels)
        assert torch.allclose(loss()(logits, labels, orthonormal), by_type)
        assert not torch.allclose(loss()(logits, labels), by_type)
        with pytest.raises(ParameterError, match="unknown"):
            loss(last_layer_type="unknown")


def test_kr_is_the_difference_of_the_means():
    scores, labels = torch.randn(9, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1, 0, 0, 0, 0])
    kr = scores[labels == 1].mean() - scores[labels == 0].mean()
    for form in (labels, 2 * labels - 1, labels.bool(), labels.double(), labels[:, None]):
        assert torch.allclose(KRLoss()(scores, form), -kr)
        assert torch.allclose(KRLoss()(scores[:, None], form), -kr)
    sign = 2 * labels - 1
    hinge = F.relu(0.75 - sign * scores).mean()
    assert torch.allclose(HKRLoss(0.6, 1.5)(scores, labels), 0.6 * hinge - 0.4 * kr)
    assert torch.allclose(HKRLoss(1.0, 1.5)(scores, sign), hinge)


def test_multiclass_kr_is_one_against_the_rest():
    logits, labels = batch(10)
    krs, hinges = [], []
    for k in range(CLASSES):
        mine = labels == k
        krs.append(logits[mine, k].mean() - logits[~mine, k].mean())
        values = torch.where(mine, (CLASSES - 1) * F.relu(0.5 - logits[:, k]), F.relu(0.5 + logits[:, k]))
        hinges.append(values.mean())
    kr, hinge = sum(krs) / CLASSES, sum(hinges) / CLASSES
    assert torch.allclose(KRMulticlassLoss()(logits, labels), -kr)
    assert torch.allclose(HKRMulticlassLoss(0.7)(logits, labels), 0.7 * hinge - 0.3 * kr)


def test_classes_absent_from_the_batch_are_left_out():
    logits = torch.randn(3, CLASSES, requires_grad=True)
    loss = HKRMulticlassLoss(0.5)(logits, torch.zeros(3, dtype=torch.long))
    loss.backward()
    assert torch.isfinite(loss) and torch.isfinite(logits.grad).all()
    scores = torch.randn(3)
    assert torch.allclose(KRLoss()(scores, torch.ones(3)), -scores.mean())


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
    loss = SoftHKRMulticlassLoss(0.7, 0.8, 0.99, 2.0, reduction="none")
    loss(torch.full((2, CLASSES), 5.0), torch.tensor([0, 1]))  # one training step moves the mean
    assert torch.allclose(loss.eval()(logits, labels), expected, atol=1e-6)


def test_soft_hkr_moves_its_mean_only_in_training_steps():
    loss = SoftHKRMulticlassLoss(min_margin=0.5)
    logits, labels = torch.full((3, CLASSES), -9.0, requires_grad=True), torch.tensor([0, 1, 2])
    assert loss.mean.item() == 0.5 and "mean" in dict(loss.named_buffers())
    loss.eval()(logits, labels)
    with torch.no_grad():
        loss.train()(logits, labels)
    assert loss.mean.item() == 0.5
    first, second = loss(logits, labels), loss(logits, labels)
    (first + second).backward()  # the second step did not spoil the graph of the first
    assert loss.mean.item() == pytest.approx(0.99 * (0.99 * 0.5 + 0.09) + 0.09)
    copy = SoftHKRMulticlassLoss(min_margin=0.5)
    copy.load_state_dict(loss.state_dict())
    assert copy.mean == loss.mean
    loss(1e9 * logits, labels)
    assert loss.mean.item() == 1000


def test_soft_hkr_has_a_legal_default():
    assert 0 <= SoftHKRMulticlassLoss().alpha <= 1
    assert torch.isfinite(SoftHKRMulticlassLoss(alpha=0.5)(*batch()))


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_lse_hkr_lies_between_the_maximum_and_its_bound(classes):
    z, y = torch.randn(50, classes, dtype=torch.float64), torch.randint(classes, (50,))
    rival = z.scatter(1, y[:, None], -math.inf).amax(dim=1)
    true = z.gather(1, y[:, None])[:, 0]
    kr = LseHKRMulticlassLoss(0.0, min_margin=0.6, penalty=0.5, reduction="none")(z, y)
    excess = kr - (rival - true)
    assert (excess >= -1e-12).all() and (excess <= 0.15 + 1e-12).all()
    smooth = kr + true
    hinge = LseHKRMulticlassLoss(1.0, min_margin=0.6, penalty=0.5, reduction="none")(z, y)
    assert torch.allclose(hinge, F.relu(0.3 - true) + F.relu(0.3 + smooth))
    if classes == 2:
        assert torch.allclose(smooth, rival)


def test_la():
    def formula(z, y):
        log_p = log_softmax([(v - (2 if j == y else 0)) / 0.75 for j, v in enumerate(z)], y)
        return -0.75 * (1 - math.exp(log_p)) ** 5 * log_p

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(LALoss(reduction="none")(logits, labels), expected)
    assert torch.allclose(LALoss(0.25, 1.0, 0.0)(logits, labels), LossXent(CLASSES, 1.0, 0.25)(logits, labels))


def test_emma():
    def formula(z, y):
        reach = 0.6 * 2 * 1.5
        attacked = []
        for j, v in enumerate(z):
            share = min(1.0, max(0.01, (z[y] - v) / reach))
            attacked.append(0.0 if j == y else v - z[y] + share * reach)
        return -log_softmax(attacked, y)

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(EMMALoss(0.6, 1.5, reduction="none")(logits, labels), expected)


def test_emma_takes_its_shares_as_constants():
    """Brought level, a class would have no gradient at all if the share were differentiated."""
    logits = torch.tensor([[0.5, 0.0]], dtype=torch.float64, requires_grad=True)
    EMMALoss(0.5)(logits, torch.tensor([0])).backward()
    assert torch.allclose(logits.grad, torch.tensor([[-0.5, 0.5]], dtype=torch.float64))


def test_certificate_regularization():
    def formula(z, y):
        radius = (z[y] - max(others(z, y))) / 3
        return -log_softmax(z, y) - 0.3 * max(0.0, radius)

    logits, labels, expected = by_sample(formula)
    assert torch.allclose(CertificateRegularizedLoss(0.3, 1.5, reduction="none")(logits, labels), expected)


# ---- bad arguments, surface ----------------------------------------------------------------------------------------


def test_bad_arguments_are_rejected():
    for build in (HKRLoss, HKRMulticlassLoss, SoftHKRMulticlassLoss, LseHKRMulticlassLoss):
        for alpha in (-0.1, 10):
            with pytest.raises(ParameterError, match=r"alpha.*\[0, 1\].*α/\(1 \+ α\)"):
                build(alpha)
        with pytest.raises(ParameterError, match="min_margin"):
            build(0.5, min_margin=0.0)
    for build in (lambda: LossXent(1), lambda: LossXent(3, temperature=0), lambda: LossXent(3, label_smoothing=2)):
        with pytest.raises(ParameterError):
            build()
    with pytest.raises(ShapeError, match=r"logits \(n, 3\)"):
        LossXent(3)(torch.randn(2, 4), torch.tensor([0, 1]))
    for bad in ({"gamma": 1.5}, {"eps": 0.0}, {"L": -1.0}):
        with pytest.raises(ParameterError, match="gamma|eps|L="):
            Cosine_VRA_Loss(**bad)
    for build in (
        lambda: TauCrossEntropyLoss(0.0),
        lambda: SoftHKRMulticlassLoss(temperature=0.0),
        lambda: SoftHKRMulticlassLoss(alpha_mean=1.5),
        lambda: LseHKRMulticlassLoss(penalty=0.0),
        lambda: LALoss(beta=-1.0),
        lambda: LALoss(temperature=0.0),
        lambda: EMMALoss(eps=0.0),
        lambda: CertificateRegularizedLoss(gamma=-1.0),
    ):
        with pytest.raises(ParameterError):
            build()
    for scores, labels in [(torch.randn(3, 2), torch.ones(3)), (torch.randn(3), torch.ones(4))]:
        with pytest.raises(ShapeError, match="binary"):
            KRLoss()(scores, labels)
    for labels in (torch.tensor([0, 1, 2]), torch.tensor([-2.0, 1.0, 1.0])):
        with pytest.raises(ShapeError, match="Binary labels"):
            KRLoss()(torch.randn(3), labels)


def test_published_names():
    for name in ("LossXent", "CosineLoss", "Cosine_VRA_Loss", "SoftHKRMulticlassLoss", "VRA"):
        assert hasattr(orthogonium.losses, name)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4))
    assert orthogonium.losses.check_last_linear_layer_type(model) == "unknown"


def test_compiles_in_one_graph():
    torch.compiler.reset()
    logits, labels = batch(dtype=torch.float32)
    losses = [MULTICLASS[name]().eval() for name in MULTICLASS]

    def total(z, y):
        return sum(loss(z, y) for loss in losses)

    assert torch.allclose(torch.compile(total, backend="eager", fullgraph=True)(logits, labels), total(logits, labels))


def test_soft_hkr_survives_empty_and_infinite_batches():
    loss = SoftHKRMulticlassLoss()
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    loss(logits, labels)
    before = loss.mean.clone()
    loss(logits[:0], labels[:0])
    loss(logits * float("nan"), labels)
    assert torch.equal(loss.mean, before)
    assert torch.isfinite(loss(logits, labels))
