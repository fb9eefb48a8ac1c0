# %% [markdown]
# # A controller with a bounded gain: stable whatever the delay
#
# Three masses in a row, held by springs and weak dampers, are pushed about by gusts. A network reads their velocities
# and answers with forces. Trained in a simulation, networks do that well. But what if the real loop has a delay that
# the simulation has not?
#
# The *small-gain theorem* needs no model of that. If the plant amplifies signals by at most $g$ and the controller by
# at most $\gamma$, with $\gamma g < 1$, the loop is stable and amplifies gusts by at most $g / (1 - \gamma g)$. A
# delay changes neither number. So we take a network whose Lipschitz constant *is* γ: `LBDN` (Wang & Manchester 2023).

# %%
import math
import os

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from tqdm import tqdm

import orthogonium
from orthogonium.layers import LBDN

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)
F64 = {"dtype": torch.float64}

# %% [markdown]
# ## The plant and its gain
#
# State: positions and velocities. Forces are constant during a tick of 0.1 s, so that the matrix exponential gives
# the motion exactly. The gain is the largest singular value of the transfer function over all frequencies. A grid of
# frequencies finds it; between two grid points it can grow by at most half their distance times the slope, which the
# impulse response bounds: so the gain is an upper bound, not an estimate.

# %%
MASSES, DAMPING, STIFFNESS, TICK = 3, 0.3, 2.0, 0.1
springs = STIFFNESS * (
    2 * torch.eye(3, **F64) - torch.diag(torch.ones(2, **F64), 1) - torch.diag(torch.ones(2, **F64), -1)
)
nothing, one = torch.zeros(3, 3, **F64), torch.eye(3, **F64)
motion = torch.cat([torch.cat([nothing, one], 1), torch.cat([-springs, -DAMPING * one], 1)])
with_force = torch.zeros(9, 9, **F64)
with_force[:6, :6], with_force[3:6, 6:] = motion, one
tick = torch.linalg.matrix_exp(TICK * with_force)
A, B = tick[:6, :6], tick[:6, 6:]
C = torch.cat([nothing, one], 1)  # velocities are measured

slope, power = 0.0, B
for k in range(1, 4000):
    slope += k * float(torch.linalg.matrix_norm(C @ power, 2))
    power = A @ power
assert torch.linalg.matrix_norm(power, 2) < 1e-12  # the rest of the impulse response does not count
points = 2**12 if QUICK else 2**16
turns = torch.exp(1j * math.pi * torch.arange(points + 1, **F64) / points)
transfer = C.to(torch.complex128) @ torch.linalg.solve(
    turns[:, None, None] * torch.eye(6) - A, B.to(torch.complex128).expand(points + 1, 6, 3)
)
on_grid = torch.linalg.matrix_norm(transfer, 2)
PLANT = float(on_grid.max()) + math.pi / points / 2 * slope
print(f"gain of the plant: {on_grid.max():.4f} on the grid, at most {PLANT:.4f} in between")


# %% [markdown]
# ## Training
#
# A differentiable simulation without delay; gusts are random. The cost is the energy of the motion plus a price of
# forces. Three controllers learn: two of bounded gain, and an ordinary network.


# %%
def simulate(controller: nn.Module | None, gusts: Tensor, delay: int = 0) -> tuple[Tensor, Tensor]:
    """Velocities and forces, (ticks, n, 3) as the gusts; the controller sees velocities `delay` ticks late."""
    state, seen, forces = torch.zeros(gusts.shape[1], 6, **F64), [], []
    for tick, gust in enumerate(gusts.unbind(0)):
        seen.append(state @ C.T)
        late = seen[tick - delay] if tick >= delay else torch.zeros_like(gust)
        forces.append(controller(late) if controller is not None else torch.zeros_like(gust))
        state = state @ A.T + (gust + forces[-1]) @ B.T
    return torch.stack(seen), torch.stack(forces)


def draw(ticks: int, count: int) -> Tensor:
    """Gusts that last for a while."""
    noise = torch.randn(ticks + 9, count, 3, **F64)
    return noise.unfold(0, 10, 1).mean(-1) * 3


def cost(velocities: Tensor, forces: Tensor) -> Tensor:
    """The mean over time and samples."""
    return velocities.square().sum(2).mean() + 0.02 * forces.square().sum(2).mean()


