# %% [markdown]
# # Private training without clipping
#
# A training run is *differentially private* if no one who sees the trained network can tell whether a given person
# was in the data. The usual way, DP-SGD, clips the gradient of each sample and adds noise in proportion. A
# 1-Lipschitz network needs no clipping, as its gradients are bounded by construction (Béthune et al. 2023, "DP-SGD
# without clipping: the Lipschitz neural network way").
#
# **Theorem.** Let $f = W_D\,\sigma\,W_{D-1} \cdots \sigma\,W_1$ with $\|W_d\| \le 1$, no biases, and $\sigma$ =
# MaxMin, which keeps norms and is 1-Lipschitz. Let $\|x\| \le 1$, and let the loss have a gradient of norm at most
# $\lambda$ with respect to the logits. Then the gradient of one sample with respect to each $W_d$, as a free matrix,
# has Frobenius norm at most $\lambda$, and that of all layers together at most $\Delta = \lambda\sqrt D$.
#
# *Proof.* It is $\delta_d h_{d-1}^\top$, with the input $h_{d-1}$ of the layer, $\|h_{d-1}\| \le \|x\| \le 1$, and
# the gradient $\delta_d$ at its output, $\|\delta_d\| \le \lambda$, as transposes of layers do not expand either. The
# norm of $\delta h^\top$ is $\|\delta\|\,\|h\|$. ∎
#
# Cross-entropy with temperature T, `T·CE(z/T)`, has the gradient $p - e_y$: $\lambda = \sqrt 2$. Raw parameters, from
# which orthogonal weights are built, have no such bound. So noise is added to gradients with respect to the
# *weights*; what goes on from there, through the builds into raw parameters, sees only what is already private
# (post-processing).

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from scipy.optimize import brentq
from scipy.stats import norm
from torch import Tensor, nn
from tqdm import tqdm

from orthogonium.data import load_dataset
from orthogonium.layers import MaxMin, OrthoLinear

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)

# %% [markdown]
# ## Accounting
#
# Each step takes *all* samples (so no amplification by subsampling has to be argued for), sums their gradients, and
# adds Gaussian noise of standard deviation $z\Delta$. Data sets are neighbours if one has one sample more: then sums
# differ by $\Delta$ at most. $N$ steps, each chosen in view of the ones before, are exactly as private as one
# Gaussian mechanism with $\mu = \sqrt N/z$ (Dong, Roth, Su 2022), and that is $(\varepsilon, \delta)$-private with
# (Balle & Wang 2018)
#
# $$\delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon\,\Phi(-\mu/2 - \varepsilon/\mu).$$
#
# Real numbers are assumed, as is usual: floating-point noise has gaps that an adversary may exploit (Mironov 2012).
# And the architecture, learning rate and number of steps are taken as given.


# %%
def privacy(noise: float, steps: int, delta: float = 1e-5) -> float:
    """The ε of `steps` Gaussian mechanisms with noise of `noise` times their sensitivity."""
    mu = math.sqrt(steps) / noise

    def excess(eps: float) -> float:
        return norm.cdf(mu / 2 - eps / mu) - math.exp(eps + norm.logcdf(-mu / 2 - eps / mu)) - delta

    return float(brentq(excess, 0.0, mu * mu / 2 + mu * math.sqrt(2 * math.log(1 / delta)) + 1))


# From the definition: δ is what the density of N(μ, 1) has above e^ε times that of N(0, 1). Here μ = √100/10 = 1.
points = torch.linspace(-20, 20, 400_001, dtype=torch.float64)
above = torch.exp(-((points - 1) ** 2) / 2) - math.exp(privacy(10, 100)) * torch.exp(-(points**2) / 2)
assert abs(above.clamp_min(0).sum() * 1e-4 / math.sqrt(2 * math.pi) - 1e-5) < 1e-9
# And it lies below what zCDP gives, ρ + 2√(ρ log 1/δ) with ρ = N/(2z²): a looser bound, by another way.
assert privacy(10, 100) < 0.5 + 2 * math.sqrt(0.5 * math.log(1e5))

# %% [markdown]
# ## The network
#
# Gradients with respect to the weights are those of a copy of plain matrices; `weight.backward(gradient)` then
# carries them, with the noise in them, through the builds.

# %%
TEMPERATURE, WIDTH, DEPTH = 0.1, 64, 2
SLACK = 1 + 1e-4  # weights have norm 1 up to 1e-5
BOUND = math.sqrt(2) * SLACK**DEPTH  # of the gradient of a sample with respect to one weight
SENSITIVITY = BOUND * math.sqrt(DEPTH)  # of all of them
activation = MaxMin(axis=-1)


def make_layers() -> nn.ModuleList:
    """Orthogonal layers without biases."""
    return nn.ModuleList([OrthoLinear(64, WIDTH, bias=False), OrthoLinear(WIDTH, 10, bias=False)])


def logits(weights: list[Tensor], x: Tensor) -> Tensor:
    """Of inputs (…, 64)."""
    for weight in weights[:-1]:
        x = activation(x @ weight.T)
    return x @ weights[-1].T


