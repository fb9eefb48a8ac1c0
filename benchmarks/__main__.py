"""All tables of `benchmarks/README.md`, by one command: `make bench`, or `.venv/bin/python -m benchmarks [NAME …]`.

Each benchmark runs in a process of its own and prints its table, which replaces the one between its markers in the
README, with a line that says what it was measured on; at the end, the figures are drawn from the tables. With `--quick`
the tables are printed and README and figures are left alone: one heat, few rounds and small cases give times to look
at, not to keep. What the time (`--minutes`, by default 20, or 3) has not sufficed for is named at the end, and keeps
its old table. `benchmarks.cifar10`, an hour of training, is no part of it, nor are the benchmarks whose tables are in
other places (`launches`, `spectral_norms`) or nowhere (`spectral_bound`).
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from benchmarks import plots
from benchmarks.side_by_side import NOT_INSTALLED
from orthogonium.report.machine import processor

README = Path(__file__).with_name("README.md")
# In the order of their weight: those at the end are what a slow machine does not come to.
TABLES = (
    "kernel_build",
    "peers",
    "orthogonalize",
    "network",
    "methods_build",
    "whole_networks builds",
    "whole_networks recurrent",
    "whole_networks parts",
    "whole_networks shares",
    "whole_networks preset",
    "whole_networks residual",
    "ablation",
    "certify_cost",
    "sandwich_cost",
    "large_matrices",
)
# These take longer than a look.
NOT_QUICK = ("whole_networks residual", "whole_networks shares", "ablation", "sandwich_cost", "large_matrices")
QUICK = {"certify_cost": ["--images", "1000"]}


def marked(text: str, name: str, content: str) -> str:
    """The text with other content between the markers of a table."""
    begin, end = f"<!-- table {name} -->", f"<!-- end {name} -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{README} has no place for the table {name!r}: put {begin} and {end} there.")
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{begin}\n\n{content}\n\n{end}", text)


def run(name: str, extra: list[str], seconds: float) -> str | None:
    """What a benchmark prints; None if it is left out, having said why."""
    module, *arguments = name.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments, *extra]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=README.parents[1], start_new_session=True
    ) as process:
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # with the contestants, which are processes of their own
    if process.returncode == NOT_INSTALLED:
        print(f"{name} is left out: {printed.strip()}", flush=True)
        return None
    if process.returncode:
        raise SystemExit(f"{' '.join(command[1:])} failed with exit code {process.returncode}.")
    return printed.strip()


def main() -> None:
    """Run the benchmarks that were named, or all, and put their tables into the README."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TABLES)}")
    parser.add_argument("--quick", action="store_true", help="a look: print the tables, leave the README alone")
    parser.add_argument("--minutes", type=float, help="for all tables together; 20, or 3 with --quick")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in TABLES]
    if unknown:
        parser.error(f"there is no table {', '.join(unknown)}. Tables: {', '.join(TABLES)}")
    names = options.names or [name for name in TABLES if not (options.quick and name in NOT_QUICK)]
    deadline = time.monotonic() + 60 * (options.minutes or (3 if options.quick else 20))
    measured_on = (
        f"Measured on {os.cpu_count()} cores of {processor()}, torch {torch.__version__}, {time.strftime('%Y-%m-%d')}."
    )
    print(measured_on, flush=True)
    left_out = []
    for name in names:
        extra = ["--device", options.device, *(["--quick", *QUICK.get(name, [])] if options.quick else [])]
        begin = time.monotonic()
        printed = run(name, extra, max(deadline - begin, 0.01)) if begin < deadline else None
        if printed is None:
            left_out.append(name)
            continue
        print(f"\n{name} ({time.monotonic() - begin:.0f} s)\n\n{printed}", flush=True)
        if not options.quick:
            content = marked(README.read_text(encoding="utf-8"), name, f"{printed}\n\n{measured_on}")
            README.write_text(content, encoding="utf-8")
    if not options.quick:
        plots.main()
    if left_out:
        print(f"\nNot measured: {', '.join(left_out)}.")


if __name__ == "__main__":
    main()
