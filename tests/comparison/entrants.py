"""Convolutions as other libraries might have them."""

from torch import nn


class Squaring(nn.Conv2d):
    """Without a Lipschitz constant: its output is squared."""

    def forward(self, x):
        return super().forward(x).square()


class Refusing(nn.Conv2d):
    """Cannot be built, by a fault that is none of ours."""

    def __init__(self, *arguments, **options):
        raise RuntimeError("this layer needs\na licence")


class NotFinite(nn.Conv2d):
    """Trains into numbers that are none."""

    def forward(self, x):
        return super().forward(x) * float("nan")


class SilentInEval(nn.Conv2d):
    """Trains as usual, and has no answer after that."""

    def forward(self, x):
        return super().forward(x) * (1.0 if self.training else float("nan"))


class Tripled(nn.Conv2d):
    """Its weight is not the operator that it applies."""

    def forward(self, x):
        return 3 * super().forward(x)


class Halves(nn.Conv2d):
    """A sum of two halves."""

    def forward(self, x):
        return 0.5 * super().forward(x) + 0.5 * super().forward(x)


class Twice(nn.Conv2d):
    """Applied to its own outputs."""

    def forward(self, x):
        return super().forward(super().forward(x))


class Growing(nn.Conv2d):
    """Scaled by what depends on the images."""

    def forward(self, x):
        return super().forward(x) * (1 + x.abs().amax())


class Plain(nn.Conv2d):
    """Bounded."""


class Opaque(nn.Conv2d):
    """The same function as `Plain`, written so that no rule bounds it."""

    def forward(self, x):
        return super().forward(x).double().atan().tan().to(x.dtype)


NO_CLASS = 3
