"""Assertions for tests of your own layers and models: orthogonal, Lipschitz, certified."""

from orthogonium.testing.certificate_asserts import assert_certificate
from orthogonium.testing.counterexamples import find_counterexample
from orthogonium.testing.properties import assert_lipschitz, assert_orthogonal

__all__ = ["assert_certificate", "assert_lipschitz", "assert_orthogonal", "find_counterexample"]
