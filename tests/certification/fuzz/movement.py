"""Statements that move, copy and overwrite entries."""

from __future__ import annotations

from tests.certification.fuzz.program import Draft, Unfit


def permute(p: Draft) -> str:
    order = p.rng.sample(range(1, p.rank), p.rank - 1)
    return f"x = x.permute(0, {', '.join(map(str, order))})"


def unflatten(p: Draft) -> str:
    axis = p.axis()
    a = p.divisor(p.length(axis))
    return f"x = x.unflatten({axis}, ({a}, {p.length(axis) // a}))"


def merged(p: Draft) -> str:
    """The batch goes into rows and comes back."""
    last = p.shape[-1]
    inner = p.pick("y.relu()", f"{p.layer(f'nn.Linear({last}, {last})')}(y)", "2 * y", "y.sort(dim=1).values", "y - 1")
    back = ", ".join(map(str, p.shape))
    return f"y = x.reshape(-1, {last})\ny = {inner}\nx = y.reshape(-1, {back})"


def sliced(p: Draft) -> str:
    axis = p.rng.randrange(1, p.rank)
    n = p.length(axis)
    start, step = p.rng.randrange(n), p.pick(1, 2, 3)
    return f"x = x[{':, ' * axis}{start}::{step}]"


def gather(p: Draft) -> str:
    axis = p.rng.randrange(1, p.rank)
    size = list(p.shape)
    size[axis - 1] = p.rng.randint(1, p.length(axis) + 1)
    index = p.buffer(f"torch.randint({p.length(axis)}, (1, {', '.join(map(str, size))}))")
    name, dim = p.pick(("x.gather", axis), ("torch.take_along_dim", axis))
    if name == "x.gather":
        return f"x = x.gather({dim}, {index}.expand(len(x), {', '.join(['-1'] * len(size))}))"
    return f"x = torch.take_along_dim(x, {index}, {dim})"


def cut(p: Draft) -> str:
    """Pieces, each with a factor of its own, joined in any order."""
    axis = p.axis()
    k = p.split(axis)
    pieces = p.pick(
        f"x.split([{k}, {p.length(axis) - k}], {axis})",
        f"x.tensor_split([{k}], {axis})",
        f"x.tensor_split([{k + 1}, {k}], {axis})",  # the last piece overlaps the first
        f"x.chunk(2, {axis})",
        f"x.unsqueeze({axis if axis < 0 else axis + 1}).unbind({axis})",
    )
    order = p.pick("", "[::-1]")
    factor = p.pick("i + 1", "1", "(-1) ** i", "0.5 ** i")
    return f"x = torch.cat([({factor}) * t for i, t in enumerate({pieces}{order})], {axis})"


def joined(p: Draft) -> str:
    axis, k = 1, p.split(1)
    return p.pick(
        f"x = torch.cat([x, {p.scalar()} * {p.same()}], {p.axis()})",
        f"x = torch.cat([x[:, :{k}], {p.scalar()} * x[:, {k}:].relu()], {axis})",
        f"x = torch.cat([x[:, :{k}], {p.scalar()} * x[:, :{k}]], axis={axis})",
        f"a, b = x[:, :{k}], x[:, {k}:]\nx = torch.cat([b.tanh(), a], {axis})",
        f"x = torch.stack([x, {p.scalar()} * {p.same()}], {p.axis()})",
        f"x = torch.hstack([x[:, {k}:], x[:, :{k}]])",
        f"x = torch.cat([x, x.mean({p.axis()}, keepdim=True)], {p.axis()})",
    )


def sliding(p: Draft) -> str:
    axis = p.rng.randrange(1, p.rank)
    n = p.length(axis)
    return f"x = x.unfold({axis}, {p.rng.randint(1, min(3, n))}, {p.pick(1, 2)})"


def folded(p: Draft) -> str:
    p.spatial(2)
    k, pad = p.pick(1, 2, 3), p.pick(0, 1)
    c, h, w = p.shape
    options = f"{k}, padding={pad}, stride={p.pick(1, 2)}"
    return p.pick(
        f"x = F.unfold(x, {options})",
        f"x = F.fold(F.unfold(x, {options}), ({h}, {w}), {options})",
    )


def unrolled(p: Draft) -> str:
    """Columns back to an image."""
    p.spatial(1)
    c, n = p.shape
    h = p.divisor(n)
    return f"x = F.fold(x, ({h + 1}, {n // h + 1}), 2)" if c % 4 == 0 else f"x = F.fold(x, ({h}, {n // h}), 1)"


def padded(p: Draft) -> str:
    n = p.spatial()
    sizes = [p.pick(0, 0, 1, 2) for _ in range(2 * n)]
    mode = p.pick("constant", "reflect", "replicate", "circular")
    if mode == "constant":
        sizes[p.rng.randrange(2 * n)] = p.pick(-1, 1)
        return f"x = F.pad(x, {tuple(sizes)}, value={p.pick(0.0, 1.5)})"
    return f"x = F.pad(x, {tuple(sizes)}, mode={mode!r})"


