"""Logits and labels that the tests of losses share."""

import torch

CLASSES = 4


def batch(n=6, dtype=torch.float64):
    return torch.randn(n, CLASSES, dtype=dtype), torch.arange(n) % CLASSES
