"""Statements that compute: activations, reductions, products with constants, arithmetic of branches, casts."""

from __future__ import annotations

from tests.certification.fuzz.program import Draft, Unfit

F_NAMES = "relu gelu silu mish selu hardswish hardsigmoid logsigmoid softsign tanhshrink relu6".split()
TORCH_NAMES = "relu tanh sigmoid erf sin cos abs neg atan asinh sinc arctan positive".split()
CALLS = "softshrink(x, 0.4) | hardtanh(x, -0.3, 2.0) | threshold(x, 0.0, 0.0) | rrelu(x) | relu6(2 * x)".split(" | ")
MODULES = "Hardtanh(-2, 3) | Tanhshrink() | LeakyReLU(2.0) | SiLU() | CELU(0.5) | Softsign()".split(" | ")
PER_SAMPLE = "2 * t.relu() | t - t.mean() | t.flip(0) | t.sort(dim=0).values | t.softmax(-1)".split(" | ")

ACTIVATIONS = (
    lambda p: f"x = F.{p.pick(*F_NAMES)}(x)",
    lambda p: f"x = torch.{p.pick(*TORCH_NAMES)}(x)",
    lambda p: f"x = F.leaky_relu(x, {p.pick(-3.0, 0.0, 0.2, 1.5)})",
    lambda p: f"x = F.{p.pick('elu', 'celu')}(x, {p.pick(0.1, 1.0, 4.0)})",
    lambda p: f"x = F.gelu(x, approximate={p.pick('tanh', 'none')!r})",
    lambda p: f"x = F.{p.pick(*CALLS)}",
    lambda p: f"x = {p.layer(f'nn.PReLU({p.shape[0]}, init={p.pick(-2.0, 0.3, 1.7)})')}(x)",
    lambda p: f"x = {p.layer('nn.' + p.pick(*MODULES))}(x)",
    lambda p: p.pick("x = x.clamp(-1, 1)", "x = x.clamp(min=0.2)", "x = torch.clip(x, max=1.0)", "x = x.clamp(2, -2)"),
    lambda p: f"x = x.clamp(min={p.constant(*p.shape[-1:])})",
    lambda p: f"x = x[..., :1].clamp(max={p.constant(p.pick(2, 4))})",
    lambda p: f"x = torch.minimum(x, {p.constant(*p.shape)})",
    lambda p: "x = torch.relu(x) - 0.25 * torch.relu(-x)",
)

REDUCTIONS = (
    lambda p: f"x = x.{p.pick('sum', 'mean', 'amax', 'amin', 'logsumexp')}({p.axes()}, keepdim=True)",
    lambda p: f"x = x.{p.pick('sum', 'mean', 'amax')}({p.axis()})",
    lambda p: f"x = x.{p.pick('max', 'min', 'median', 'nanmedian')}({p.axis()}).values",
    lambda p: f"x = x.{p.pick('max', 'min', 'median')}({p.axis()}, keepdim=True)[0]",
    lambda p: (lambda a: f"x = x.kthvalue({p.split(a)}, {a}).values")(p.axis()),
    lambda p: (lambda a: f"x = x.topk({p.split(a)}, {a}, largest={p.pick(True, False)}).values")(p.axis()),
    lambda p: f"x = x.sort(dim={p.axis()}, descending={p.pick(True, False)}).values",
    lambda p: "x = torch.msort(x.transpose(0, 1)).transpose(0, 1)",
    lambda p: f"x = x.{p.pick('cumsum', 'logcumsumexp')}({p.axis()})",
    lambda p: f"x = x.{p.pick('cummax', 'cummin')}({p.axis()}).values",
    lambda p: f"x = x.norm(p={p.pick(1, 2, 3, 1.5, 'torch.inf')}, dim={p.axis()}, keepdim=True)",
    lambda p: f"x = torch.linalg.vector_norm(x, ord={p.pick(1, 2, 3)}, dim={p.axes()}, keepdim=True)",
    lambda p: f"x = torch.linalg.norm(x, dim={p.axis()})[..., None]",
    lambda p: f"x = x.{p.pick('softmax', 'log_softmax')}({p.axis()})",
    lambda p: f"x = F.softmin(x, dim={p.axis()})",
    lambda p: f"x = x - x.{p.pick('mean', 'amax', 'logsumexp')}({p.axis()}, keepdim=True)",
    lambda p: f"x = {p.pick('1.5 * ', '')}x.diff(dim={p.axis()})",
    lambda p: f"x = x.sum({p.axis()}, keepdim=True) + x",
    lambda p: f"x = x.aminmax(dim={p.axis()}, keepdim=True).max",
    lambda p: f"x = torch.trapezoid(x, dim={p.axis()})",
)


