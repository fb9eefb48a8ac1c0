"""Modules that undo others: exactly, with shared parameters, or not at all."""

import random

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium.errors import ParameterError, ShapeError
from orthogonium.layers import (
    Abs,
    AdaptiveOrthoConv1d,
    AdaptiveOrthoConv2d,
    AdaptiveOrthoConv3d,
    AdaptiveOrthoConvTranspose2d,
    AdaptiveSOCConv2d,
    AOLLinear,
    BatchCentering,
    ChannelShift,
    ChannelShuffle,
    ConcatResidual,
    CReLU,
    GroupSort,
    HouseHolder,
    HouseHolder_Order_2,
    Inverse,
    InversionError,
    InvertibleDownsampling,
    InvertibleUpsampling,
    MaxMin,
    OrthoLinear,
    RKOConv2d,
    Scale,
    SpectralConv2d,
    freeze,
    inverse,
    iResidual,
)
from orthogonium.layers.promises import promised_constant
from tests.jacobians import jacobians, train


def assert_undone(module, x, tolerance=1e-5):
    y = module(x)
    back = inverse(module)(y)
    assert back.shape == x.shape and (back - x).norm() <= tolerance * x.norm()


LAYERS = {
    "dense": (lambda: OrthoLinear(6, 6), (6,)),
    "dense, tall": (lambda: OrthoLinear(4, 7, lipschitz=3.0), (4,)),
    "conv": (lambda: AdaptiveOrthoConv2d(4, 4, 3), (4, 6, 5)),
    "conv, constant": (lambda: AdaptiveOrthoConv2d(4, 4, 3, lipschitz=0.3), (4, 6, 5)),
    "conv, tall": (lambda: AdaptiveOrthoConv2d(3, 16, 3, stride=2), (3, 6, 8)),
    "conv, strided": (lambda: AdaptiveOrthoConv2d(2, 8, 4, stride=2, padding=1), (2, 6, 8)),
    "conv, tiles": (lambda: AdaptiveOrthoConv2d(2, 8, 2, stride=2, padding=0, padding_mode="zeros"), (2, 6, 8)),
    "conv, dilated": (lambda: AdaptiveOrthoConv1d(4, 4, 3, dilation=2, groups=2, bias=False), (4, 9)),
    "conv, even": (lambda: AdaptiveOrthoConv3d(2, 2, 2), (2, 3, 4, 3)),
    "rko": (lambda: RKOConv2d(3, 12, 2, stride=2), (3, 4, 4)),
    "transposed": (
        lambda: AdaptiveOrthoConvTranspose2d(8, 2, 3, stride=2, padding="same", padding_mode="circular"),
        (8, 3, 4),
    ),
    "crelu": (CReLU, (5, 3)),
    "scale": (lambda: Scale(4.0, learnable=True), (5,)),
    "half": (lambda: ConcatResidual(AdaptiveOrthoConv2d(2, 2, 3)), (4, 4, 4)),
    "shift": (lambda: ChannelShift(2), (6, 5, 3)),
    "unflatten": (lambda: nn.Unflatten(1, (2, 3)), (6, 2)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    make, size = LAYERS[name]
    module = make()
    x = torch.randn(3, *size)
    assert_undone(module, x)
    if list(module.parameters()):
        train(module, x, 3)
        assert_undone(module, x)
        undoing = inverse(module)
        assert {id(p) for p in undoing.parameters()} == {id(p) for p in module.parameters()}
        before = undoing(module(x).detach())
        train(undoing, module(x).detach(), 2)  # which trains the module
        assert_undone(module, x)
        assert not torch.equal(undoing(module(x)), before)
    if not isinstance(module, (Scale, nn.Unflatten)):
        assert_undone(module.double().eval(), x.double(), 1e-11)


def piece(rng, channels, size):
    """A random invertible module for images, and the shape behind it."""
    even = all(n % 2 == 0 for n in size)
    kind = rng.choice(["conv", "conv", "down", "up", "shuffle", "leaky", "scale", "residual", "stride", "half"])
    if kind == "down" and even:
        return InvertibleDownsampling(2), 4 * channels, [n // 2 for n in size]
    if kind == "up" and channels % 4 == 0:
        return InvertibleUpsampling(2), channels // 4, [2 * n for n in size]
    if kind == "shuffle" and channels % 2 == 0:
        return ChannelShuffle(2, channels // 2), channels, size
    if kind == "leaky":
        return nn.LeakyReLU(0.5), channels, size
    if kind == "scale":
        return Scale(rng.choice([0.5, 2.0])), channels, size
    if kind == "residual" and channels > 1:
        fn = nn.Sequential(AdaptiveOrthoConv2d(channels, channels, 3), nn.Tanh())
        return iResidual(fn, lipschitz=0.5), channels, size
    if kind == "stride" and even and channels <= 4:
        return AdaptiveOrthoConv2d(channels, 4 * channels, 3, stride=2), 4 * channels, [n // 2 for n in size]
    if kind == "half" and channels % 4 == 0:
        return ConcatResidual(AdaptiveOrthoConv2d(channels // 2, channels // 2, 3)), channels, size
    kernel = rng.choice([1, 2, 3])
    constant = rng.choice([0.7, 1.0, 1.5])
    return AdaptiveOrthoConv2d(channels, channels, kernel, lipschitz=constant), channels, size


@pytest.mark.parametrize("seed", range(50))
@pytest.mark.filterwarnings("ignore::orthogonium.errors.GuaranteeWarning")  # one channel: shifts
def test_random_stacks(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    channels, size = rng.choice([2, 3, 4]), [4, 4]
    modules, shape = [], (channels, *size)
    for _ in range(rng.randint(2, 6)):
        module, channels, size = piece(rng, channels, size)
        modules.append(module)
    model = nn.Sequential(nn.Sequential(*modules[:1]), *modules[1:])
    x = torch.randn(2, *shape)
    assert_undone(model, x)
    if list(model.parameters()):
        train(model, x, 2, rate=0.01)
        assert_undone(model, x)


@pytest.mark.parametrize(
    "module,constant",
    [
        (OrthoLinear(4, 4, lipschitz=3.0), 1 / 3),
        (OrthoLinear(3, 5), 1),
        (AdaptiveOrthoConv2d(2, 8, 3, stride=2, lipschitz=0.5), 2),
        (iResidual(OrthoLinear(4, 4), lipschitz=0.9), 10),
        (CReLU(), 2**0.5),
        (Scale(4.0), 0.25),
        (Scale(4.0, learnable=True), None),
    ],
)
def test_constants_of_inverses(module, constant):
    undoing = inverse(module)
    if constant is None:
        assert undoing.guarantee is None and promised_constant(undoing) is None
        with pytest.raises(ParameterError, match="no number bounds what undoes Scale"):
            iResidual(undoing)
        return
    assert undoing.guarantee.constant == pytest.approx(constant) == promised_constant(undoing)
    if isinstance(module, iResidual):
        with torch.no_grad():
            module.fn.weight = -torch.eye(4)  # where the bound is attained
    features = getattr(getattr(module, "fn", module), "out_features", 8)
    inputs = (8, 3, 3) if isinstance(module, AdaptiveOrthoConv2d) else (features,)
    slope = torch.linalg.matrix_norm(jacobians(undoing, torch.randn(3, *inputs)), ord=2)
    torch.testing.assert_close(slope.max().item(), float(constant), rtol=1e-4, atol=0)


def test_branches_with_inverses_are_contractions():
    steep = iResidual(OrthoLinear(4, 4), lipschitz=0.5)
    with torch.no_grad():
        steep.fn.weight = -torch.eye(4)
    block = iResidual(nn.Sequential(OrthoLinear(4, 4), steep.inverse()), lipschitz=0.5).eval().requires_grad_(False)
    x = torch.randn(3, 4)
    jacobian = jacobians(block.branch, x)
    assert torch.linalg.matrix_norm(jacobian, ord=2).max() <= 0.5 * (1 + 1e-4)
    expected = torch.linalg.slogdet(torch.eye(4) + jacobian).logabsdet.float()
    torch.testing.assert_close(block.log_det(x).value, expected)
    estimate, spread = block.log_det(x, terms=12, probes=60, exact=False), 4 * (2 * 4 * 0.5**2 / 60) ** 0.5
    assert ((estimate.value - expected).abs() <= estimate.bias + spread).all()


@pytest.mark.parametrize("kernel,stride,padding,dilation", [(5, 2, 2, 1), (4, 3, 1, 1), (2, 3, 1, 2)])
def test_transposed_outputs_must_be_divisible(kernel, stride, padding, dilation):
    """Else a part of them is cut off, and the layer is no isometry."""
    sizes = {"stride": stride, "padding": padding, "dilation": dilation, "padding_mode": "circular"}
    last = dilation * (kernel - 1) + 1 - 2 * padding
    layer = AdaptiveOrthoConvTranspose2d(2, 1, kernel, **sizes)
    with pytest.raises(InversionError, match=f"output_padding=.{stride - last}, {stride - last}"):
        layer.inverse()
    x = torch.randn(1, 2, 3, 4)
    with pytest.raises(ShapeError, match="does not divide"):
        layer.undo(layer(x))
    mended = AdaptiveOrthoConvTranspose2d(2, 1, kernel, output_padding=stride - last, **sizes)
    assert_undone(mended, x)


def test_images_that_the_stride_does_not_divide_come_back_with_zeros():
    layer = AdaptiveOrthoConv2d(1, 8, 4, stride=2)
    x = torch.randn(1, 1, 7, 7)
    torch.testing.assert_close(layer.inverse()(layer(x)), nn.functional.pad(x, (0, 1, 0, 1)), rtol=0, atol=1e-5)


def test_isometries_are_undone_from_the_left():
    tall = OrthoLinear(3, 5)
    undoing = tall.inverse()
    y = torch.randn(2, 5)
    once = tall(undoing(y))
    assert not torch.allclose(once, y, atol=1e-2)
    torch.testing.assert_close(tall(undoing(once)), once)
    with pytest.raises(InversionError, match="outside its range"):
        undoing.inverse()
    square = OrthoLinear(4, 4)
    assert square.inverse().inverse() is square


@pytest.mark.parametrize(
    "module,reason",
    [
        (OrthoLinear(6, 4), "do not determine"),
        (AOLLinear(4, 4), "smallest singular value"),
        (AdaptiveOrthoConv2d(4, 4, 3, padding_mode="zeros"), "circular"),
        (AdaptiveOrthoConv2d(8, 8, 3, stride=2), "do not determine"),
        (AdaptiveOrthoConv2d(4, 4, 5, padding=1), "every window"),
        (AdaptiveOrthoConvTranspose2d(4, 4, 3, stride=2, padding="same", padding_mode="circular"), None),
        (AdaptiveSOCConv2d(4, 4, 3), "smallest singular value"),
        (SpectralConv2d(4, 4, 3, padding=1), "smallest singular value"),
        (MaxMin(), r"\(b, a\)"),
        (HouseHolder(4), "mirror image"),
        (HouseHolder_Order_2(4), "mirror image"),
        (GroupSort(2), "order"),
        (Abs(), "signs"),
        (nn.ReLU(), "no inverse of it is known"),
        (nn.Flatten(), r"separately, with nn\.Unflatten\(1, shape\) between"),
        (ConcatResidual(torch.abs), "no module"),
        (nn.Sequential(OrthoLinear(4, 4), MaxMin()), r"\(b, a\)"),
    ],
)
def test_what_cannot_be_undone(module, reason):
    if reason is None:
        assert isinstance(inverse(module), Inverse)  # an isometry: more pixels than before
        return
    with pytest.raises(InversionError, match=reason):
        inverse(module)


@pytest.mark.parametrize("module", [MaxMin(), HouseHolder(4), HouseHolder_Order_2(4)])
def test_folding_activations_are_not_injective(module):
    """That they are refused is no lack: two inputs far apart have the same output."""
    angles = torch.linspace(0, 6.2, 200)
    circle = torch.stack([angles.cos(), torch.zeros(200), angles.sin(), torch.zeros(200)], 1)
    with torch.no_grad():
        y = module(circle)
    apart = torch.cdist(circle, circle) > 0.5
    assert torch.cdist(y, y)[apart].min() < 0.02


# ── x + fn(x) ──


def branch(features=6, lipschitz=1.0):
    first, last = OrthoLinear(features, features, lipschitz=lipschitz), OrthoLinear(features, features)
    return nn.Sequential(first, MaxMin(), last)


@pytest.mark.parametrize("lipschitz", [0.3, 0.9])
@pytest.mark.parametrize("constant", [0.1, 5.0])
def test_invertible_residuals(lipschitz, constant):
    block = iResidual(branch(lipschitz=constant), lipschitz=lipschitz, tolerance=1e-7)
    x = torch.randn(4, 6)
    for _ in range(2):
        assert_undone(block, x)
        y = block(x).detach()
        found, error = block.double().solve(y.double())
        assert (block(found) - y).norm(dim=1).max() <= 2 * error + 1e-12
        sigma = torch.linalg.svdvals(jacobians(freeze(block), x.double()))
        allowed = min(lipschitz, constant)
        assert 1 - allowed - 1e-6 <= sigma.min() and sigma.max() <= 1 + allowed + 1e-6
        train(block.float(), x, 3)
    assert orthogonium.lipschitz_bound(block.eval(), (6,)).value <= (1 + lipschitz) * (1 + 1e-5)


def test_the_error_bound_holds():
    block = iResidual(branch(), lipschitz=0.8, tolerance=1e-2).double()
    x = torch.randn(5, 6, dtype=torch.float64)
    found, error = block.solve(block(x))
    assert (found - x).norm(dim=1).max() <= error <= 1e-2 * block(x).abs().max()


def test_determinants():
    block = iResidual(branch(), lipschitz=0.7).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    exact = block.log_det(x)
    expected = torch.linalg.slogdet(jacobians(block, x)).logabsdet
    torch.testing.assert_close(exact.value, expected)
    assert exact.bias == 0
    torch.manual_seed(0)
    estimate = block.log_det(x, terms=8, probes=4000, exact=False)
    spread = 4 * 6 / 4000**0.5
    assert ((estimate.value - expected).abs() <= estimate.bias + spread).all() and 0 < estimate.bias < 0.1
    exact.value.sum().backward()
    assert all(p.grad.isfinite().all() for name, p in block.named_parameters() if "original" in name)


def test_determinants_of_images_are_estimated():
    fn = nn.Sequential(AdaptiveOrthoConv2d(4, 4, 3), nn.Tanh())
    block = iResidual(fn, lipschitz=0.5).double()
    x = torch.randn(1, 4, 9, 9, dtype=torch.float64)
    found = block.log_det(x, terms=12, probes=60)
    expected = torch.linalg.slogdet(jacobians(block, x)).logabsdet
    assert found.bias > 0 and (found.value - expected).abs().max() <= found.bias + 4 * (324 / 60) ** 0.5


def test_what_is_no_contraction_is_refused():
    with pytest.raises(ParameterError, match="promise"):
        iResidual(nn.Linear(3, 3))
    assert iResidual(nn.Linear(3, 3), constant=4.0).branch(torch.ones(1, 3)).shape == (1, 3)
    for lipschitz in (0.0, 1.0, -1, True, "1"):
        with pytest.raises(ParameterError, match="between 0 and 1"):
            iResidual(branch(), lipschitz=lipschitz)
    with pytest.raises(ParameterError, match="tolerance"):
        iResidual(branch(), tolerance=0)
    with pytest.raises(ShapeError, match="keep the shape"):
        iResidual(OrthoLinear(3, 4))(torch.randn(2, 3))
    slow = iResidual(branch(), lipschitz=0.99, max_iterations=3)
    with pytest.raises(ParameterError, match="more iterations"):
        slow.solve(torch.randn(2, 6))
    assert promised_constant(nn.Sequential(Scale(3.0), nn.ReLU(), OrthoLinear(2, 2, lipschitz=2.0))) == 6
    assert promised_constant(nn.Dropout(0.5)) is None
    assert promised_constant(ConcatResidual(OrthoLinear(2, 2))) == 1
    assert promised_constant(ConcatResidual(OrthoLinear(2, 2, lipschitz=2.0))) is None
    assert promised_constant(ConcatResidual(nn.Linear(2, 2))) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_constant_that_is_wrong_is_refuted_by_the_inverse(dtype):
    """Believed at construction; a wrong one would make the bound of the error wrong, even where iterations converge."""

    class Steep(nn.Module):
        def forward(self, x):
            return 1.5 * torch.tanh(x)

    x = torch.randn(4, 6, dtype=dtype) / 10
    wrong = iResidual(Steep(), lipschitz=0.5, constant=1.0)  # 0.75 in truth: it converges
    with pytest.raises(ParameterError, match="no contraction with the constant 0.5"):
        wrong.solve(wrong(x))
    right = iResidual(Steep(), lipschitz=0.5, constant=1.5)
    found, error = right.solve(right(x))
    assert (found - x).norm(dim=1).max() <= error + 1e-6
    hooked = branch().to(dtype)
    hooked[0].register_forward_hook(lambda module, args, output: 50 * output)
    with pytest.raises(ParameterError, match="forward hooks"):
        iResidual(hooked, lipschitz=0.8)
    block = iResidual(hooked, lipschitz=0.8, constant=1.0)
    with pytest.raises(ParameterError, match="hook is wrong"):
        block.solve(block(torch.randn(4, 6, dtype=dtype)))


@pytest.mark.parametrize("subtract", ["batch", "running"])
def test_means_of_batches_are_refused_before_they_move(subtract):
    center = BatchCentering(6, subtract=subtract)
    block = iResidual(nn.Sequential(OrthoLinear(6, 6), center, nn.Tanh()), lipschitz=0.5)
    y = torch.randn(5, 6) + 2
    for call in (block.solve, block.log_det, block.inverse()):
        with pytest.raises(ParameterError, match=r"BatchCentering \(fn.1\).*eval"):
            call(y)
    assert not center.running_mean.any() and center.num_batches_tracked == 0
    block.train()(y)
    assert_undone(block.eval(), y)


def test_activations_that_jump_are_refused():
    """At its threshold nn.Softplus jumps by log(1 + e^-threshold)/beta: torch returns its input above."""
    for activation in (nn.Softplus(1, 0.0), nn.Softplus(1, 3.0), nn.Softplus(-1.0), nn.LeakyReLU(1.5)):
        with pytest.raises(ParameterError, match=f"{type(activation).__name__}"):
            iResidual(nn.Sequential(OrthoLinear(4, 4), activation))
        assert promised_constant(activation) is None
    single, double = iResidual(nn.Softplus(), 0.5), iResidual(nn.Softplus(threshold=40.0), 0.5)
    assert_undone(single, torch.randn(4, 6))
    assert_undone(double, torch.randn(4, 6, dtype=torch.float64))
    with pytest.raises(ParameterError, match="40 for float64"):
        single(torch.randn(4, 6, dtype=torch.float64))


def test_outputs_that_cannot_be_undone():
    block = iResidual(branch())
    with pytest.raises(ShapeError, match="batch"):
        block.solve(torch.zeros(6))
    for value in (float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="NaN or infinite"):
            block.solve(torch.full((2, 6), value))
    assert block.solve(torch.zeros(0, 6))[0].shape == (0, 6)


@pytest.mark.parametrize("value", [2.0, 1.0, 0.0, -0.5, float("nan"), True])
def test_the_constant_of_a_branch_stays_below_one(value):
    block = iResidual(branch(), lipschitz=0.8)
    with pytest.raises(ParameterError, match="between 0 and 1"):
        block.lipschitz = value
    assert block.lipschitz == 0.8
