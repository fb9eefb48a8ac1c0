"""Attacks in the Euclidean norm: a built-in one, and those of foolbox and AutoAttack (extra `[attack]`)."""

from orthogonium.attacks.options import AttackOptions
from orthogonium.attacks.pgd import l2_pgd
from orthogonium.attacks.robustness import AttackCurve, AttackedCertificates, break_certificates, empirical_accuracy
from orthogonium.attacks.search import AttackResult, attack, list_attacks

__all__ = [
    "AttackCurve",
    "AttackOptions",
    "AttackResult",
    "AttackedCertificates",
    "attack",
    "break_certificates",
    "empirical_accuracy",
    "l2_pgd",
    "list_attacks",
]
