"""Elapsed training time and requests to stop, on which all processes agree.

Note [One clock for all processes]
If `minutes` limits training, the learning rate follows the time, and checkpoints are written together: processes that
read their own clocks would take steps of different sizes and wait for each other forever. So the time is read in one
place, after each optimizer step, and all processes take the largest value; the same reduction carries any signal that
one of them received.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Training was asked to stop by a signal, and has saved its state."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class Clock:
    """Seconds of training, continued across restarts. Note [One clock for all processes]."""

    def __init__(self) -> None:
        self.elapsed = 0.0  # agreed on at the last tick
        self.signum = 0  # of a signal some process received, agreed on at the last tick
        self._received = 0
        self._origin = time.monotonic()

    def start(self) -> None:
        """Count from now on, on top of the time already elapsed."""
        self._origin = time.monotonic() - self.elapsed

    def tick(self, device: torch.device) -> None:
        """Read the time; a collective operation if there are several processes."""
        elapsed, received = time.monotonic() - self._origin, self._received
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            # milliseconds as integers: exact, and every backend has them
            state = torch.tensor([round(1000 * elapsed), received], dtype=torch.long, device=device)
            dist.all_reduce(state, op=dist.ReduceOp.MAX)
            milliseconds, received = state.tolist()
            elapsed = milliseconds / 1000
        self.elapsed, self.signum = elapsed, received

    def listen(self) -> None:
        """Treat the first SIGINT or SIGTERM as a request to stop after the step; the next one has its usual effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        previous: dict[int, Any] = {number: signal.getsignal(number) for number in SIGNALS}

        def note(signum: int, frame: FrameType | None) -> None:
            self._received = signum
            for number, handler in previous.items():
                signal.signal(number, handler)

        for number in SIGNALS:
            signal.signal(number, note)
