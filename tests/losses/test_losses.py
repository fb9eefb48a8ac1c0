"""What all losses keep, what they refuse, and their published names."""

import copy

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
from tests.jacobians import assert_same_in_both_directions
from tests.losses.batches import CLASSES, batch

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


@pytest.mark.parametrize("name", MULTICLASS)
def test_forward_derivatives(name):
    """What is a constant for gradients is one for them, too: shares, and the running mean of a batch."""
    logits, labels = batch()
    logits, labels = torch.cat([0.1 * logits, 20 * logits]), labels.repeat(2)
    loss = MULTICLASS[name](reduction="none").double()
    assert_same_in_both_directions(lambda z: copy.deepcopy(loss)(z, labels), logits)


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
    assert torch.autograd.gradcheck(
        lambda z, w: loss(z, labels, head_weight=w), ((scale * logits).requires_grad_(), weight)
    )


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


@pytest.mark.parametrize("name", MULTICLASS)
def test_gradients_for_each_sample(name):
    logits, labels = batch()
    loss = MULTICLASS[name]().eval()  # in training, SoftHKR keeps a mean over batches

    def single(row, label):
        return loss(row[None], label[None])

    alone = torch.stack([torch.func.grad(single)(*pair) for pair in zip(logits, labels, strict=True)])
    together = torch.func.vmap(torch.func.grad(single))(logits, labels)
    torch.testing.assert_close(together, alone)
