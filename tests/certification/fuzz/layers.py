"""Statements that call layers: torch's, ours, and those that are not what they seem to be."""

from __future__ import annotations

from tests.certification.fuzz.program import Draft, Unfit

HOOKS = {"post": ("doubled", "doubled_in_place"), "pre": ("shifted_input", "edited_input")}


def convolution(p: Draft) -> str:
    n, c = p.spatial(), p.shape[0]
    groups = p.divisor(c)
    out = groups * p.pick(1, 2)
    kernel, mode = p.pick(1, 2, 3), p.pick("zeros", "zeros", "circular", "reflect", "replicate")
    return (
        f"nn.Conv{n}d({c}, {out}, {kernel}, stride={p.pick(1, 1, 2)}, padding={p.pick(0, 1)}, "
        f"dilation={p.pick(1, 1, 2)}, groups={groups}, padding_mode={mode!r})"
    )


def transposed(p: Draft) -> str:
    n, c = p.spatial(), p.shape[0]
    stride = p.pick(1, 2)
    options = f"stride={stride}, output_padding={p.pick(0, stride - 1)}"
    return f"nn.ConvTranspose{n}d({c}, {p.pick(1, 2)}, {p.pick(1, 2, 3)}, {options})"


def on_circle(p: Draft) -> str:
    """By Fourier transform, with the kernel of the layer, one for another image, or one that expands."""
    n, c = p.spatial(), p.shape[0]
    groups = p.divisor(c)
    stride = p.pick(1, 1, 2)
    options = f"stride={stride}, groups={groups}, image_size={p.pick(None, 12)}, lipschitz={p.pick(1.0, 1.5)}"
    layer = f"ol.{p.pick('Cayley', 'LOT')}Conv{n}d({c}, {groups * p.pick(1, 2)}, {p.pick(2, 3)}, {options})"
    return p.pick(layer, f"pieces.NewWeights({layer})")


def linear(p: Draft) -> str:
    return f"nn.Linear({p.shape[-1]}, {p.pick(2, 4, p.shape[-1])})"


def affine(p: Draft) -> str:
    return linear(p) if p.rank == 2 else p.pick(linear, convolution, convolution, transposed)(p)


def square(p: Draft) -> str:
    return f"nn.Linear({p.shape[-1]}, {p.shape[-1]})"


def odd(p: Draft) -> str:
    """A layer that does not do what its class or its weights say."""
    n = p.shape[-1]
    hook = p.pick(*(f"{at}=pieces.{name}" for at, names in HOOKS.items() for name in names))
    if p.rng.random() < 0.05:
        return p.tagged("rounding", f"pieces.bf16({affine(p)})")
    return p.pick(
        f"pieces.LoRA({n}, {p.pick(2, n)}, scale={p.scalar()})",
        f"pieces.ScaledLinear({n}, {p.pick(2, n)})",
        f"pieces.ScaledOrtho({n}, {n})",
        f"pieces.Swapping({n})",
        f"pieces.Called({square(p)}, {p.scalar()})",
        f"pieces.NewWeights({affine(p)})",
        f"pieces.hooked({affine(p)}, {hook})",
        f"pieces.hooked({affine(p)}, {hook})",
        f"pieces.hooked(nn.ReLU(), {hook})",
        f"pieces.own_forward({affine(p)}, {p.scalar()})",
        f"nn.utils.parametrizations.weight_norm({square(p)})",
        f"nn.utils.parametrizations.orthogonal({square(p)})",
        f"nn.Sequential({square(p)}, nn.ReLU(), {square(p)})",
    )


def norm(p: Draft) -> str:
    c, n = p.shape[0], max(1, p.rank - 2)
    if n > 3:
        raise Unfit
    kinds = [
        f"pieces.running(nn.BatchNorm{n}d({c}))",
        f"pieces.running(nn.BatchNorm{n}d({c}, affine=False))",
        f"ol.BatchCentering({c})",
    ]
    if p.rank > 2:
        kinds += [
            f"pieces.running(nn.InstanceNorm{n}d({c}, affine=True, track_running_stats=True))",
            f"ol.LayerCentering({c})",
            "nn.Dropout(0.2)",
        ]
    return p.pick(*kinds, f"ol.BatchLipNorm({c})", "nn.Dropout(0.5)")


