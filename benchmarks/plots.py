"""Figures of `benchmarks/README.md`, drawn from its tables as they stand: `.venv/bin/python -m benchmarks.plots`.

Transparent, in colours that are readable on white and on black, and with nothing in them that changes without a number.
"""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).with_name("README.md")
FOLDER = README.with_name("figures")
GREY = "#8a8a8a"
LIGHT, DARK = 0.35, 0.78  # of the blues of matplotlib
Bars = dict[str, dict[str, float]]  # what is compared → its cases, each with a ratio


def rows(name: str) -> list[dict[str, str]]:
    """The rows of a table of the README, by the names of its columns."""
    text = (
        README.read_text(encoding="utf-8").partition(f"<!-- table {name} -->")[2].partition(f"<!-- end {name} -->")[0]
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(header, cells, strict=True)) for cells in body]


def ratio(cell: str) -> float:
    """The number in `4.2×`, or in `CAYLEY: 0.81×, behind: …`."""
    found = re.search(r"([\d.]+)×", cell)
    if found is None:
        raise ValueError(f"There is no ratio in {cell!r}.")
    return float(found[1])


def kernels() -> Bars:
    """How many times faster than in 0.0.4 kernels are built."""
    bars: Bars = {"AOC": {row["3×3"].partition(" ")[0]: ratio(row["faster by"]) for row in rows("kernel_build")}}
    for row in rows("methods_build"):
        bars.setdefault(row["kernel, one thread"], {})[row["channels"]] = ratio(row["ratio"])
    return bars


def network() -> Bars:
    """Time of a network relative to that of `nn.Conv2d`."""
    bars: Bars = {}
    for row in rows("network"):
        bars.setdefault(f"{row['']}, batch {row['batch']}", {})[row["padding"]] = float(row["ratio"])
    return bars


def matrices() -> Bars:
    """How many times faster than others matrices are orthogonalized."""
    bars: Bars = {}
    for row in rows("orthogonalize"):
        if cell := row["faster by"]:
            own, colon, _ = cell.partition(": ")
            beside_peer = bool(colon) and own in {other["method"] for other in rows("orthogonalize")}
            label = f"{own} / {row['method']}" if beside_peer else f"{row['method']} / 0.0.4"
            bars.setdefault(label, {})[row["matrices"].rpartition(" ")[2]] = ratio(cell)
    return bars


def number(label: str) -> int:
    """The first number in a label, to sort by; 0 if there is none."""
    found = re.search(r"\d+", label)
    return int(found[0]) if found else 0


def draw(name: str, bars: Bars, xlabel: str, of: str, logarithmic: bool) -> None:
    """Horizontal bars, those of one label together; on a logarithmic axis they start at 1."""
    from matplotlib import pyplot as plt
    from matplotlib.ticker import FuncFormatter, NullLocator

    cases = sorted({case for ratios in bars.values() for case in ratios}, key=lambda case: (number(case), case))
    shades = [LIGHT + (DARK - LIGHT) * i / max(len(cases) - 1, 1) for i in range(len(cases))]
    colours = dict(zip(cases, plt.get_cmap("Blues")(shades), strict=True))
    height = 0.17 * sum(len(ratios) + 0.8 for ratios in bars.values()) + 1.0
    figure, axes = plt.subplots(figsize=(7.2, height), layout="constrained")
    start, y, ticks = 1.0 if logarithmic else 0.0, 0.0, []
    for ratios in bars.values():
        ticks.append(y + (len(ratios) - 1) / 2)
        for case in sorted(ratios, key=cases.index):
            value = ratios[case]
            axes.barh(y, value - start, 0.86, left=start, color=colours[case])
            side = -1 if value < start else 1
            end = value if logarithmic else max(value, 1.0)  # clear of the line at 1
            shown = f"{value:.1f}×" if logarithmic and value >= 1 else f"{value:.2f}×"
            place = {"xytext": (3 * side, 0), "textcoords": "offset points", "va": "center"}
            axes.annotate(shown, (end, y), ha="left" if side > 0 else "right", fontsize=8, **place)
            y += 1
        y += 0.8
    axes.axvline(1.0, color=GREY, lw=1)
    if logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}×"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.margins(x=0.12, y=0.01)
    axes.set_yticks(ticks, list(bars))
    axes.invert_yaxis()
    axes.set_xlabel(xlabel)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colours[case]) for case in cases]
    figure.legend(handles, cases, title=of, loc="outside upper right", ncols=len(cases), frameon=False, fontsize=9)
    figure.savefig(FOLDER / f"{name}.svg", transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main() -> None:
    """Draw all figures."""
    import matplotlib

    matplotlib.use("agg")
    plain = {"text.color": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY}
    svg = {"svg.hashsalt": "orthogonium", "svg.fonttype": "none"}
    FOLDER.mkdir(exist_ok=True)
    with matplotlib.rc_context({**plain, **svg, "axes.edgecolor": GREY, "font.size": 10}):
        draw("kernels", kernels(), "times as fast as 0.0.4", "channels", logarithmic=True)
        draw("network", network(), "time relative to nn.Conv2d: below 1 is faster", "padding", logarithmic=False)
        draw("matrices", matrices(), "times as fast as what follows the stroke", "matrices", logarithmic=True)


if __name__ == "__main__":
    main()
