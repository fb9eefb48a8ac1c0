"""Losses and certificates as scripts for 0.0.4 call them; the expected values are written from their formulas."""

import math

import pytest
import torch
import torch.nn.functional as F

from orthogonium.losses import VRA, Cosine_VRA_Loss, CosineLoss, LossXent, SoftHKRMulticlassLoss

LOGITS = torch.tensor([[3.0, 1.0, 0.0], [0.0, 0.2, 0.1], [1.0, 0.0, 4.0]])
LABELS = torch.tensor([0, 1, 0])


def test_vra_has_an_entry_for_each_sample():
    assert VRA(LOGITS, LABELS).tolist() == [1, 0, 0]
    assert VRA(output=LOGITS, class_indices=LABELS, L=0.1).tolist() == [1, 1, 0]
    radii = VRA(LOGITS, LABELS, return_certs=True)
    assert radii.tolist() == pytest.approx([1.0, 0.05, -1.5])
    assert torch.allclose(VRA(LOGITS, LABELS, "global", return_certs=True), radii * math.sqrt(2))
    uneven = [VRA(LOGITS[:2], LABELS[:2]).sum(), VRA(LOGITS[2:], LABELS[2:]).sum()]
    assert sum(uneven) / 3 == pytest.approx(1 / 3)


def test_keywords_of_forward():
    xent = LossXent(3, offset=1.0, temperature=0.5)
    expected = 0.5 * F.cross_entropy((LOGITS - F.one_hot(LABELS, 3)) / 0.5, LABELS)
    assert torch.allclose(xent(outputs=LOGITS, labels=LABELS), expected)
    assert isinstance(xent.criterion, torch.nn.CrossEntropyLoss)
    assert torch.allclose(xent.criterion(LOGITS, LABELS), F.cross_entropy(LOGITS, LABELS))
    cosine = -(LOGITS[range(3), LABELS] / LOGITS.norm(dim=1)).mean()
    assert torch.allclose(CosineLoss()(yp=LOGITS, yt=LABELS), cosine)
    assert SoftHKRMulticlassLoss(alpha=0.5)(input=LOGITS, target=LABELS).isfinite()
    assert torch.allclose(Cosine_VRA_Loss()(yp=LOGITS, yt=LABELS, gamma=0.0), cosine)


def test_gamma_of_a_call_takes_the_place_of_the_stored_one():
    loss = Cosine_VRA_Loss(gamma=0.1, eps=1.0)
    for gamma in (0.0, 0.5, 1.0):
        assert torch.equal(loss(LOGITS, LABELS, gamma), Cosine_VRA_Loss(gamma=gamma, eps=1.0)(LOGITS, LABELS))
    assert loss(LOGITS, LABELS) == loss(LOGITS, LABELS, gamma=None) == loss(LOGITS, LABELS, gamma=0.1)
    with pytest.raises(ValueError, match="gamma"):
        loss(LOGITS, LABELS, gamma=1.5)