def train(controller: nn.Module, steps: int, name: str) -> None:
    """Minimise the cost by gradients through the simulation."""
    optimizer = torch.optim.Adam(controller.parameters(), lr=1e-2)
    for _ in (bar := tqdm(range(steps), name)):
        optimizer.zero_grad()
        with orthogonium.build_once(controller):  # one build for all ticks
            value = cost(*simulate(controller, draw(30 if QUICK else 100, 16)))
            value.backward()
        optimizer.step()
        bar.set_postfix(cost=f"{value.item():.3f}")
    controller.eval()


shares = {"γ g = 0.5": 0.5, "γ g = 0.9": 0.9}
controllers: dict[str, nn.Module] = {
    name: LBDN(3, [32, 32], 3, lipschitz=share / PLANT, activation="tanh", **F64) for name, share in shares.items()
}
ordinary = nn.Sequential(
    nn.Linear(3, 32, **F64), nn.Tanh(), nn.Linear(32, 32, **F64), nn.Tanh(), nn.Linear(32, 3, **F64)
)
controllers["ordinary"] = ordinary
for name, controller in controllers.items():
    train(controller, 10 if QUICK else 100, name)

# %% [markdown]
# ## Certificate against measurement
#
# The gain is that of differences: two gusts that differ by $d$ give motions that differ by at most the certificate
# times $\|d\|$. The worst $d$ is searched by power iteration through the simulation, for loops without a delay and
# with delays that training never saw.


# %%
def measured_gain(controller: nn.Module | None, delay: int) -> float:
    """The largest ‖Δvelocities‖ / ‖Δgusts‖ that ascent finds."""
    base = draw(60 if QUICK else 200, 4)
    reference = simulate(controller, base, delay)[0].detach()
    change, best = torch.randn_like(base), 0.0
    for _ in range(4 if QUICK else 15):
        change = (change / change.square().sum((0, 2), keepdim=True).sqrt()).detach().requires_grad_()
        moved = (simulate(controller, base + change, delay)[0] - reference).square().sum((0, 2)).sqrt()
        (change_slope,) = torch.autograd.grad(moved.sum(), change)
        best, change = max(best, float(moved.detach().max())), change_slope
    return best


delays = [0, 5] if QUICK else [0, 2, 5, 10]
gusts = draw(100 if QUICK else 400, 16)
rows, courses = {}, {}
for name, controller in controllers.items():
    bound = orthogonium.lipschitz_bound(controller, (3,)).value
    certificate = PLANT / (1 - bound * PLANT) if bound * PLANT < 1 else math.inf
    gains = [measured_gain(controller, delay) for delay in delays]
    with torch.no_grad():
        costs = [float(cost(*simulate(controller, gusts, delay))) for delay in delays]
        courses[name] = simulate(controller, gusts[:, :1], delays[-1])[0][:, 0, 1]
    rows[name] = (bound, certificate, gains, costs)
    print(f"{name:>9}: Lipschitz ≤ {bound:.3f}, certified gain ≤ {certificate:.2f}; by delay of", end=" ")
    print("; ".join(f"{d}: gain {g:.2f}, cost {c:.2f}" for d, g, c in zip(delays, gains, costs, strict=True)))
    assert max(gains) <= certificate
with torch.no_grad():
    idle = float(cost(*simulate(None, gusts)))
print(f"without a controller: cost {idle:.2f}")
for name, share in shares.items():
    assert rows[name][0] <= 1.0001 * share / PLANT and rows[name][1] < math.inf
    assert QUICK or rows[name][3][0] < idle  # it helps
assert rows["ordinary"][1] == math.inf

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8), layout="constrained")
for k, (name, (_, certificate, gains, _)) in enumerate(rows.items()):
    left.semilogy(delays, gains, f"C{k}o-", label=f"{name}: measured")
    if certificate < math.inf:
        left.axhline(certificate, color=f"C{k}", ls="--", label=f"{name}: certified")
    right.plot(TICK * torch.arange(len(gusts)), courses[name], f"C{k}", label=name, lw=1, zorder=3 - k)
left.set(title="Gain from gusts to velocities", xlabel="delay (ticks)")
left.legend(fontsize=8)
right.set(title=f"Velocity of the middle mass, delay {delays[-1]}", xlabel="seconds")
right.legend()
figure.savefig("bounded_controller.png", dpi=80)
