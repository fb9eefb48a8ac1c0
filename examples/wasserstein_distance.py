# %% [markdown]
# # Wasserstein distances and a generator that minimises one
#
# How far apart are two clouds of points? The Wasserstein distance is the least average length of the way that points
# of one cloud have to go to become the other. By Kantorovich and Rubinstein it is also
#
# $$W_1(P, Q) = \max_{f\ 1\text{-Lipschitz}} \; E_P[f] - E_Q[f],$$
#
# so *any* 1-Lipschitz network gives a lower bound, and training one (a "critic") raises it. No gradient penalty, no
# clipping: the layers are 1-Lipschitz by construction. Here the estimate is held against exact values: in one
# dimension by sorting, in two by solving the assignment problem. Then a generator is trained against such a critic.

# %%
import os

import matplotlib.pyplot as plt
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.layers import GroupSort, OrthoLinear
from orthogonium.losses import KRLoss

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)


def make_critic(features: int) -> nn.Sequential:
    """A 1-Lipschitz function of vectors; sorting keeps the length of gradients, which a ReLU would lose."""
    width = 64
    return nn.Sequential(
        OrthoLinear(features, width), GroupSort(8), OrthoLinear(width, width), GroupSort(8), OrthoLinear(width, 1)
    )  # fmt: skip


def train_critic(critic: nn.Module, p: Tensor, q: Tensor, steps: int, name: str) -> list[float]:
    """Raise the estimate on all points at once; returns its course."""
    points, labels = torch.cat([p, q]), torch.cat([torch.ones(len(p)), torch.zeros(len(q))])
    optimizer = torch.optim.Adam(critic.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    estimates = []
    for _ in tqdm(range(steps), name):
        optimizer.zero_grad()
        loss = KRLoss()(critic(points), labels)  # minus the estimate
        loss.backward()
        optimizer.step()
        schedule.step()
        estimates.append(-loss.item())
    return estimates


def exact_distance(p: Tensor, q: Tensor) -> float:
    """W₁ of two clouds of equally many points: the cheapest matching."""
    cost = torch.cdist(p.double(), q.double(), compute_mode="donot_use_mm_for_euclid_dist").numpy()
    return float(cost[linear_sum_assignment(cost)].mean())


# %% [markdown]
# ## One dimension: sort
#
# On a line the cheapest way is to move the smallest point to the smallest, the next to the next, and so on.

# %%
n = 128 if QUICK else 512
left = torch.cat([torch.randn(n // 2) - 3, 0.5 * torch.randn(n // 2) + 3])
right = torch.randn(n)
exact_1d = float((left.sort().values - right.sort().values).abs().double().mean())
course_1d = train_critic(make_critic(1), left[:, None], right[:, None], 60 if QUICK else 300, "critic in 1-D")
print(f"1-D: exact {exact_1d:.4f}, estimate {course_1d[-1]:.4f}")

# %% [markdown]
# ## Two dimensions: the assignment problem
#
# A ring of eight Gaussians against a single one in its middle.


# %%
def ring(count: int) -> Tensor:
    """Eight Gaussians on a circle of radius 3."""
    angle = torch.randint(8, (count,)) * (torch.pi / 4)
    return torch.stack([3 * angle.cos(), 3 * angle.sin()], 1) + 0.3 * torch.randn(count, 2)


data, middle = ring(n), torch.randn(n, 2)
exact_2d = exact_distance(data, middle)
critic = make_critic(2)
course_2d = train_critic(critic, data, middle, 100 if QUICK else 800, "critic in 2-D")
print(f"2-D: exact {exact_2d:.4f}, estimate {course_2d[-1]:.4f}")

# Lower bounds, as they must be: but for rounding nothing exceeds the exact value at any time. And close ones.
constant = orthogonium.lipschitz_bound(critic.eval(), (2,)).value
assert constant < 1.0001
for course, exact in ((course_1d, exact_1d), (course_2d, exact_2d)):
    assert max(course) <= exact * constant + 1e-4
    assert course[-1] >= (0.9 if QUICK else 0.97) * exact

# %% [markdown]
# ## A generator
#
# A generator turns noise into points, and moves them along the gradient of the critic, which is a direction of length
# (almost) 1 wherever it matters: the critic can be trained to the end without gradients that vanish. The exact
# distance, which training never sees, falls.

# %%
generator = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
rival = make_critic(2)
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.9))
for_rival = torch.optim.Adam(rival.parameters(), lr=1e-2, betas=(0.5, 0.9))
steps = 20 if QUICK else 600
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(for_generator, steps)
labels = torch.cat([torch.ones(256), torch.zeros(256)])
checkpoints, distances = [], []
for step in tqdm(range(steps + 1), "generator"):
    if step % (steps // 20) == 0:  # on points of their own
        with torch.no_grad():
            checkpoints.append(step)
            distances.append(exact_distance(ring(256), generator(torch.randn(256, 4))))
    for _ in range(3):
        fake = generator(torch.randn(256, 4)).detach()
        for_rival.zero_grad()
        KRLoss()(rival(torch.cat([ring(256), fake])), labels).backward()
        for_rival.step()
    for_generator.zero_grad()
    (-rival(generator(torch.randn(256, 4))).mean()).backward()
    for_generator.step()
    schedule.step()
two_samples = exact_distance(ring(256), ring(256))  # what even a perfect generator has, as clouds are finite
print(
    f"exact distance of the generator: {distances[0]:.3f} → {distances[-1]:.3f}; of the data to itself: "
    f"{two_samples:.3f}"
)
assert distances[-1] < (1 if QUICK else 0.35) * distances[0]

# %%
figure, (curves, levels, samples) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for course, exact, color, name in ((course_1d, exact_1d, "C0", "1-D"), (course_2d, exact_2d, "C1", "2-D")):
    curves.plot(course, color, label=f"{name}: critic")
    curves.axhline(exact, color=color, ls="--", label=f"{name}: exact, {exact:.3f}")
curves.set(title="The estimate rises to the exact value", xlabel="step", ylim=(0, None))
curves.legend()
axis = torch.linspace(-4.5, 4.5, 80)
with torch.no_grad():
    heights = critic(torch.cartesian_prod(axis, axis)).reshape(80, 80).T
levels.contourf(axis, axis, heights, 20, cmap="RdBu_r")
levels.scatter(*data.T, s=2, color="k")
levels.scatter(*middle.T, s=2, color="w")
levels.set(title="Level sets of the critic in 2-D", aspect="equal", xlim=(-4.5, 4.5), ylim=(-4.5, 4.5))
with torch.no_grad():
    samples.scatter(*ring(500).T, s=4, color="0.7", label="data")
    samples.scatter(*generator(torch.randn(500, 4)).T, s=4, color="C3", label="generated")
samples.set(title=f"Generator: distance {distances[0]:.2f} → {distances[-1]:.2f}", aspect="equal")
samples.legend(loc="center")
figure.savefig("wasserstein_distance.png", dpi=80)
