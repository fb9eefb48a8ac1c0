"""Certificates of robustness: the Lipschitz constant of any model, its audit, and radii no attack can beat."""

from orthogonium.certification.audit import AuditReport, AuditRow, audit
from orthogonium.certification.bound import LipschitzBound, lipschitz_bound
from orthogonium.certification.certificates import Certificates, certify
from orthogonium.certification.failures import RefutedError, TraceError, Unbounded, UnboundedError
from orthogonium.certification.radii import VRA, certified_radii, input_scaling, margins

__all__ = [
    "AuditReport",
    "AuditRow",
    "Certificates",
    "LipschitzBound",
    "RefutedError",
    "TraceError",
    "Unbounded",
    "UnboundedError",
    "VRA",
    "audit",
    "certified_radii",
    "certify",
    "input_scaling",
    "lipschitz_bound",
    "margins",
]
