"""Every orthogonalizer, judged by SVD in float64."""

import functools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from orthogonium.errors import NumericalWarning, ParameterError, ShapeError
from orthogonium.linalg import bjorck, cayley, cholesky, exponential, polar, qr
from orthogonium.linalg.newton_schulz import BatchedBjorckOrthogonalization
from orthogonium.linalg.rotations import BatchedExponentialOrthogonalization

EXACT = {"cholesky": cholesky, "qr": qr, "polar": polar, "cayley": cayley, "exponential": exponential}
DEFINED_EVERYWHERE = {"qr", "cayley", "exponential"}
SCALE_FREE = {"cholesky", "qr", "polar"}
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
SHAPES = [(512, 512), (512, 300), (257, 512), (256, 256), (64, 64), (7, 5), (5, 7), (3, 3), (1, 512), (512, 1), (1, 1)]

exact = pytest.mark.parametrize("name", EXACT)
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])


def deviation(w):
    assert torch.isfinite(w).all()
    return (torch.linalg.svdvals(w.detach().double()) - 1).abs().max().item()


@exact
@dtypes
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_singular_values_of_gaussian_matrices(name, dtype, shape):
    w = torch.randn(8 if max(shape) < 512 else 2, *shape, dtype=dtype)
    assert deviation(EXACT[name](w)) <= TOLERANCE[dtype]


@exact
@dtypes
def test_batch_of_eight_at_full_size(name, dtype):
    assert deviation(EXACT[name](torch.randn(8, 512, 512, dtype=dtype))) <= TOLERANCE[dtype]


@exact
@dtypes
@pytest.mark.parametrize("shape", [(48, 48), (64, 24), (24, 64), (1, 9)], ids=str)
def test_after_200_adam_steps_with_weight_decay(name, dtype, shape):
    w = torch.randn(2, *shape, dtype=dtype, requires_grad=True)
    target = torch.randn(2, *shape, dtype=dtype)
    optimizer = torch.optim.AdamW([w], lr=0.1, weight_decay=0.1)
    start = w.detach().clone()
    for _ in range(200):
        optimizer.zero_grad()
        (EXACT[name](w) * target).sum().backward()
        optimizer.step()
    assert torch.isfinite(w).all() and (w - start).norm() > 0.25 * start.norm()
    assert deviation(EXACT[name](w)) <= TOLERANCE[dtype]


