# %% [markdown]
# # An orthogonal recurrent network remembers over 500 steps
#
# A recurrent network multiplies its state by the same matrix at each step, and gradients by its transpose. Over 500
# steps they vanish or explode, unless the matrix is orthogonal: then they keep their length exactly. The *copy task*
# shows the difference. The network reads ten symbols, then nothing for 480 steps, then a signal, and has to repeat
# the ten symbols (Hochreiter & Schmidhuber 1997; Arjovsky et al. 2016).
#
# In each optimizer step the matrix is applied 500 times and built once: `build_once`.

# %%
import math
import os
import time

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from tqdm import tqdm

from orthogonium import build_once
from orthogonium.layers import OrthoLinear

QUICK = os.environ.get("ORTHOGONIUM_EXAMPLES") == "quick"  # the small version that the tests run
torch.manual_seed(0)

# %% [markdown]
# ## The task

# %%
SYMBOLS, COPIED, LENGTH = (4, 3, 100) if QUICK else (8, 10, 500)
BLANK, SIGNAL = SYMBOLS, SYMBOLS + 1


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Sequences and what is to be said at each step, (LENGTH, count) both."""
    symbols = torch.randint(SYMBOLS, (COPIED, count))
    given, wanted = torch.full((2, LENGTH, count), BLANK)
    given[:COPIED], given[-COPIED], wanted[-COPIED:] = symbols, SIGNAL, symbols
    return given, wanted


# Who says "blank" until the signal and then guesses has this loss; nothing is lower without a memory.
GUESSING = COPIED * math.log(SYMBOLS) / LENGTH


# %% [markdown]
# ## Two networks
#
# They differ in their recurrent matrix and their activation: orthogonal and none (the state is turned, and everything
# stays in it), against torch's usual matrix with tanh.


# %%
class Recurrent(nn.Module):
    """`h ← act(W h + U x)`, read out by a linear layer."""

    def __init__(self, turn: nn.Module, activation: nn.Module, width: int) -> None:
        super().__init__()
        self.turn, self.activation, self.width = turn, activation, width
        self.read, self.say = nn.Linear(SYMBOLS + 2, width), nn.Linear(width, SYMBOLS + 1)

    def forward(self, given: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits (LENGTH, count, SYMBOLS + 1), and the states."""
        inputs = self.read(nn.functional.one_hot(given, SYMBOLS + 2).float())
        state, states = torch.zeros(given.shape[1], self.width), []
        for x in inputs.unbind(0):
            state = self.activation(self.turn(state) + x)
            states.append(state)
        return self.say(torch.stack(states)), states


def train(network: Recurrent, lr: float, steps: int, name: str) -> list[float]:
    """The course of the loss; `lr` is that of the recurrent matrix, whose errors are raised to the power of 500."""
    own = [p for part in (network.read, network.say) for p in part.parameters()]
    optimizer = torch.optim.Adam([{"params": own}, {"params": network.turn.parameters(), "lr": lr}], lr=1e-2)
    losses = []
    for _ in (bar := tqdm(range(steps), name)):
        given, wanted = draw(32)
        optimizer.zero_grad()
        with build_once(network):
            loss = nn.functional.cross_entropy(network(given)[0].flatten(0, 1), wanted.flatten())
            loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        bar.set_postfix(loss=f"{loss.item():.4f}", guessing=f"{GUESSING:.4f}")
    return losses


def gradient_norms(network: Recurrent) -> Tensor:
    """Of the loss of the last symbol, with respect to the state at each step."""
    given, wanted = draw(32)
    logits, states = network(given)
    loss = nn.functional.cross_entropy(logits[-1], wanted[-1])
    return torch.stack([g.double().norm() for g in torch.autograd.grad(loss, states)])


width, steps = (64, 60) if QUICK else (256, 120)
orthogonal = Recurrent(OrthoLinear(width, width, bias=False), nn.Identity(), width)
plain = Recurrent(nn.Linear(width, width, bias=False), nn.Tanh(), width)
norms = {"orthogonal": gradient_norms(orthogonal), "plain": gradient_norms(plain)}
losses = {"orthogonal": train(orthogonal, 1e-4, steps, "orthogonal"), "plain": train(plain, 1e-3, steps, "plain")}

# %% [markdown]
# ## What came of it

# %%
accuracy = {}
with torch.no_grad():
    given, wanted = draw(200)
    for name, network in (("orthogonal", orthogonal), ("plain", plain)):
        said = network.eval()(given)[0].argmax(-1)
        accuracy[name] = (said[-COPIED:] == wanted[-COPIED:]).float().mean().item()
        ratio = (norms[name][0] / norms[name][-1]).item()
        print(f"{name}: {accuracy[name]:.1%} of the symbols right, loss {losses[name][-1]:.4f}; ", end="")
        print(f"gradient of the first state / of the last: {ratio:.6g}")
kept = norms["orthogonal"] / norms["orthogonal"][-1]
assert (kept - 1).abs().max() < 1e-3  # an orthogonal matrix keeps lengths, 500 times over
assert norms["plain"][0] < 1e-6 * norms["plain"][-1]
assert accuracy["orthogonal"] > 0.95 and losses["orthogonal"][-1] < 0.2 * GUESSING
assert accuracy["plain"] < 0.6

# %% [markdown]
# And what `build_once` saves: one pass in which each step would build the matrix anew, against one build.

# %%
seconds = {}
for name in ("one build", f"{LENGTH} builds"):
    given, wanted = draw(32)
    orthogonal.train().zero_grad()
    start = time.perf_counter()
    if name == "one build":
        with build_once(orthogonal):
            nn.functional.cross_entropy(orthogonal(given)[0].flatten(0, 1), wanted.flatten()).backward()
    else:
        nn.functional.cross_entropy(orthogonal(given)[0].flatten(0, 1), wanted.flatten()).backward()
    seconds[name] = time.perf_counter() - start
print("forward and backward:", ", ".join(f"{name} {s:.2f} s" for name, s in seconds.items()))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name in losses:
    left.semilogy(losses[name], label=f"{name}: {accuracy[name]:.0%} of the symbols right")
    right.semilogy(norms[name], label=name)
left.axhline(GUESSING, color="0.5", ls="--", label="guessing")
left.set(title=f"Copy {COPIED} symbols after {LENGTH} steps", xlabel="optimizer step", ylabel="loss", ylim=(1e-7, 20))
left.legend(loc="lower left")
right.set(title="Norm of the gradient of the last answer", xlabel="with respect to the state at step", ylim=(1e-38, 10))
right.legend()
figure.savefig("orthogonal_rnn.png", dpi=80)
