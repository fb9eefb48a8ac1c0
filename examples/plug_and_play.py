# %% [markdown]
# # A 1-Lipschitz U-Net restores images, and provably settles down
#
# *Plug-and-play* restoration alternates two steps: go towards images that explain the blurred measurement, then apply
# a denoiser. With an ordinary network as the denoiser nothing says that this ever settles. With $D = \tfrac12(I + R)$
# and a 1-Lipschitz network $R$ it must: then $D$ is *averaged* (firmly nonexpansive), so is the other step, and in the
# iteration $x \leftarrow D(x - A^\top(Ax - y))$ no step is longer than the one before. If there is a fixed point, the
# squares of all steps have a finite sum, and the iteration converges to one.
#
# The second gain is a bound that needs no statistics: however a measurement is disturbed, the denoised image moves no
# further than the disturbance.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.layers import AdaptiveOrthoConv2d, AdaptiveOrthoConvTranspose2d, MaxMin, UnitConcat

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)
SIZE = 32

# %% [markdown]
# ## Images
#
# Disks and boxes of random grey values on top of each other: generated, so there are as many as we like.

# %%
row, column = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")


def draw(count: int) -> Tensor:
    """Images (count, 1, SIZE, SIZE) with values in [0, 1]."""
    images = torch.rand(count, 1, 1, 1).expand(-1, 1, SIZE, SIZE).clone()
    for k in range(6):
        center, radius = torch.rand(2, count, 1, 1, 1) * SIZE, (torch.rand(2, count, 1, 1, 1) * 8 + 3)
        across, down = (column - center[0]).abs() / radius[0], (row - center[1]).abs() / radius[1]
        inside = across**2 + down**2 < 1 if k % 2 else torch.maximum(across, down) < 1
        images = torch.where(inside, torch.rand(count, 1, 1, 1), images)
    return images


# %% [markdown]
# ## The U-Net
#
# Orthogonal convolutions go down (stride 2) and up (transposed), `UnitConcat` joins what the two sides say, with
# weights whose squares sum up to 1. The ordinary U-Net beside it has the same shape, with torch's layers, ReLU and a
# plain concatenation.


# %%
class UNet(nn.Module):
    """`D = ½(I + R)`, with a network R of two levels that is 1-Lipschitz if its parts are."""

    def __init__(self, lipschitz: bool, width: int = 16) -> None:
        super().__init__()
        conv = AdaptiveOrthoConv2d if lipschitz else nn.Conv2d
        up = AdaptiveOrthoConvTranspose2d if lipschitz else nn.ConvTranspose2d
        act = MaxMin if lipschitz else nn.ReLU
        same = {"kernel_size": 3, "padding": 1, "padding_mode": "circular"}
        w = width
        self.first = nn.Sequential(conv(1, w, **same), act(), conv(w, w, **same), act())
        self.inner = nn.Sequential(
            conv(w, 2 * w, kernel_size=2, stride=2), act(),
            conv(2 * w, 2 * w, **same), act(),
            conv(2 * w, 2 * w, **same), act(),
            up(2 * w, w, kernel_size=2, stride=2), act(),
        )  # fmt: skip
        self.join = UnitConcat(2) if lipschitz else None
        self.last = nn.Sequential(conv(2 * w, w, **same), act(), conv(w, 1, **same))

    def forward(self, x: Tensor) -> Tensor:
        """Same shape as `x`, (n, 1, height, width)."""
        fine = self.first(x)
        coarse = self.inner(fine)
        joined = self.join(fine, coarse) if self.join is not None else torch.cat([fine, coarse], 1)
        return (x + self.last(joined)) / 2


NOISE = 0.1