def einsum(p: Draft) -> str:
    n = p.shape[-1]
    w = p.matrix(n, p.pick(2, 3, n))
    if p.rank == 3 and p.pick(True, False):
        return f'x = torch.einsum("nij,ik->nkj", x, {p.matrix(p.shape[0], 3)})'
    return f'x = torch.einsum("...i,ij->...j", x, {w})'


def matmul(p: Draft) -> str:
    n = p.shape[-1]
    right = p.matrix(n, p.pick(1, 2, n))
    if p.rank > 2 and p.pick(True, False):
        rows = p.shape[-2]
        left = p.matrix(p.pick(2, rows), rows)
        return p.pick(f"x = {left} @ x", f"x = torch.matmul({left}, x)")
    return p.pick(
        f"x = x @ {right}",
        f"x = torch.matmul(x, {right})",
        f"x = F.linear(x, {right}.T)",
        f"x = torch.tensordot(x, {right}, 1)",
    )


def batched(p: Draft) -> str:
    if p.rank != 3:
        raise Unfit
    a, b = p.shape
    w, v = p.matrix(b, 3), p.matrix(3, a)
    return p.pick(
        f"x = torch.bmm(x, {w}.expand(len(x), -1, -1))",
        f"x = torch.bmm({v}.expand(len(x), -1, -1), x)",
        f"x = torch.baddbmm({p.constant(a, 3)}, x, {w}.expand(len(x), -1, -1), beta=0.5, alpha=2.0)",
        f"x = torch.einsum('nij,jk->nik', x, {w})",
    )


def dense(p: Draft) -> str:
    if p.rank != 2:
        raise Unfit
    n = p.shape[0]
    w = p.matrix(n, 4)
    return p.pick(
        f"x = torch.addmm({p.constant(4)}, x, {w}, beta=0.5, alpha=1.5)",
        f"x = torch.mm(x, {w})",
        f"x = (x[:, None] @ {w}).squeeze(1)",
        f"x = x.matmul({w})",
        f"x = x.unsqueeze(-1) * {p.constant(1, 1, 3)}",
        f"x = ({w}.T @ x.T).T",
    )


def spectrum(p: Draft) -> str:
    if p.rng.random() > 0.3:
        raise Unfit
    return p.pick(
        "x = torch.fft.rfft(x, norm='ortho')\nx = torch.view_as_real(x).flatten(-2)",
        "x = torch.fft.fft(x).real",
        "x = torch.fft.ifft(torch.fft.fft(x) * 2).real",
        "x = torch.fft.rfft(x, dim=1, norm='ortho').abs()",
        "x = torch.complex(x, 2 * x).abs()",
        "x = torch.fft.irfft(torch.fft.rfft(x), n=x.shape[-1])",
    )


LINEAR = (
    einsum,
    einsum,
    matmul,
    matmul,
    batched,
    batched,
    dense,
    dense,
    spectrum,
    lambda p: f"x = {p.scalar()} * x {p.pick('+', '-')} {p.scalar()}",
    lambda p: f"x = x * {p.constant(*p.shape)}",
    lambda p: f"x = (x - {p.constant(*p.shape)}) / {p.pick(2.0, 0.5)}",
    lambda p: f"x = x * {p.constant(p.shape[-1])} + {p.constant(1)}",
    lambda p: f"x = torch.addcmul({p.constant(*p.shape)}, x, {p.constant(p.shape[-1])}, value={p.scalar()})",
    lambda p: f"x = torch.addcdiv(x, {p.constant(*p.shape)}, {p.buffer('torch.ones(1)')}, value={p.scalar()})",
    lambda p: f"x = x[:, :1] * {p.constant(p.pick(2, 3), *[1] * (p.rank - 2))}",
    lambda p: f"x = {p.scalar()} - x",
    lambda p: f"x = x / {p.constant(p.shape[-1])}.abs().add(0.5)",
    lambda p: f"x = x * x.new_tensor({p.scalar()})",
)

