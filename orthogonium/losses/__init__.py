"""Training objectives for 1-Lipschitz networks: functions of logits and labels, on any device."""

from orthogonium.certification.radii import VRA
from orthogonium.layers.head import check_last_linear_layer_type
from orthogonium.losses.certified import CertificateRegularizedLoss, EMMALoss, LALoss
from orthogonium.losses.cosine import Cosine_VRA_Loss, CosineLoss
from orthogonium.losses.cross_entropy import LossXent, TauCrossEntropyLoss
from orthogonium.losses.hkr import HKRLoss, HKRMulticlassLoss, KRLoss, KRMulticlassLoss
from orthogonium.losses.soft_hkr import LseHKRMulticlassLoss, SoftHKRMulticlassLoss

__all__ = [
    "VRA",
    "CertificateRegularizedLoss",
    "CosineLoss",
    "Cosine_VRA_Loss",
    "EMMALoss",
    "HKRLoss",
    "HKRMulticlassLoss",
    "KRLoss",
    "KRMulticlassLoss",
    "LALoss",
    "LossXent",
    "LseHKRMulticlassLoss",
    "SoftHKRMulticlassLoss",
    "TauCrossEntropyLoss",
    "check_last_linear_layer_type",
]