def call(kind):
    return lambda p: f"x = {p.layer(kind(p))}(x)"


def swapped(p: Draft) -> str:
    """Two weights through one layer, in the code of the model itself."""
    n = p.shape[-1]
    m, c = p.layer(square(p)), p.constant(n, n)
    return p.pick(
        f"kept = {m}.weight.data\nx = {m}(x)\n{m}.weight.data = {c}\nx = {m}(x)\n{m}.weight.data = kept",
        f'x = {m}(x) + torch.func.functional_call({m}, {{"weight": {c}, "bias": {c}[0]}}, (x,))',
        f"x = F.linear({m}(x), {m}.weight.T)",
        f"x = {m}.forward({m}(x))",
        f"x = x @ {m}.weight + {m}.bias",
    )


LAYERS = (
    call(linear),
    call(affine),
    call(affine),
    call(convolution),
    call(convolution),
    call(transposed),
    call(on_circle),
    call(odd),
    call(odd),
    call(odd),
    call(norm),
    call(norm),
    swapped,
    lambda p: (lambda m: f"x = x + {m}(F.relu({m}(x)))")(p.layer(square(p))),
)


def pool(p: Draft) -> str:
    n = p.spatial()
    k, stride = p.pick(2, 3), p.pick(1, 2, 3)
    pad, ceil = p.pick(0, 0, 1), p.pick(True, False)
    options = f"{k}, {stride}, ceil_mode={ceil}"
    return p.pick(
        f"F.max_pool{n}d(x, {k}, {stride}, {pad}, dilation={p.pick(1, 2)}, ceil_mode={ceil})",
        f"F.max_pool{n}d(x, {k}, {stride}, {pad}, ceil_mode={ceil})",
        f"F.avg_pool{n}d(x, {k}, {stride}, {pad}, ceil_mode={ceil}, count_include_pad={p.pick(True, False)})",
        f"F.avg_pool{n}d(x, {k}, {stride}, {pad}, ceil_mode={ceil})",
        f"F.lp_pool{n}d(x, {p.pick(1, 2, 2, 2, 3, 4)}, {options})",
        f"F.adaptive_avg_pool{n}d(x, {p.pick(1, 2, 3)})",
        f"F.adaptive_max_pool{n}d(x, {p.pick(1, 2, 3)})",
        f"nn.MaxPool{n}d({options})(x)",
        f"F.avg_pool{n}d(x, {k})",
        f"ol.L2NormPool{n}d({k}, {stride})(x)",
        f"ol.ScaledAvgPool{n}d({k}, {stride}, {pad})(x)",
        f"ol.ScaledMaxPool{n}d({k}, {stride}, {pad})(x)",
        f"ol.{p.pick('GlobalL2NormPool', 'GlobalMaxPool', 'ScaledGlobalAvgPool')}(keepdim=True)(x)",
        f"ol.ScaledAdaptiveAvgPool({p.pick(1, 2)})(x)",
    )


def upsampled(p: Draft) -> str:
    n = p.spatial()
    factor, size = p.pick(1.3, 1.5, 2, 2.5, 0.6, 3), p.pick(2, 3, 5)
    modes = [
        f"scale_factor={factor}",
        f"size={size}",
        f"size={size}, mode='nearest-exact'",
        f"size={size}, mode='area'",
    ]
    smooth = {1: "linear", 2: "bilinear", 3: "trilinear"}[n]
    modes += [f"scale_factor={factor}, mode={smooth!r}, align_corners={p.pick(True, False)}"]
    if n == 2:
        modes += [f"size={size}, mode='bicubic'", f"scale_factor={factor}, mode='bilinear', antialias=True"]
        modes += [f"scale_factor={factor}, mode='bicubic', recompute_scale_factor=True"]
    return f"F.interpolate(x, {p.pick(*modes)})"


def activation(p: Draft) -> str:
    c, axis = p.shape[0], p.pick(1, 1, -1)
    d = p.length(axis)
    return p.pick(
        "ol.Abs()",
        f"ol.MaxMin({axis})",
        f"ol.GroupSort({p.divisor(d)}, {axis})",
        f"ol.FullSort({axis})",
        f"ol.CReLU({axis})",
        f"ol.HouseHolder({c})",
        f"ol.HouseHolder_Order_2({c})",
        f"ol.NActivation({c})",
        f"ol.ReLUMaxMin({axis})",
        "ol.SoftHuber(0.1)",
        f"pieces.trained(ol.HouseHolder({c}))",
        f"pieces.trained(ol.NActivation({c}))",
    )