def shuffled(p: Draft) -> str:
    p.spatial(2)
    return p.pick(
        "x = F.pixel_shuffle(x, 2)", "x = F.pixel_unshuffle(x, 2)", f"x = F.channel_shuffle(x, {p.divisor(p.shape[0])})"
    )


def expanded(p: Draft) -> str:
    axis = p.rng.randrange(1, p.rank + 1)
    sizes = ["-1"] * (p.rank + 1)
    sizes[axis] = str(p.pick(2, 3))
    return f"x = x.unsqueeze({axis}).expand({', '.join(sizes)})"


def strided(p: Draft) -> str:
    """Windows of a vector that overlap in memory."""
    if p.rank != 2:
        raise Unfit
    n = p.shape[0]
    return f"x = x.contiguous().as_strided((len(x), {n - 1}, 2), ({n}, 1, 1))"


def repeated(p: Draft) -> str:
    axis = p.axis()
    counts = [p.pick(0, 1, 2) for _ in range(p.length(axis))]
    return f"x = x.repeat_interleave(torch.tensor({counts}), dim={axis})"


def triangle(p: Draft) -> str:
    text = p.pick("x = x.tril()", "x = x.triu(1)", "x = x.diagonal(dim1=-2, dim2=-1)", "x = x.diag_embed()")
    return p.tagged("batch", text) if p.rank == 2 and "diag_embed" not in text else text  # rows are samples


MOVEMENT = (
    permute,
    unflatten,
    merged,
    sliced,
    gather,
    cut,
    cut,
    joined,
    joined,
    sliding,
    folded,
    unrolled,
    padded,
    padded,
    shuffled,
    expanded,
    strided,
    lambda p: f"x = x.transpose({p.axis()}, {p.axis()})",
    lambda p: p.pick("x = x.flatten(1)", f"x = x.flatten({p.rng.randrange(1, p.rank)})", "x = x.reshape(len(x), -1)"),
    lambda p: p.pick(
        "x = x.contiguous().view(x.shape[0], -1)", "x = x.ravel().reshape(len(x), -1)", "x = torch.flatten(x, 1)"
    ),
    lambda p: f"x = x.unsqueeze({p.axis()})",
    lambda p: p.pick(
        f"x = x.squeeze({p.axis()})",
        f"x = x.swapaxes({p.axis()}, {p.axis()})",
        f"x = x.movedim({p.axis()}, {p.axis()})",
    ),
    lambda p: f"x = x.flip({p.axes()})",
    lambda p: f"x = x.roll({p.pick(1, -2)}, {p.axis()})",
    lambda p: f"x = x.rot90({p.pick(1, 2, 3)}, ({p.rng.randrange(1, p.rank)}, {p.rng.randrange(1, p.rank)}))",
    lambda p: f"x = x.repeat(1, {', '.join(str(p.pick(1, 1, 2)) for _ in p.shape)})",
    lambda p: f"x = x.repeat_interleave({p.pick(2, 3)}, dim={p.axis()})",
    repeated,
    lambda p: f"x = x[:, {p.indices(1)}]",
    lambda p: f"x = x[..., {p.indices(-1)}]",
    lambda p: f"x = x[..., {p.mask(p.shape[-1])}]",
    lambda p: f"x = x[:, {p.mask(*p.shape)}]",
    lambda p: (lambda a: f"x = x.index_select({a}, torch.tensor({p.indices(a)}))")(p.axis()),
    lambda p: (lambda a: f"x = x.narrow({a}, {p.split(a) - 1}, 2)")(p.axis()),
    lambda p: f"x = x.select({p.axis()}, -1)",
    triangle,
)


def filled(p: Draft) -> str:
    """Empty memory, filled piece by piece."""
    k = p.split(1)
    rest = p.pick(f"{p.scalar()} * x[:, {k}:]", f"x[:, {k}:].relu()", "0.5", f"x[:, :1].expand_as(y[:, {k}:])")
    new = p.pick("torch.empty_like(x)", "x.new_empty(x.shape)", "torch.zeros_like(x)", "torch.full_like(x, 2.0)")
    return f"y = {new}\ny[:, :{k}] = {p.pick('x', '2 * x', 'x.abs()')}[:, :{k}]\ny[:, {k}:] = {rest}\nx = y"


def overwritten(p: Draft) -> str:
    k = p.split(1)
    value = p.pick(f"{p.scalar()} * x[:, -{k}:]", f"x[:, -{k}:].sin()", f"x[:, -{k}:]", "1.0")
    return f"x = x * 1\nx[:, :{k}] = {value}"


def viewed(p: Draft) -> str:
    """A view is edited, its base is used; or the other way round."""
    k = p.split(1)
    edit = p.pick(
        "mul_(3)", "relu_()", "sub_(1)", "neg_()", f"copy_(x[:, -{k}:].clone())", "zero_()", "clamp_(-0.5, 1)"
    )
    if p.pick(True, False):
        return f"x = x.clone()\nv = x[:, :{k}]\nv.{edit}"
    return f"x = x.clone()\nv = x[:, :{k}]\nx.mul_(4)\nx = torch.cat([v, x], 1)"