@exact
@pytest.mark.parametrize("shape", [(2, 4, 4), (2, 5, 3), (3, 5), (1, 4), (4, 1), (1, 1)], ids=str)
def test_gradcheck(name, shape):
    w = torch.randn(*shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(EXACT[name], w)


@pytest.mark.parametrize("steps", [1, 4])
def test_gradcheck_bjorck(steps):
    w = torch.randn(2, 4, 3, dtype=torch.float64) / 4
    assert torch.autograd.gradcheck(lambda x: bjorck(x, steps), w.requires_grad_())


def test_cholesky_keeps_the_span():
    w = torch.randn(4, 3, 7, dtype=torch.float64)
    m = cholesky(w)
    assert deviation(m) < 1e-14
    torch.testing.assert_close((w @ m.mT) @ m, w)


@exact
@dtypes
def test_repeated_singular_values_have_finite_gradients(name, dtype):
    for w in (torch.eye(6, dtype=dtype), 2 * torch.eye(6, 4, dtype=dtype), torch.eye(3, 5, dtype=dtype)):
        w = w.clone().requires_grad_()
        EXACT[name](w).square().sin().sum().backward()
        assert torch.isfinite(w.grad).all()


def test_cholesky_is_qr_is_gram_schmidt():
    w = torch.randn(3, 5, 8, dtype=torch.float64)
    rows = []
    for row in w.unbind(-2):
        for earlier in rows:
            row = row - (row * earlier).sum(-1, keepdim=True) * earlier
        rows.append(row / row.norm(dim=-1, keepdim=True))
    expected = torch.stack(rows, -2)
    torch.testing.assert_close(qr(w), expected)
    torch.testing.assert_close(cholesky(w), expected)
    torch.testing.assert_close(qr(w.mT), expected.mT)


@pytest.mark.parametrize("shape", [(2, 2), (3, 5), (4, 4), (5, 5), (8, 12), (16, 16), (64, 80)], ids=str)
@pytest.mark.parametrize("kappa", [30.0, 70.0, 300.0, 1e3, 3e3])
def test_derivatives_do_not_depend_on_chance(shape, kappa):
    """Rounding may leave little of an ill-conditioned matrix to correct; derivatives are those of float64 all the same.

    `qr` takes float64 on CPUs. One direction of each matrix is small.
    """
    rows = shape[0]
    sizes = torch.ones(rows, dtype=torch.float64)
    sizes[-1] = 1 / kappa
    digits = (1e-5, 1e-5) if rows <= 7 or kappa >= 70 else (3e-5, 5e-3)  # those of float32, or κ·eps and κ²·eps
    for _ in range(200 if rows < 64 else 40):
        u, v = (torch.linalg.qr(torch.randn(n, rows, dtype=torch.float64))[0] for n in shape)
        w, g, h = ((u * sizes) @ v.mT).float(), torch.randn(shape), torch.randn(shape)
        results = []
        for function, x in ((cholesky, w), (qr, w.double())):
            x.requires_grad_()
            (first,) = torch.autograd.grad((function(x) * g).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first, x, h.to(x.dtype))
            results.append((first.detach().double(), second.double()))
        for ours, exactly, tolerance in zip(*results, digits, strict=True):
            assert (ours - exactly).norm() <= tolerance * exactly.norm()


@pytest.mark.parametrize("kappa", [3.0, 100.0])  # one pass, and two
@pytest.mark.parametrize("rows,columns", [(530, 700), (640, 660)])
def test_many_rows_are_gram_schmidt(rows, columns, kappa):
    u, v = (torch.linalg.qr(torch.randn(n, rows, dtype=torch.float64))[0] for n in (rows, columns))
    w = (u * torch.logspace(0, math.log10(kappa), rows, dtype=torch.float64)) @ v.mT
    w = torch.stack((w, w.flip(0))).requires_grad_()
    q, r = torch.linalg.qr(w.mT)
    expected = (q * r.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT
    upstream = torch.randn_like(w)
    found = cholesky(w)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    ours, theirs = (torch.autograd.grad(y, w, upstream)[0] for y in (found, expected))
    assert (ours - theirs).norm() <= 1e-10 * theirs.norm()


def test_polar_is_the_nearest_orthogonal_matrix():
    w = torch.randn(3, 5, 8, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(w, full_matrices=False)
    torch.testing.assert_close(polar(w), u @ vh)


def test_cayley_and_exponential_against_their_definitions():
    w = torch.randn(4, 4, dtype=torch.float64)
    a = w - w.mT
    identity = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(cayley(w), torch.linalg.solve(identity + a, identity - a))
    torch.testing.assert_close(exponential(w), torch.linalg.matrix_exp(a))


@dtypes
@pytest.mark.parametrize("norm", [1e-9, 1e-3, 1.0, 8.0])
def test_exponential_against_eigenvectors(norm, dtype):
    """iA is Hermitian: exp(A) turns its eigenvectors by angles, the largest of which is `norm`."""
    w = torch.randn(40, 40, dtype=torch.float64)
    w = (w * norm / torch.linalg.matrix_norm(w - w.mT, 2)).to(dtype)
    angles, vectors = torch.linalg.eigh(1j * (w - w.mT).to(torch.complex128))
    expected = (vectors * torch.exp(-1j * angles) @ vectors.mH).real
    error = torch.linalg.matrix_norm(exponential(w) - expected, 2)
    assert error <= 40 * (1 + norm) * torch.finfo(dtype).eps  # of 40 eigenvectors, and of A where it is formed


@dtypes
@pytest.mark.parametrize("kappa", [1e2, 1e4, 1e5, 1e6])
@pytest.mark.parametrize("name", ["cholesky", "qr", "polar"])
def test_ill_conditioned(name, dtype, kappa):
    u, v = torch.linalg.qr(torch.randn(2, 96, 96, dtype=torch.float64))[0]
    w = u * torch.logspace(0, -torch.tensor(kappa).log10().item(), 96, dtype=torch.float64) @ v
    assert deviation(EXACT[name](w.to(dtype))) <= TOLERANCE[dtype]


def degenerate(kind, shape, dtype):
    w = torch.randn(*shape, dtype=dtype)
    return {
        "zero": torch.zeros_like(w),
        "rank one": w[..., :1] @ w[..., :1, :],
        "rank deficient": torch.cat([w[..., :2, :], w[..., :2, :].sum(-2, keepdim=True), w[..., 3:, :]], -2),
    }[kind]


@exact
@dtypes
@pytest.mark.parametrize("shape", [(2, 5, 7), (2, 7, 5), (4, 4)], ids=str)
@pytest.mark.parametrize("kind", ["zero", "rank one", "rank deficient"])
def test_degenerate_input(name, dtype, shape, kind):
    """QR, Cayley and exponential are orthogonal for every input; the others say that they cannot be."""
    w = degenerate(kind, shape, dtype).requires_grad_()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        q = EXACT[name](w)
    (q * torch.randn_like(q)).sum().backward()
    assert torch.isfinite(q).all() and torch.isfinite(w.grad).all()
    told = any(issubclass(c.category, NumericalWarning) for c in caught)
    if name in DEFINED_EVERYWHERE:
        assert deviation(q) <= TOLERANCE[dtype]
        assert not told
    else:
        assert told or deviation(q) <= TOLERANCE[dtype]
        assert torch.linalg.svdvals(q.detach()).max() <= 1 + 1e-5


@exact
@dtypes
@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_extreme_scales(name, dtype, scale):
    w = (scale * torch.randn(2, 6, 4, dtype=dtype)).requires_grad_()
    q = EXACT[name](w)
    (q * torch.randn_like(q)).sum().backward()
    assert torch.isfinite(w.grad).all()
    assert deviation(q) <= TOLERANCE[dtype]


@pytest.mark.parametrize("name", sorted(SCALE_FREE))
def test_scale_free(name):
    w = torch.randn(5, 3, dtype=torch.float64)
    torch.testing.assert_close(EXACT[name](1e6 * w), EXACT[name](w))


@exact
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(name, dtype):
    w = torch.randn(6, 4).to(dtype)
    q = EXACT[name](w)
    assert q.dtype == dtype
    torch.testing.assert_close(q, EXACT[name](w.float()).to(dtype))


@exact
def test_autocast_does_not_reach_the_algorithm(name):
    w = torch.randn(16, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert deviation(EXACT[name](w)) <= 1e-5


@exact
def test_empty_matrices(name):
    assert EXACT[name](torch.zeros(2, 0, 3)).shape == (2, 0, 3)
    with pytest.raises(TypeError, match="option"):
        EXACT[name](torch.zeros(0, 3), option=1)


@exact
def test_meta_and_vmap(name):
    assert EXACT[name](torch.empty(2, 5, 3, device="meta")).shape == (2, 5, 3)
    w = torch.randn(3, 4, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.vmap(EXACT[name])(w), EXACT[name](w))
    loss = lambda x: EXACT[name](x).pow(3).sum()  # noqa: E731
    per_sample = torch.vmap(torch.func.grad(loss))(w)
    torch.testing.assert_close(per_sample, torch.func.grad(loss)(w))


@exact
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 20), columns=st.integers(1, 20), batch=st.integers(0, 3), seed=st.integers(0, 2**16))
def test_any_shape(name, rows, columns, batch, seed):
    w = torch.randn(batch, rows, columns, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    q = EXACT[name](w)
    assert q.shape == w.shape
    if batch:
        assert deviation(q) <= 1e-12


@exact
@pytest.mark.parametrize("bad", [torch.randn(3), torch.zeros(3, 3, dtype=torch.int64)], ids=["vector", "integers"])
def test_not_a_matrix(name, bad):
    with pytest.raises(ShapeError, match="matrices"):
        EXACT[name](bad)


def test_bjorck_documented_tolerance():
    """Twelve steps bring σ ≥ 0.03 to within 1e-5 of 1 and a Gaussian 256² nowhere near; more steps do."""
    spread = torch.diag(torch.linspace(0.03, 1, 20, dtype=torch.float64))
    assert deviation(bjorck(spread, 12)) <= 1e-5
    w = torch.randn(256, 256, dtype=torch.float64)
    w = w / torch.linalg.matrix_norm(w, 2)
    assert deviation(bjorck(w, 12)) > 0.5
    assert deviation(bjorck(w, 40)) <= 1e-5


@pytest.mark.filterwarnings("ignore::orthogonium.errors.NumericalWarning")  # few steps are not enough
@pytest.mark.parametrize("niters", [0, 1, 5, 12])
@pytest.mark.parametrize("beta", [0.5, 0.25])
def test_the_iteration_count_is_the_count_that_runs(niters, beta):
    w = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0] * 0.97
    expected = w
    for _ in range(niters):
        expected = (1 + beta) * expected - beta * expected @ expected.mT @ expected
    module = BatchedBjorckOrthogonalization(weight_shape=(4, 4), beta=beta, niters=niters)
    torch.testing.assert_close(module(w), expected)


def test_pass_through_has_the_gradient_of_the_identity():
    w = (torch.linalg.qr(torch.randn(5, 5))[0] * 0.7).requires_grad_()
    module = BatchedBjorckOrthogonalization(weight_shape=(5, 5), pass_through=True)
    g = torch.randn(5, 5)
    (module(w) * g).sum().backward()
    torch.testing.assert_close(w.grad, g)
    assert deviation(module(w)) < 1e-5


@pytest.mark.parametrize("terms", range(1, 13))
def test_truncated_exponential_never_expands(terms):
    q = BatchedExponentialOrthogonalization((6, 6), niters=terms)(torch.randn(4, 6, 6, dtype=torch.float64))
    sigma = torch.linalg.svdvals(q)
    assert sigma.max() <= 1 + 1e-12
    if terms >= 5:
        assert sigma.min() >= 1 - 5e-6


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(BatchedBjorckOrthogonalization, (4, 4), beta=0.7),
        functools.partial(BatchedBjorckOrthogonalization, (4, 4), niters=-1),
        functools.partial(BatchedExponentialOrthogonalization, (4, 4), niters=0),
    ],
)
def test_bad_arguments(make):
    with pytest.raises(ParameterError):
        make()