def train(denoiser: nn.Module, steps: int, name: str) -> None:
    """Remove Gaussian noise of standard deviation `NOISE`."""
    optimizer = torch.optim.Adam(denoiser.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in (bar := tqdm(range(steps), name)):
        images = draw(16)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(denoiser(images + NOISE * torch.randn_like(images)), images)
        loss.backward()
        optimizer.step()
        schedule.step()
        bar.set_postfix(error=f"{loss.item():.4f}")
    denoiser.eval()


def psnr(x: Tensor, truth: Tensor) -> float:
    """In decibels, the mean over images."""
    return float((-10 * (x - truth).square().flatten(1).mean(1).log10()).mean())


bounded, ordinary = UNet(lipschitz=True), UNet(lipschitz=False)
steps = 15 if QUICK else 500
train(bounded, steps, "1-Lipschitz U-Net")
train(ordinary, steps, "ordinary U-Net")
test = draw(4 if QUICK else 32)
noisy = test + NOISE * torch.randn_like(test)
with torch.no_grad():
    quality = psnr(noisy, test), psnr(bounded(noisy), test), psnr(ordinary(noisy), test)
print("noisy {:.1f} dB, 1-Lipschitz {:.1f} dB, ordinary {:.1f} dB".format(*quality))
assert quality[1] > quality[0] + (0 if QUICK else 2)

# %% [markdown]
# ## The certified bound
#
# Proved from the operators that run; then attacked: disturbances of length 1 that move the output as far as gradient
# ascent finds.

# %%
certificate = orthogonium.lipschitz_bound(bounded, (1, SIZE, SIZE)).value


def farthest(denoiser: nn.Module, x: Tensor) -> float:
    """The longest way that a disturbance of length 1 was found to move an output."""
    disturbance = torch.randn_like(x)
    for _ in range(5 if QUICK else 40):
        disturbance = disturbance / disturbance.flatten(1).norm(dim=1)[:, None, None, None]
        disturbance = disturbance.detach().requires_grad_()
        moved = (denoiser(x + disturbance) - denoiser(x).detach()).flatten(1).norm(dim=1)
        (slope,) = torch.autograd.grad(moved.sum(), disturbance)
        disturbance = disturbance + 10 * slope
    return float(moved.detach().max())


reached, reached_ordinary = farthest(bounded, test), farthest(ordinary, test)
print(
    f"a disturbance of length 1 moves the output by: ≤ {certificate:.5f} (certified), {reached:.3f} (found); ", end=""
)
print(f"ordinary U-Net: {reached_ordinary:.3f} (found)")
assert reached <= certificate <= 1.0001

# %% [markdown]
# ## Plug and play
#
# Blur with a Gaussian (circular, so that its norm is 1 at frequency 0) and add a little noise. `A` is its own
# transpose.

# %%
distance = torch.minimum(torch.arange(SIZE), SIZE - torch.arange(SIZE)).double()
kernel = torch.exp(-(distance[:, None] ** 2 + distance**2) / (2 * 1.5**2))
spectrum = torch.fft.rfft2(kernel / kernel.sum()).real.float()


def blur(x: Tensor) -> Tensor:
    """The operator A = Aᵀ, with norm 1."""
    return torch.fft.irfft2(torch.fft.rfft2(x) * spectrum, s=(SIZE, SIZE))


SHARE = 0.1  # of the denoiser in a step: the less, the more the measurement counts; as averaged as the denoiser is


def restore(denoiser: nn.Module, y: Tensor, iterations: int, name: str) -> tuple[Tensor, Tensor]:
    """The last image, and by how much each step moved each image, (iterations, n)."""
    x, residuals = y, []
    with torch.no_grad():
        for _ in tqdm(range(iterations), name):
            step = x - blur(blur(x) - y)
            following = (1 - SHARE) * step + SHARE * denoiser(step)
            residuals.append((following - x).flatten(1).norm(dim=1))
            x = following
    return x, torch.stack(residuals)


truth = test[:8]
y = blur(truth) + 0.01 * torch.randn_like(truth)
iterations = 20 if QUICK else 800
restored, residuals = restore(bounded, y, iterations, "1-Lipschitz")
restored_ordinary, residuals_ordinary = restore(ordinary, y, iterations, "ordinary")
print(f"blurred {psnr(y, truth):.1f} dB, restored {psnr(restored, truth):.1f} dB; ", end="")
print(f"by the ordinary U-Net {psnr(restored_ordinary, truth):.1f} dB")
print(f"last step: {residuals[-1].max():.1e}; of the ordinary U-Net: {residuals_ordinary[-1].max():.1e}")
# No step is longer than the one before, for any image: a theorem, up to the rounding of 1024 pixels.
assert (residuals[1:] <= residuals[:-1] * certificate + 1e-4).all()
# Of a 2/3-averaged operator, squares of steps sum up to at most twice the squared way to the fixed point.
way = (restored - y).flatten(1).norm(dim=1)  # for which the last image stands
assert (residuals.square().sum(0) <= 2.1 * way.square()).all()
assert QUICK or psnr(restored, truth) > psnr(y, truth) + 2

# %%
figure = plt.figure(figsize=(12, 4), layout="constrained")
pictures, curve = figure.subfigures(1, 2, width_ratios=(1.7, 1))
columns = (
    ("clean", test),
    ("noisy", noisy),
    ("denoised", bounded(noisy).detach()),
    ("blurred", y),
    ("restored", restored),
)
for k, panel in enumerate(pictures.subplots(2, len(columns)).flat):
    name, images = columns[k % len(columns)]
    panel.imshow(images[k // len(columns), 0].numpy(), cmap="gray", vmin=0, vmax=1)
    panel.set(xticks=[], yticks=[], title=name if k < len(columns) else "")
panel = curve.subplots()
panel.loglog(residuals_ordinary.amax(1), "C3", label="ordinary U-Net")
panel.loglog(residuals.amax(1), "C0", label="1-Lipschitz U-Net")
panel.set(title="Plug and play: the longest step", xlabel="iteration", ylabel="‖x′ − x‖")
panel.legend()
figure.savefig("plug_and_play.png", dpi=80)