def stale(p: Draft) -> str:
    """A saved value changes with what is written later."""
    write = f"x {p.pick('*=', '-=', '/=')} {p.pick(3.0, 0.5)}"
    return f"x = x.clone()\ny = x.transpose(1, -1)\n{write}\nx = x + 0.5 * y.transpose(1, -1)"


def put(p: Draft) -> str:
    n = p.shape[0]
    index = f"torch.tensor({p.indices(1, 2)})"
    spread = f"(slice(None), {index})"
    source = f"x[:, {p.indices(1, 2)}]"
    distinct = p.rng.sample(range(n), min(n, 2))
    return p.pick(
        f"x = x.clone()\nx.index_add_(1, {index}, {p.scalar()} * {source})",
        f"x = x.index_add(1, {index}, {source})",
        f"x = x.clone()\nx.index_copy_(1, torch.tensor({distinct}), 2 * x[:, :{len(distinct)}].clone())",
        f"x = x.clone()\nx[:, {distinct}] = x[:, :{len(distinct)}].clone()",
        f"x = x.clone()\nx.transpose(0, 1).index_put_(({index},), {source}.transpose(0, 1).clone(), accumulate=True)",
        f"x = x.clone()\nx.index_fill_(1, {index}, 0.25)",
        f"x = x.clone()\nx.masked_fill_({p.mask(p.shape[-1])}, 1.0)",
        f"x = x.clone()\nx.transpose(0, 1)[{index}] *= 2",
        "x = x.scatter(1, torch.zeros_like(x[:, :1], dtype=torch.long), 2 * x[:, -1:])",
        "x = x.scatter_add(1, torch.zeros_like(x, dtype=torch.long), x)",
        "x = x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.long), x, 'amax')",
        f"y = x.new_zeros(len(x), {n + 2}, *x.shape[2:])\ny[:, 1:-1] += x\ny[:, 2:] -= x\nx = y",
        f"y = torch.zeros_like(x)\ny[{spread}] = 3.0\nx = x * y",
    )


SLOPES = "elu relu leaky_relu selu celu hardtanh silu mish".split()
TURNS = "transpose_(1, -1) | unsqueeze_(1) | squeeze_(1) | squeeze_(-1) | swapaxes_(1, -1)".split(" | ")

IN_PLACE = (
    filled,
    filled,
    overwritten,
    overwritten,
    viewed,
    viewed,
    stale,
    put,
    put,
    lambda p: f"x = x * 1\nx.{p.pick('mul_', 'add_', 'sub_', 'div_')}({p.scalar()})",
    lambda p: f"x = x.clone()\nx {p.pick('*=', '+=', '-=', '/=')} {p.scalar()}",
    lambda p: f"x {p.pick('*=', '+=')} {p.scalar()}",
    lambda p: f"x = x.clone()\nx += {p.scalar()} * {p.same()}",
    lambda p: f"x = x.clone()\nx.add_({p.same()}, alpha={p.scalar()})",
    lambda p: f"x = x.clone()\nx.{p.pick('relu_', 'tanh_', 'sigmoid_', 'abs_', 'neg_', 'sin_', 'erf_')}()",
    lambda p: f"x = F.{p.pick(*SLOPES)}(x * 2, inplace=True)",
    lambda p: "x = x.clone()\nx.clamp_(min=-0.5)",
    lambda p: f"x = x.clone()\nx.addcmul_({p.constant(*p.shape)}, {p.constant(1)}, value={p.scalar()})",
    lambda p: f"x = x.clone()\nx.lerp_({p.same()}, {p.pick(0.3, -1.0, 2.0)})",
    lambda p: f"x = x.clone()\nx.data.mul_({p.scalar()})",
    lambda p: f"x = x.clone()\nx.data[:, :1] = {p.scalar()} * x.data[:, -1:]",
    lambda p: "x = x.clone()\nx.data = 2 * x.data" if p.rng.random() < 0.2 else "x = x.clone()\nx.data[:, ::2] += 1",
    lambda p: f"x = x.clone()\nx.{p.pick(*TURNS)}",
    lambda p: f"y = torch.empty_like(x)\ntorch.{p.pick('mul(x, 2.0', 'add(x, x', 'neg(x', 'abs(x')}, out=y)\nx = y",
    lambda p: f"y = torch.empty_like(x)\ny.copy_({p.scalar()} * x)\nx = y",
    lambda p: "x = x.clone()\nfor i, t in enumerate(x.unbind(1)):\n    t.mul_(i + 1)",
    lambda p: "x = x.clone()\na, b = x.chunk(2, 1)\na += b\nb -= a",
    lambda p: "y = x.clone()\nfor _ in range(2):\n    y += x\nx = y",
    lambda p: "x = x.clone()\nx.flatten(1)[:, ::2] *= 3",
    lambda p: f"x = x.contiguous()\nx.view(len(x), -1).mul_({p.constant(1)}.abs())",
)