def loss(weights: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The sum over samples of T·CE(z/T)."""
    return TEMPERATURE * nn.functional.cross_entropy(logits(weights, x) / TEMPERATURE, y, reduction="sum")


def train(noise: float, steps: int, lr: float) -> tuple[nn.ModuleList, float]:
    """Private training on all samples; the network, and its accuracy on held-out ones."""
    layers = make_layers()
    optimizer = torch.optim.SGD(layers.parameters(), lr=lr, momentum=0.9)
    for _ in tqdm(range(steps), f"noise {noise:.1f}"):
        built = [layer.weight for layer in layers]
        weights = [weight.detach().requires_grad_() for weight in built]
        gradients = torch.autograd.grad(loss(weights, train_x, train_y), weights)
        optimizer.zero_grad()
        for weight, gradient in zip(built, gradients, strict=True):
            private = gradient + noise * SENSITIVITY * torch.randn_like(gradient)
            weight.backward(private / SAMPLES)
        optimizer.step()
    with torch.no_grad():
        found = logits([layer.weight for layer in layers], test_x).argmax(1)
    return layers, (found == test_y).float().mean().item()


def on_the_ball(pixels: Tensor) -> Tensor:
    """Each image by itself, centered at grey 0.3 and with norm 1: nothing is learned from the data for this."""
    return nn.functional.normalize(pixels.flatten(1) - 0.3) / (1 + 1e-6)


digits = load_dataset("digits")
train_x, train_y = on_the_ball(digits.train.pixels), digits.train.labels
test_x, test_y = on_the_ball(digits.test.pixels), digits.test.labels
SAMPLES = 1347  # a constant, whatever the size of the data set: only a scale of the learning rate

# %% [markdown]
# ## The bound, by brute force
#
# Gradients of every single sample, at the start and at the end of training; and the worst inputs that ascent on the
# gradient's norm finds, anywhere in the ball.

# %%
per_sample = torch.func.vmap(torch.func.grad(lambda w, x, y: loss(w, x[None], y[None])), in_dims=(None, 0, 0))


def gradient_norms(layers: nn.ModuleList, x: Tensor, y: Tensor) -> Tensor:
    """(layers, samples)."""
    weights = [layer.weight.detach() for layer in layers]
    return torch.stack([g.flatten(1).norm(dim=1) for g in per_sample(weights, x, y)])


def worst_norm(layers: nn.ModuleList) -> float:
    """The largest norm of a gradient of a sample, for any layer, that a search over inputs and labels finds."""
    x, y = nn.functional.normalize(torch.randn(200, 64)), torch.randint(10, (200,))
    for _ in range(50):
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(gradient_norms(layers, x, y).sum(), x)
        x = nn.functional.normalize(x.detach() + 0.3 * nn.functional.normalize(slope))
    return float(gradient_norms(layers, x, y).max())


steps = 20 if QUICK else 100
noises = [20.0] if QUICK else [40.0, 20.0, 10.0, 5.0, 2.5]
results = [(privacy(z, steps), *train(z, steps, lr=1.0)) for z in noises]
_, accuracy_without = train(0.0, steps, lr=1.0)
trained = results[-1][1]
norms = gradient_norms(trained, train_x, train_y)
for layers in (make_layers(), trained):
    found = worst_norm(layers), float(gradient_norms(layers, train_x, train_y).max())
    print(f"norm of a sample's gradient: {found[1]:.3f} in the data, {found[0]:.3f} by search; bound {BOUND:.3f}")
    assert max(found) <= BOUND
    assert found[0] > 0.7 * BOUND  # the bound is nearly reached: less noise would not do

# Neighbours: without one sample the sum of all gradients moves by no more than the sensitivity.
weights = [layer.weight.detach().requires_grad_() for layer in trained]
whole = torch.autograd.grad(loss(weights, train_x, train_y), weights)
for k in range(0, len(train_y), 100):
    rest = torch.arange(len(train_y)) != k
    less = torch.autograd.grad(loss(weights, train_x[rest], train_y[rest]), weights)
    moved = sum(float((a - b).square().sum()) for a, b in zip(whole, less, strict=True)) ** 0.5
    assert moved <= SENSITIVITY + 1e-3

# %%
print(f"δ = 1e-5, {steps} steps; without noise: {accuracy_without:.1%}")
for eps, _, accuracy in results:
    print(f"ε = {eps:6.2f}: accuracy {accuracy:.1%}")
assert results[-1][2] > (0.3 if QUICK else 0.8)

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.semilogx([eps for eps, _, _ in results], [accuracy for _, _, accuracy in results], "o-", label="private")
left.axhline(accuracy_without, color="0.5", ls="--", label="without noise")
left.set(title="Accuracy on held-out digits", xlabel="ε (δ = 1e-5): less is more private", ylim=(0, 1.02))
left.legend()
right.hist(norms[0].numpy(), 40, range=(0, 1.5), color="0.8", label="layer 1")
right.hist(
    norms[1].numpy(), 40, range=(0, 1.5), histtype="step", color="C0", label="layer 2: the same, as nothing is lost"
)
right.axvline(BOUND, color="C3", label="bound")
right.set(title="Norms of the gradients of single samples", xlabel="Frobenius norm", ylabel="samples")
right.legend()
figure.savefig("private_training.png", dpi=80)
