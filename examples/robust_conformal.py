# %% [markdown]
# # Robust conformal prediction: sets that hold under attack
#
# Conformal prediction answers with a *set* of classes that contains the true one with a probability of, say, 95%,
# whatever the network: the threshold is a quantile of scores on held-out data. The promise ends where inputs are
# perturbed. With a Lipschitz network it need not: a perturbation of length ε moves a score by at most its Lipschitz
# constant times ε, so raising the threshold by that much restores the promise, for one forward pass and no sampling.
# (After Massena et al. 2025, "Efficient robust conformal prediction via Lipschitz-bounded networks".)

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.data import load_dataset
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear, freeze
from orthogonium.losses import LossXent

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)
ALPHA = 0.05  # sets may miss the class this often

# %% [markdown]
# ## A 1-Lipschitz classifier
#
# Half of the digits train it; the other half it never sees.

# %%
digits = load_dataset("digits")
pixels, labels = (torch.cat([getattr(digits.train, k), getattr(digits.test, k)]) for k in ("pixels", "labels"))
order = torch.randperm(len(labels))
half = len(labels) // 2
train_x, train_y = pixels[order[:half]], labels[order[:half]]
x, y = pixels[order[half:]], labels[order[half:]]
network = nn.Sequential(
    AdaptiveOrthoConv2d(1, 16, 3), MaxMin(), AdaptiveOrthoConv2d(16, 32, 2, stride=2), MaxMin(),
    nn.Flatten(), OrthoLinear(32 * 16, 128), MaxMin(), OrthoLinear(128, 10),
)  # fmt: skip
steps = 30 if QUICK else 400
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
loss = LossXent(10, offset=0.9, temperature=0.11)
for _ in tqdm(range(steps), "classifier"):
    batch = torch.randint(half, (128,))
    optimizer.zero_grad()
    loss(network(train_x[batch]), train_y[batch]).backward()
    optimizer.step()
    schedule.step()
network = freeze(network)  # a copy of plain layers: attacks need no builds

# %% [markdown]
# ## Scores with a known constant
#
# The score of a class says how badly it fits: by how much its logit is behind the best of the others. A difference of
# two logits of an L-Lipschitz network is √2 L-Lipschitz, and so is a maximum of such differences. L is proved, not
# assumed.


# %%
def scores(x: Tensor) -> Tensor:
    """(n, 10): the best other logit minus that of the class."""
    logits = network(x)
    best, second = logits.topk(2, dim=1).values.split(1, dim=1)
    return torch.where(logits == best, second, best) - logits


bound = orthogonium.lipschitz_bound(network, (1, 8, 8)).value
CONSTANT = 2**0.5 * bound


def attack(x: Tensor, y: Tensor, eps: float) -> Tensor:
    """Inputs at distance ≤ ε where the score of the true class is as high as 30 steps of ascent find."""
    point = x
    for step in range(30):
        point = point.detach().requires_grad_()
        (slope,) = torch.autograd.grad(scores(point).gather(1, y[:, None]).sum(), point)
        length = eps * (0.5 * (1 - step / 30) + 0.01)
        moved = point.detach() + length * nn.functional.normalize(slope.flatten(1)).reshape(x.shape) - x
        too_long = (moved.flatten(1).norm(dim=1) / max(eps, 1e-9)).clamp_min(1)
        point = x + moved / too_long[:, None, None, None]
    return point.detach()


radii = [0.0, 0.1, 0.25] if QUICK else [0.0, 0.1, 0.2, 0.3, 0.4]
with torch.no_grad():
    clean = scores(x)
attacked = []
for eps in tqdm(radii, "attacks"):
    points = attack(x, y, eps)
    with torch.no_grad():
        attacked.append(scores(points))
    assert ((points - x).flatten(1).norm(dim=1) <= eps * 1.0001 + 1e-6).all()
    assert ((attacked[-1] - clean).abs() <= CONSTANT * eps * 1.001 + 1e-4).all()
accuracy = (clean.argmin(1) == y).float().mean().item()
print(f"accuracy {accuracy:.1%}, Lipschitz constant {bound:.5f}")

# %% [markdown]
# ## Coverage
#
# Half of the unseen digits calibrate: the threshold is the ⌈(n + 1)(1 − α)⌉-th smallest of their n scores. The other
# half are test inputs, attacked with the knowledge of everything. The promise is one about the mean over both draws, so
# that many random splits are averaged.


# %%
def coverage(eps: float, under_attack: Tensor, splits: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Coverage of usual and robust sets under attack, and their sizes: means over test inputs, for each split."""
    true_clean, true_attacked = (s.gather(1, y[:, None])[:, 0] for s in (clean, under_attack))
    rows = []
    for _ in range(splits):
        calibration, test = torch.randperm(len(y)).chunk(2)
        rank = math.ceil((len(calibration) + 1) * (1 - ALPHA))
        threshold = true_clean[calibration].sort().values[rank - 1]
        robust = threshold + CONSTANT * eps
        inside = [(true_attacked[test] <= t).float().mean() for t in (threshold, robust)]
        size = [(under_attack[test] <= t).float().sum(1).mean() for t in (threshold, robust)]
        rows.append(torch.stack([*inside, *size]))
    return tuple(torch.stack(rows).unbind(1))


splits = 100
found = [coverage(eps, s, splits) for eps, s in zip(radii, attacked, strict=True)]
means = torch.tensor([[float(v.mean()) for v in row] for row in found])
print("    ε   usual: coverage  size   robust: coverage  size")
for eps, (usual, robust, usual_size, robust_size) in zip(radii, means.tolist(), strict=True):
    print(f"{eps:5.2f}   {usual:15.3f} {usual_size:5.2f}   {robust:16.3f} {robust_size:5.2f}")
# Splits are random, so that the promise holds for their expectation: of their mean, up to three standard errors.
errors = torch.tensor([[3 * float(v.std()) / math.sqrt(splits) for v in row] for row in found])
assert (means[:, 1] >= 1 - ALPHA - errors[:, 1]).all()  # robust sets keep the promise at every radius
assert means[-1, 0] < 1 - ALPHA - errors[-1, 0]  # usual ones do not
assert abs(means[0, 0] - means[0, 1]) < 1e-6  # without a perturbation they are the same

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.plot(radii, means[:, 0], "C3o-", label="usual sets")
left.plot(radii, means[:, 1], "C0s-", label="robust sets")
left.axhline(1 - ALPHA, color="0.4", ls="--", label="promised")
left.set(title="How often sets contain the class, under attack", xlabel="perturbation ε (l2)", ylim=(0.5, 1.01))
left.legend()
right.plot(radii, means[:, 2], "C3o-", label="usual sets")
right.plot(radii, means[:, 3], "C0s-", label="robust sets")
right.set(title="Classes in a set (of 10)", xlabel="perturbation ε (l2)", ylim=(0, None))
right.legend()
figure.savefig("robust_conformal.png", dpi=80)
