# %% [markdown]
# # Invertible networks and a normalizing flow
#
# A *normalizing flow* is a network $F$ that can be undone. It turns data into Gaussian noise, so that run backwards
# it turns noise into data, and the density of a point is known:
#
# $$\log p(x) = \log \mathcal N(F(x)) + \log\left|\det F'(x)\right|.$$
#
# Two kinds of invertible networks are at hand. Orthogonal layers are undone by their transpose, exactly. And `x +
# fn(x)` is undone by a fixed point if `fn` is a contraction, which here is known and not estimated: its layers are
# orthogonal (`iResidual`). Every claim is checked: inverses, determinants, that densities integrate to 1, and the
# likelihood against that of the true distribution.

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.data import load_dataset
from orthogonium.layers import AdaptiveOrthoConv2d, InvertibleDownsampling, OrthoLinear, iResidual

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)

# %% [markdown]
# ## Orthogonal convolutions: the exact inverse
#
# No layer of this network loses anything. Its determinant is known by counting: orthogonal layers contribute nothing,
# and each negative entry that meets a LeakyReLU contributes the logarithm of the slope.

# %%
parts: list[nn.Module] = [InvertibleDownsampling(2)]
for _ in range(4):
    parts += [AdaptiveOrthoConv2d(4, 4, 3), nn.LeakyReLU(0.5)]
network = nn.Sequential(*parts).double().eval()
digits = load_dataset("digits").test.pixels.double()
with torch.no_grad():
    codes = network(digits)
    back = orthogonium.inverse(network)(codes)
    log_det, x = torch.zeros(len(digits), dtype=torch.float64), digits
    for part in network:
        if isinstance(part, nn.LeakyReLU):
            log_det += (x < 0).double().flatten(1).sum(1) * math.log(0.5)
        x = part(x)
jacobian = torch.autograd.functional.jacobian(network, digits[:1]).reshape(64, 64)
image_error = (back - digits).abs().max().item()
counted = abs(float(torch.linalg.slogdet(jacobian).logabsdet - log_det[0]))
print(f"digits: inverse wrong by {image_error:.1e}, log-determinant by {counted:.1e}")
assert image_error < 1e-12 and counted < 1e-10

# %% [markdown]
# ## A flow for a known density
#
# The data: five petals, each a Gaussian that is long and thin, so that the true density has a formula to compare
# with.

# %%
PETALS, LONG, THIN = 5, 0.55, 0.14
angles = torch.arange(PETALS) * (2 * math.pi / PETALS)
axes = torch.stack([torch.stack([angles.cos(), angles.sin()], 1), torch.stack([-angles.sin(), angles.cos()], 1)], 2)
centers, scales = 1.4 * axes[:, :, 0], torch.tensor([LONG, THIN])


def draw(count: int) -> Tensor:
    """Points of the petals."""
    petal = torch.randint(PETALS, (count,))
    return centers[petal] + torch.einsum("nij,nj->ni", axes[petal], scales * torch.randn(count, 2))


def true_log_density(x: Tensor) -> Tensor:
    """The logarithm of the mixture of five Gaussians."""
    z = torch.einsum("kij,nki->nkj", axes, x[:, None] - centers) / scales
    return (-z.square().sum(2) / 2).logsumexp(1) - math.log(PETALS * 2 * math.pi * LONG * THIN)


def block(width: int = 32) -> iResidual:
    """`x + 0.9 fn(x)`, with a smooth 1-Lipschitz fn."""
    layers = OrthoLinear(2, width), nn.Tanh(), OrthoLinear(width, width), nn.Tanh(), OrthoLinear(width, 2)
    return iResidual(nn.Sequential(*layers), lipschitz=0.9, max_iterations=2000)


def log_density(flow: nn.Sequential, x: Tensor) -> Tensor:
    """Of the flow, at points (n, 2)."""
    log_det = torch.zeros(len(x))
    for part in flow:
        log_det = log_det + part.log_det(x).value
        x = part(x)
    return log_det - x.square().sum(1) / 2 - math.log(2 * math.pi)


flow = nn.Sequential(*[block() for _ in range(4 if QUICK else 10)])
steps = 40 if QUICK else 600
optimizer = torch.optim.Adam(flow.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
held_out = draw(4000)
best = true_log_density(held_out).mean().item()  # no density has a higher likelihood, on average
with torch.no_grad():
    before = log_density(flow, held_out).mean().item()
for _ in (bar := tqdm(range(steps), "flow")):
    optimizer.zero_grad()
    with orthogonium.build_once(flow):  # each matrix serves the point and its determinant
        loss = -log_density(flow, draw(512)).mean()
        loss.backward()
    optimizer.step()
    schedule.step()
    bar.set_postfix(likelihood=f"{-loss.item():.3f}", best=f"{best:.3f}")

# %%
flow.eval()
with torch.no_grad():
    likelihood = log_density(flow, held_out).mean().item()
    noise = flow(held_out)
    inverse_error = (orthogonium.inverse(flow)(noise) - held_out).norm(dim=1).max().item()
    axis = torch.linspace(-4, 4, 201)
    grid = torch.cartesian_prod(axis, axis)
    density = log_density(flow, grid).exp()
    mass = density.sum().item() * (8 / 200) ** 2
    samples = orthogonium.inverse(flow)(torch.randn(1500, 2))
    by_parts = log_density(flow, held_out[:100]) + noise[:100].square().sum(1) / 2 + math.log(2 * math.pi)
whole = torch.stack([torch.autograd.functional.jacobian(flow, x[None]).reshape(2, 2) for x in held_out[:100]])
det_error = (torch.linalg.slogdet(whole).logabsdet - by_parts).abs().max().item()
print(f"likelihood of held-out points: {before:.3f} → {likelihood:.3f}; of the true density: {best:.3f}")
print(f"inverse wrong by {inverse_error:.1e}; log-determinant by {det_error:.1e}; total mass {mass:.4f}")
assert inverse_error < 1e-3 and det_error < 1e-4 and abs(mass - 1) < 0.02
assert before < likelihood < best + 0.1 and (QUICK or likelihood > best - 0.25)

# %%
figure, panels = plt.subplots(1, 4, figsize=(13, 3.5), layout="constrained")
truth = true_log_density(grid).exp()
for panel, field, name in ((panels[0], truth, "True density"), (panels[1], density, "Density of the flow")):
    panel.imshow(
        field.reshape(201, 201).T.numpy(), origin="lower", extent=(-4, 4, -4, 4), cmap="magma", vmax=truth.max()
    )
    panel.set(title=name, xlim=(-3, 3), ylim=(-3, 3))
panels[2].scatter(*noise.T, s=2, color="C0")
panels[2].set(title="Data, turned into noise", aspect="equal")
panels[3].scatter(*samples.T, s=2, color="C3")
panels[3].set(title="Noise, turned into data", aspect="equal", xlim=(-3, 3), ylim=(-3, 3))
figure.savefig("normalizing_flow.png", dpi=80)