def block(p: Draft) -> str:
    """A block, as it is or as someone has left it."""
    n, c = p.rank - 2, p.shape[0]
    slope = p.pick("'relu'", "'tanh'", "'relu'")
    if n == 0:
        kinds = [
            f"ol.CPLLinear({c}, {p.pick(2, c)}, activation={slope})",
            f"ol.SandwichLinear({c}, {p.pick(3, c)}, activation={slope})",
            f"ol.SDPBasedLipschitzDense({c}, {c}, {p.pick(3, 6)}, activation={slope})",
            f"ol.LBDN({c}, [5], 3)",
        ]
    else:
        if n > 2:
            raise Unfit
        one, suffix = ("1d", "1d") if n == 1 else ("2d", "")
        kinds = [
            f"ol.CPLConv{one}({c}, {p.pick(2, c)}, 3, activation={slope}, "
            f"padding_mode={p.pick('zeros', 'circular')!r})",
            f"ol.SandwichConv{one}({c}, {p.pick(2, c)}, 3, activation={slope})",
            f"ol.SDPBasedLipschitzResBlock{suffix}({c}, {p.pick(1.0, 2.0)}, 3, activation={slope})",
            f"ol.SLLxAOCLipschitzResBlock{suffix}({c}, {2 * c}, 1.0, 3, stride=2)",
            f"ol.AOCLipschitzResBlock{suffix}({c}, 1.0, 3)",
        ]
    text = p.pick(*kinds)
    if "LBDN" in text:
        return text
    if p.rng.random() < 0.06:
        return p.tagged("rounding", f"pieces.bf16({text})")
    return p.pick(
        text,
        text,
        f"pieces.trained({text})",
        f"ol.freeze({text})",
        f"pieces.edited({text}, {p.scalar()})",
        f"pieces.swapped_activation({text}, nn.{p.pick('GELU()', 'LeakyReLU(2.0)', 'Hardtanh()', 'SiLU()')})",
        f"pieces.hooked({text}, post=pieces.doubled_in_place)",
    )


def constrained(p: Draft) -> str:
    n, last, c = p.rank - 2, p.shape[-1], p.shape[0]
    dense = p.pick(
        f"ol.OrthoLinear({last}, {p.pick(2, last)})",
        f"ol.UnitNormLinear({last}, 3)",
        f"ol.AOLLinear({last}, 3)",
        f"ol.SpectralLinear({last}, {last})",
    )
    if n == 0 or n > 2 or p.pick(True, False, False):
        text = dense
    else:
        text = p.pick(
            f"ol.AdaptiveOrthoConv{n}d({c}, {p.pick(c, 2 * c)}, 3, padding_mode={p.pick('zeros', 'circular')!r}, "
            "padding=1)",
            f"ol.AdaptiveOrthoConv{n}d({c}, {2 * c}, 2, stride=2, padding=0)",
            f"ol.AOLConv{n}d({c}, {c}, 3, padding=1)",
            f"ol.AdaptiveSOCConv{n}d({c}, {c}, 3)",
            f"ol.RKOConv{n}d({c}, {c}, 2, stride=2, padding=0)",
        )
    wrapped = (
        f"ol.{p.pick('AdditiveResidual', 'ConcatResidual', 'L2NormResidual', 'PrescaledAdditiveResidual')}(torch.tanh)"
    )
    return p.pick(text, text, f"pieces.edited({text}, {p.scalar()})", f"ol.freeze({text})", wrapped)


def shape(p: Draft) -> str:
    p.spatial()
    return p.pick(
        f"ol.InvertibleDownsampling({p.pick(1, 2)})",
        "ol.InvertibleUpsampling(2)",
        f"ol.IsometricPad(1, {p.pick('zeros', 'circular')!r})",
        f"ol.ChannelShuffle(2, {p.shape[0] // 2})",
    )


OURS = (call(activation), call(activation), call(block), call(block), call(constrained), call(constrained), call(shape))
POOLS = (lambda p: f"x = {pool(p)}",)
UPSAMPLING = (lambda p: f"x = {upsampled(p)}",)
