# %% [markdown]
# # Certified classification of handwritten digits
#
# How much must an image change before a network changes its mind? For an ordinary network a change that nobody sees
# may be enough. The logits of a 1-Lipschitz network move by no more than the image does. So if the best logit leads
# the next by a margin $m$, no change shorter than $m/\sqrt2$ can flip the decision: that is a *certificate*.
#
# Two networks of the same shape are trained on the digits of scikit-learn (8×8 pixels in [0, 1]): one of orthogonal
# layers, one of torch's. Then both are certified, and attacked.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn
from tqdm import tqdm

import orthogonium
from orthogonium.attacks import attack, break_certificates, empirical_accuracy
from orthogonium.data import load_dataset
from orthogonium.layers import AdaptiveOrthoConv2d, MaxMin, OrthoLinear, freeze
from orthogonium.losses import LossXent

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)
digits = load_dataset("digits")

# %% [markdown]
# ## Two networks
#
# `AdaptiveOrthoConv2d` and `OrthoLinear` are called as their torch counterparts. `MaxMin` takes the place of ReLU,
# which would shorten gradients. The loss asks for a margin: logits that cannot grow without limit need an offset and
# a temperature.


# %%
def make(conv: type[nn.Conv2d], linear: type[nn.Linear], activation: type[nn.Module]) -> nn.Sequential:
    """Two convolutions, the second of which halves the image, and two dense layers."""
    return nn.Sequential(
        conv(1, 32, 3, padding=1, padding_mode="circular"), activation(),
        conv(32, 64, 2, stride=2), activation(),
        nn.Flatten(), linear(64 * 16, 128), activation(), linear(128, 10),
    )  # fmt: skip


def train(network: nn.Module, loss: nn.Module, lr: float, name: str) -> None:
    """Adam with a cosine schedule."""
    steps = 40 if QUICK else 500
    optimizer = torch.optim.Adam(network.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in (bar := tqdm(range(steps), name)):
        batch = torch.randint(len(digits.train.labels), (128,))
        optimizer.zero_grad()
        value = loss(network(digits.train.pixels[batch]), digits.train.labels[batch])
        value.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{value.item():.3f}")
    network.eval()


orthogonal = make(AdaptiveOrthoConv2d, OrthoLinear, MaxMin)
ordinary = make(nn.Conv2d, nn.Linear, nn.ReLU)
train(orthogonal, LossXent(10, offset=0.9, temperature=0.11), 1e-2, "orthogonal")
train(ordinary, nn.CrossEntropyLoss(), 1e-3, "ordinary")
orthogonal = freeze(orthogonal)  # a copy of plain layers: nothing is left to build in attacks

# %% [markdown]
# ## Certify
#
# `certify` proves a Lipschitz constant from the operators that run, deducts rounding from each margin, and divides.
# It does so for any network: that of the ordinary one is large, so that its certificates are worth little.

# %%
images, labels = digits.test.pixels, digits.test.labels
if QUICK:
    images, labels = images[:50], labels[:50]
radii = [0.0, 0.5] if QUICK else [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0]
half = radii.index(0.5)
certificates = {
    name: orthogonium.certify(network, [(images, labels)], eps=radii)
    for name, network in (("orthogonal", orthogonal), ("ordinary", ordinary))
}
print(certificates["orthogonal"])
print(f"\nLipschitz constant: {certificates['orthogonal'].bound.value:.5f}, ", end="")
print(f"of the ordinary network at most {certificates['ordinary'].bound.value:.1f}")

# %% [markdown]
# ## Attack
#
# An attack is the test of a certificate: it searches for images of another class, with all knowledge of the network.
# What it finds is an upper bound of the robust accuracy, what is certified is a lower one.

# %%
found = certificates["orthogonal"]
broken = break_certificates(orthogonal, images, labels, found.radii)
print(broken)
curves = {
    "orthogonal": empirical_accuracy(orthogonal, images, labels, radii).accuracy,
    "ordinary": empirical_accuracy(ordinary, images, labels, radii).accuracy,
}
for name, accuracy in curves.items():
    print(f"{name}: {accuracy[0]:.1%}; at ε = 0.5: {accuracy[half]:.1%} withstand, ", end="")
    print(f"{certificates[name].certified_accuracy[half]:.1%} are certified")
    assert all(c <= a for c, a in zip(certificates[name].certified_accuracy, accuracy, strict=True))
assert not broken.broken.any() and found.bound.value < 1.0001
assert found.accuracy > (0.8 if QUICK else 0.97) and found.certified_accuracy[half] > (0.3 if QUICK else 0.65)

# %%
figure = plt.figure(figsize=(12, 4), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))
panel = left.subplots()
for name, color in (("orthogonal", "C0"), ("ordinary", "C3")):
    panel.plot(radii, curves[name], f"{color}o-", label=f"{name}, under attack")
    panel.plot(radii, certificates[name].certified_accuracy, f"{color}s--", label=f"{name}, certified")
panel.set(title="Accuracy on held-out digits", xlabel="perturbation ε (l2)", ylim=(0, 1.02))
panel.legend()
sample = images[:6]
rows = [("image", sample, labels[:6])]
for name, network in (("ordinary", ordinary), ("orthogonal", orthogonal)):
    result = attack(network, (sample, labels[:6]), 3.0)
    rows.append((name, result.points, result.distances))
for k, panel in enumerate(right.subplots(3, 6).flat):
    name, pictures, numbers = rows[k // 6]
    panel.imshow(pictures[k % 6, 0].numpy(), cmap="gray_r", vmin=0, vmax=1)
    panel.set(xticks=[], yticks=[], ylabel=name if k % 6 == 0 else "")
    panel.set_title(f"{numbers[k % 6]:.2f}" if k >= 6 else f"{numbers[k]}", fontsize=9)
right.suptitle("The nearest image of another class that was found, and its distance")
figure.savefig("certified_digits.png", dpi=80)
