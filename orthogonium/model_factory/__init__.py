"""Published import path of `ClassParam`; the networks themselves are in `models_factory`."""

from orthogonium.class_param import ClassParam

__all__ = ["ClassParam"]
