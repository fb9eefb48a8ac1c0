# %% [markdown]
# # Signed distances: what is inside, and how far is the border?
#
# A network that is 1-Lipschitz and wrong about no sign cannot exceed the distance to the border: inside a shape
# $f(x) \le d(x)$, outside $f(x) \ge -d(x)$. So the function that pushes the two sides apart as far as it can, with
# the signs right, *is* the signed distance. The hinge-Kantorovich–Rubinstein loss (HKR) asks for just that: a hinge
# for the signs, and the difference of the means.
#
# First on a shape whose distance is known exactly; then on handwritten digits: trained on zeros alone, the network
# tells zeros from all other digits, with a guarantee against attacks. (After Béthune et al. 2023, "Robust one-class
# classification with signed distance function using 1-Lipschitz neural networks".)

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.data import load_dataset
from orthogonium.layers import GroupSort, OrthoLinear
from orthogonium.losses import HKRLoss

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)


def make_network(features: int, width: int, depth: int) -> nn.Sequential:
    """A 1-Lipschitz function of vectors, with one output."""
    layers: list[nn.Module] = [OrthoLinear(features, width), GroupSort(8)]
    for _ in range(depth):
        layers += [OrthoLinear(width, width), GroupSort(8)]
    return nn.Sequential(*layers, OrthoLinear(width, 1), nn.Flatten(0))


# %% [markdown]
# ## Two moons with a known distance
#
# Two thick half circles: the points nearer than 0.2 to one of two arcs. The distance to an arc has a formula, hence
# the signed distance, too.

# %%
THICKNESS, BOX = 0.2, 2.5


def distance_to_arc(x: Tensor, upper: bool) -> Tensor:
    """From the half circle of radius 1 around (∓0.5, ∓0.1): along the radius, or to the nearer end."""
    sign = 1.0 if upper else -1.0
    x = (x + sign * torch.tensor([0.5, 0.1])) * sign
    ends = torch.stack([(x - torch.tensor([end, 0.0])).norm(dim=1) for end in (-1.0, 1.0)]).amin(0)
    return torch.where(x[:, 1] >= 0, (x.norm(dim=1) - 1).abs(), ends)


def signed_distance(x: Tensor) -> Tensor:
    """Positive inside the moons."""
    return THICKNESS - torch.minimum(distance_to_arc(x, True), distance_to_arc(x, False))


network = make_network(2, 128, 3)
steps = 100 if QUICK else 2000
optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
loss = HKRLoss(alpha=0.98, min_margin=0.02)
for _ in tqdm(range(steps), "moons"):
    points = (2 * torch.rand(1024, 2) - 1) * BOX
    optimizer.zero_grad()
    loss(network(points), (signed_distance(points) > 0).float()).backward()
    optimizer.step()
    schedule.step()

network.eval()
axis = torch.linspace(-BOX, BOX, 200)
grid = torch.cartesian_prod(axis, axis)
with torch.no_grad():
    learned, true = network(grid), signed_distance(grid)
error = (learned - true).abs()
agreement = ((learned > 0) == (true > 0)).float().mean().item()
print(f"signs right: {agreement:.1%}; |f − distance|: {error.mean():.4f} on average, {error.max():.4f} at worst")
assert orthogonium.lipschitz_bound(network, (2,)).value < 1.0001
assert agreement > (0.9 if QUICK else 0.97) and error.mean() < (0.5 if QUICK else 0.05)

# %% [markdown]
# A step of length $|f(x)|$ cannot cross the border that the network has drawn, whatever its direction. That holds
# trained or not, and is how renderers march along rays.

# %%
angle = 2 * math.pi * torch.rand(len(grid))
step = learned.abs()[:, None] * torch.stack([angle.cos(), angle.sin()], 1)
with torch.no_grad():
    assert (network(grid + 0.999 * step) * learned.sign() >= -1e-5).all()