BRANCHES = (
    lambda p: f"x = x + {p.scalar()} * {p.same()}",
    lambda p: f"x = 0.5 * (x + {p.same()})",
    lambda p: f"x = torch.sub(x, {p.same()}, alpha={p.scalar()})",
    lambda p: f"x = torch.{p.pick('maximum', 'minimum', 'fmax')}(x, {p.same()})",
    lambda p: f"x = torch.lerp(x, {p.same()}, {p.pick('0.3', p.constant(*p.shape))})",
    lambda p: f"x = torch.where({p.mask(*p.shape)}, x, {p.scalar()} * {p.same()})",
    lambda p: f"x = torch.where({p.mask(p.shape[-1])}, {p.same()}, 0.0)",
    lambda p: f"x = x.masked_fill({p.mask(*p.shape)}, 2.0)",
    lambda p: f"x = torch.logaddexp(x, {p.same()})",
    lambda p: f"x = x + x.{p.pick('mean', 'sum', 'amax')}({p.axis()}, keepdim=True)",
    lambda p: "x = x[:, :1] + x",
    lambda p: f"x = torch.hypot(x, {p.same()})",
    lambda p: f"x = x - {p.same()}",
    lambda p: "x = x.transpose(1, -1) - x.transpose(1, -1).flip(1)",
    lambda p: f"x = torch.stack([x, {p.same()}]).{p.pick('sum(0)', 'amax(0)', 'mean(0)', 'norm(dim=0)')}",
    lambda p: "x = sum([x, x.tanh(), -x])",
    lambda p: f"x = torch.cat([x.relu(), (-x).relu()], {p.axis()})",
    lambda p: f"x = torch.add({p.same()}, x)",
)

# Lipschitz as a whole, made of parts that are not.
COMPOSED = (
    lambda p: p.pick(
        "x = torch.where(x > 0, x, 0.5 * x)", "x = pieces.Bent.apply(x)", "x = torch.where(x < 1, x, 1.0)"
    ),
    lambda p: p.pick(
        "x = (1 + x * x).sqrt()",
        "x = (x.abs() + 1).log()",
        "x = (1 + x.abs()).reciprocal()",
        "x = x * (x > 0)",
        "x = F.hardshrink(x, 0.0)",
    ),
    lambda p: p.pick(
        f"x = pieces.ball(x, {p.axis()})", f"x = F.normalize(x, dim={p.axis()}, eps=1.0)", "x = x / (1 + x.abs())"
    ),
    lambda p: p.pick(
        f"x = x.std({p.axis()}, keepdim=True)", "x = x.abs().clamp_min(0.5).log()", "x = x.clamp(-1, 1) ** 2"
    ),
    lambda p: p.pick("x = x.clone()\nx[x < 0] = 0.0", "x = F.glu(x.clamp(-2, 2), dim=1)", "x = x.sigmoid() * x.tanh()"),
    lambda p: f"x = torch.cdist(x, {p.constant(3, p.shape[-1])})" if p.rank == 3 else "x = x.copysign(x)",
)

CASTS = (
    lambda p: "x = x.double().to(self.kind)",
    lambda p: (
        "x = x.to(torch.complex128).real.to(self.kind)" if p.rng.random() < 0.3 else "x = x.type_as(self.kind) / 2"
    ),
    lambda p: "x = x.to(self.kind.device, self.kind.dtype, copy=True)",
)

ROUNDED = (
    lambda p: "x = x.float().to(self.kind)",
    lambda p: "x = (2 * x.bfloat16()).to(self.kind)",
    lambda p: "x = x.half().to(self.kind.dtype) - 1",
    lambda p: "x = torch.tanh(x.to(dtype=torch.float32)).to(self.kind)",
)

