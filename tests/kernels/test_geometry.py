"""Sizes, effective strides and the answer to "which construction?"."""

import pytest

from orthogonium.errors import GeometryError
from orthogonium.kernels import ConvGeometry, select_method


def test_sizes_become_tuples():
    g = ConvGeometry.of(2, 4, 8, 3, stride=(2, 1), dilation=[1, 2])
    assert (g.kernel_size, g.stride, g.dilation) == ((3, 3), (2, 1), (1, 2))
    assert g.extent == (3, 5) and g.weight_shape == (8, 4, 3, 3) and g.dims == 2


@pytest.mark.parametrize(
    "k,s,d,e", [(3, 2, 1, 2), (1, 2, 1, 1), (4, 4, 2, 2), (3, 2, 2, 1), (5, 6, 4, 3), (2, 3, 1, 2), (3, 1, 7, 1)]
)
def test_effective_stride(k, s, d, e):
    assert ConvGeometry.of(1, 1, 1, k, s, d).effective_stride == (e,)


@pytest.mark.parametrize(
    "channels,k,s,d,method,orthonormal,inner",
    [
        ((64, 64), 3, 1, 1, "bcop", "rows", 64),
        ((64, 128), 3, 1, 1, "bcop", "columns", 128),
        ((64, 128), 3, 2, 1, "rko ⊛ bcop", "rows", 64),
        ((3, 64), 3, 2, 1, "rko ⊛ bcop", "columns", 16),
        ((3, 8), 2, 2, 1, "rko", "rows", 3),
        ((3, 16), 2, 2, 1, "rko", "columns", 3),
        ((512, 256), 1, 1, 1, "rko", "rows", 512),
        ((256, 512), 1, 1, 1, "rko", "columns", 256),
        ((64, 64), 1, 1, 1, "bcop", "rows", 64),
        ((64, 128), 1, 2, 1, None, None, None),
        ((64, 64), 1, 2, 1, "bcop", "rows", 64),
        ((2, 8), 4, 4, 2, "rko ⊛ bcop", "rows", 2),
        ((2, 9), 4, 4, 2, None, None, None),
    ],
)
def test_select_method(channels, k, s, d, method, orthonormal, inner):
    geometry = ConvGeometry.of(2, *channels, k, s, d)
    if method is None:
        with pytest.raises(GeometryError, match=r"in·∏e = .* Use at most \d+ output channels"):
            select_method(geometry)
    else:
        plan = select_method(geometry)
        assert (plan.method, plan.orthonormal, plan.inner_channels) == (method, orthonormal, inner)


@pytest.mark.parametrize(
    "arguments",
    [
        dict(in_channels=0, out_channels=1, kernel_size=3),
        dict(in_channels=3, out_channels=4, kernel_size=3, groups=2),
        dict(in_channels=4, out_channels=3, kernel_size=3, groups=2),
        dict(in_channels=4, out_channels=4, kernel_size=0),
        dict(in_channels=4, out_channels=4, kernel_size=(3, 3, 3)),
        dict(in_channels=4, out_channels=4, kernel_size=3, stride=0),
        dict(in_channels=4, out_channels=4, kernel_size=3, dilation=(1, -1)),
        dict(in_channels=4, out_channels=4, kernel_size=2.5),
        dict(in_channels=4, out_channels=4, kernel_size=3, groups=0),
    ],
    ids=str,
)
def test_bad_sizes(arguments):
    with pytest.raises(GeometryError):
        ConvGeometry.of(2, **arguments)