# %% [markdown]
# ## One class of digits
#
# Only zeros are seen in training. What they are held against is made by the network itself: noise, moved along the
# gradient to where the network sees the border. The border closes in on the zeros, as far as the hinge lets it. A
# perturbation of length ε moves no score by more than ε. So if each zero loses ε and each other digit gains ε, the
# area under the ROC curve that is left is *certified*: no attack can do worse.


# %%
def hunted(network: nn.Module, count: int) -> Tensor:
    """Noise, moved by a few of Newton's steps (at most a fixed length) to the border that the network draws."""
    x = torch.rand(count, 64)
    for _ in range(8):
        x.requires_grad_()
        value = network(x)
        (slope,) = torch.autograd.grad(value.sum(), x)
        length = (-value.detach() * torch.rand(count)).clamp(0, 1)[:, None]
        x = (x.detach() + length * nn.functional.normalize(slope)).clamp(0, 1)
    return x


images = load_dataset("digits")
train = images.train.pixels.flatten(1)[images.train.labels == 0]
test, normal = images.test.pixels.flatten(1), images.test.labels == 0
detector = make_network(64, 128, 2)
steps = 40 if QUICK else 800
optimizer = torch.optim.Adam(detector.parameters(), lr=3e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
loss = HKRLoss(alpha=0.98, min_margin=0.5)
labels = torch.cat([torch.ones(128), torch.zeros(128)])
for _ in tqdm(range(steps), "zeros"):
    zeros = train[torch.randint(len(train), (128,))]
    with orthogonium.build_once(detector):  # nine passes, one build
        other = hunted(detector, 128)
        optimizer.zero_grad()
        loss(detector(torch.cat([zeros, other])), labels).backward()
    optimizer.step()
    schedule.step()
detector.eval()


def attacked(x: Tensor, direction: Tensor, eps: float) -> Tensor:
    """Points at distance ≤ ε whose score has moved along `direction` (±1) as far as 20 steps of ascent find."""
    point = x
    for _ in range(20):
        point = point.detach().requires_grad_()
        (slope,) = torch.autograd.grad((direction * detector(point)).sum(), point)
        moved = point.detach() + eps / 5 * nn.functional.normalize(slope) - x
        point = x + moved * (eps / moved.norm(dim=1, keepdim=True).clamp_min(1e-9)).clamp(max=1)
    return point.detach()


radii = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
certified, under_attack = [], []
with torch.no_grad():
    scores = detector(test)
worse = torch.where(normal, -1.0, 1.0)
for eps in radii:
    certified.append(roc_auc_score(normal, scores + worse * eps))
    found = attacked(test, worse, eps)
    with torch.no_grad():
        moved = detector(found)
    assert ((moved - scores).abs() <= 1.0001 * eps + 1e-5).all()
    under_attack.append(roc_auc_score(normal, moved))
    assert under_attack[-1] >= certified[-1] - 1e-9
print("ε              " + "".join(f"{e:7.2f}" for e in radii))
print("certified AUROC" + "".join(f"{a:7.3f}" for a in certified))
print("under attack   " + "".join(f"{a:7.3f}" for a in under_attack))
assert certified[0] > (0.7 if QUICK else 0.95)

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
for panel, heights, name in ((left, true, "The signed distance"), (middle, learned, "What HKR has learned")):
    field = heights.reshape(200, 200).T
    panel.contourf(axis, axis, field, 20, cmap="RdBu_r", vmin=-2, vmax=2)
    panel.contour(axis, axis, field, [-1.5, -1, -0.5, 0.1], colors="0.4", linewidths=0.6)
    panel.contour(axis, axis, field, [0.0], colors="k")
    panel.set(title=name, aspect="equal")
middle.set_title(f"What HKR has learned: error {error.mean():.3f}")
right.plot(radii, under_attack, "o-", label="under attack")
right.plot(radii, certified, "s-", label="certified")
right.set(title="Zeros against all other digits", xlabel="perturbation ε (l2)", ylabel="AUROC", ylim=(0, 1.02))
right.legend(loc="lower left")
figure.savefig("signed_distance.png", dpi=80)