ODD = (
    lambda p: f"x = torch.vmap(lambda t: {p.pick(*PER_SAMPLE)})(x)",
    lambda p: "x = pieces.Multiplied.apply(x)",
    lambda p: f"x = {p.layer('torch.jit.script(pieces.scripted)')}(x)",
    lambda p: "x = torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=False)",
    lambda p: "x = x.detach() + (2 * x.sin()).detach()",
    lambda p: "with torch.no_grad():\n    x = 2 * x",
    lambda p: (
        "parts = dict(enumerate(x.unbind(1)))\nx = torch.stack([parts[i] for i in reversed(range(x.shape[1]))], 1)"
    ),
    lambda p: "with torch.autocast('cpu', enabled=False):\n    x = x.relu()",
    lambda p: "x = torch.jit.annotate(torch.Tensor, x) * x.shape[1] ** -0.5",
    lambda p: "x = x.as_subclass(torch.Tensor) * 1",
)

BATCH = (
    lambda p: p.pick(
        "x = x - x.mean(0)", "x = x + x.sum() / 9", "x = x - x.max()", "x = x * len(x)", "x = x / x.shape[0]"
    ),
    lambda p: p.pick(
        "x = x.roll(1, 0)", "x = x.flip(0)", "x = x.cumsum(0)", "x = x.sort(dim=0).values", "x = x.softmax(0)"
    ),
    lambda p: p.pick(
        "x = x[:1] + x", "x = x[[0] * len(x)] + 0.1 * x", "x = x + x.std(0, correction=0)", "x = x.clone()\nx[0] = 1.0"
    ),
    lambda p: "x = x.transpose(0, 1).reshape(len(x), -1)",
    lambda p: "x = x + 0.1 * x[torch.arange(len(x)) - 1]",
)

UNBOUNDED = (
    lambda p: p.pick(
        "x = x * x", "x = x ** 2", "x = x.exp()", "x = x.square()", "x = x * x.sigmoid() * x", "x = x.sinh()"
    ),
    lambda p: p.pick(
        "x = 1 / x",
        "x = x.abs().sqrt()",
        "x = x.abs().log()",
        "x = x.abs().rsqrt()",
        "x = x.tan()",
        "x = x.sign().abs().sqrt()",
    ),
    lambda p: p.pick(
        "x = (x > 0).to(x)", "x = x.round()", "x = x.sign() + x", "x = x.floor()", "x = x % 1", "x = x.trunc()"
    ),
    lambda p: p.pick(
        "x = torch.where(x > 0, x, x + 1)", "x = x * (x > 0.5)", "x = F.threshold(x, 0.1, 20)", "x = F.hardshrink(x)"
    ),
    lambda p: f"x = F.layer_norm(x, {p.shape[-1:]})",
    lambda p: f"x = F.normalize(x, dim={p.axis()})",
    lambda p: "x = F.scaled_dot_product_attention(x, x, x)",
    lambda p: f"x = x / x.norm(dim={p.axis()}, keepdim=True)",
    lambda p: f"x = x.argmax({p.axis()}, keepdim=True).to(x) + x",
    lambda p: f"x = x.topk(2, dim={p.axis()}, sorted=False).values",
    lambda p: f"x = x.prod({p.axis()}, keepdim=True)",
    lambda p: f"x = x.var({p.axis()}, keepdim=True)",
    lambda p: "x = x @ x.transpose(-1, -2)",
    lambda p: f"x = x.cumprod({p.axis()})",
    lambda p: f"x = x.argsort({p.axis()}).to(x)",
    lambda p: "x = x.mode(1).values",
    lambda p: "x = F.softplus(x)",
    lambda p: "x = x.long().to(x)",
    lambda p: "x = torch.atan2(x, x.flip(1))",
)

CONTROL = (
    lambda p: "if x.sum() > 0:\n    x = 2 * x",
    lambda p: "x = x * x.max().item()",
    lambda p: "x = torch.tensor(x.tolist()).to(x)",
    lambda p: "x = torch.from_numpy(2 * x.numpy())",
    lambda p: "x = x if bool((x[0] > 0).any()) else -x",
    lambda p: "for _ in range(int(x.abs().mean())):\n    x = 1.5 * x",
    lambda p: "y = x.clone()\ny[x > 0] = 0.0\nx = y",
)