def test_weight_shape_needs_two_sizes():
    with pytest.raises(ShapeError, match="weight_shape"):
        BatchedBjorckOrthogonalization((4,))


THIN = [(1, 7), (3, 10), (2, 3, 40), (40, 3), (8, 17)]


def embedded(w):
    rows, columns = w.shape[-2:]
    size = max(rows, columns)
    return torch.nn.functional.pad(w, (0, size - columns, 0, size - rows))


@pytest.mark.parametrize("shape", THIN)
@pytest.mark.parametrize("scale", [0.0, 1e-20, 1.0, 5.0, 1e3])
def test_thin_exponentials_are_pieces_of_those_of_squares(shape, scale):
    w = (scale * torch.randn(shape, dtype=torch.float64)).requires_grad_()
    whole = exponential(embedded(w))[..., : shape[-2], : shape[-1]]
    torch.testing.assert_close(exponential(w), whole, rtol=0, atol=1e-12)
    grad = torch.randn(shape, dtype=torch.float64)
    found, expected = (torch.autograd.grad(y, w, grad)[0] for y in (exponential(w), whole))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("shape", THIN)
@pytest.mark.parametrize("terms", [1, 3, 6])
@pytest.mark.parametrize("scale", [0.01, 5.0])
def test_thin_series_that_are_cut(shape, terms, scale):
    w = scale * torch.randn(shape, dtype=torch.float64)
    a = embedded(w) - embedded(w).mT
    a = a / a.abs().sum(-1, keepdim=True).amax(-2, keepdim=True).clamp_min(1)
    powers = [torch.linalg.matrix_power(a, i) / math.factorial(i) for i in range(terms + 1)]
    y = sum(powers)[..., : shape[-2], : shape[-1]]
    gram = y.mT @ y if shape[-2] > shape[-1] else y @ y.mT
    step = 1.5 * y - 0.5 * (y @ gram if shape[-2] > shape[-1] else gram @ y)
    torch.testing.assert_close(exponential(w, terms), step, rtol=0, atol=1e-12)


@pytest.mark.parametrize("shape", [(4, 30), (64, 256)])
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_thin_exponentials_in_float32(shape, scale):
    raw = scale * torch.randn(shape, dtype=torch.float64) / shape[1] ** 0.5
    grad = torch.randn(shape, dtype=torch.float64)
    results = []
    for dtype in (torch.float32, torch.float64):
        w = raw.to(dtype).requires_grad_()
        y = exponential(w)
        results.append((y.detach().double(), torch.autograd.grad(y, w, grad.to(dtype))[0].double()))
    (y, g), (exact, slope) = results
    assert (torch.linalg.svdvals(y) - 1).abs().max() < 2e-6 and (y - exact).abs().max() < 1e-5
    assert (g - slope).norm() < 1e-5 * slope.norm()


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_thin_exponentials_have_all_derivatives():
    w = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(exponential, (w,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(exponential, (w,))
    batch = torch.randn(3, 2, 5, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(exponential)(batch), exponential(batch))
