"""Asserts for the tests of one's own layers and models: orthogonal, Lipschitz, certified."""

from orthogonium.testing.attack import find_counterexample
from orthogonium.testing.certificates import assert_certificate
from orthogonium.testing.properties import assert_lipschitz, assert_orthogonal

__all__ = ["assert_certificate", "assert_lipschitz", "assert_orthogonal", "find_counterexample"]
