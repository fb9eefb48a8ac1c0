"""Which recipe certifies most CIFAR-10 in a given time: variants of a preset, judged on images held out of training.

Run with `.venv/bin/python -m benchmarks.recipe_search --root FOLDER --minutes 3 --out RESULTS`, and nothing else; then
again with more minutes and `--best 4`, which takes the best of the run before. The test data are not looked at. A
variant is what it changes, as in `loss_options.temperature=0.25 batch_size=256`; `--variants FILE` has one a line.
"""

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.side_by_side import in_process, table

PRESET = "cifar10-cpu-30min"
EPS = 36 / 255
VARIANTS = """
loss_options.temperature=0.25
loss_options.temperature=0.35
loss_options.offset=0.5
loss_options.offset=0.5 loss_options.temperature=0.25
loss="logit-annealing" loss_options={}
loss="emma" loss_options={"eps":0.5}
model_options.head="classwise"
model_options.hidden=[512]
model_options.hidden=[512,512]
model_options.widths=[64,128,256]
model_options.widths=[32,64,128]
model_options.widths=[48,96,192,384]
model_options.depth=3
model_options.patch=4 model_options.widths=[96,192]
model_options.method="cpl"
model_options.method="sll"
batch_size=256 lr=0.0042
lr=0.0015
lr=0.006
lookahead=6
augment="crop-flip"
"""


def changed(variant: str) -> dict:
    """The fields of the preset, with those of the variant in their place."""
    from orthogonium.training import PRESETS

    fields = PRESETS[PRESET].to_dict()
    for change in variant.split():
        path, _, value = change.partition("=")
        *folders, name = path.split(".")
        place = fields
        for folder in folders:
            place = place[folder]
        place[name] = json.loads(value)
    return fields


def score(variant: str, root: str, minutes: float, seed: int) -> dict:
    """Accuracies on a tenth of the training data, after training on the rest."""
    from orthogonium.training import Recipe, fit

    recipe = Recipe.from_dict(changed(variant)).replace(
        root=root, minutes=minutes, validation=0.1, validate_every=10**6, eps=[EPS, 2 * EPS, 3 * EPS], seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        result = fit(recipe, Path(folder) / "run", progress=False, checkpoint_minutes=None)
    return {"steps": result.steps, "seconds": result.seconds, **result.history[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a file of results, a line each; those in it are kept")
    parser.add_argument("--variants", type=Path, help="a file of variants, instead of those in this module")
    parser.add_argument("--best", type=int, help="only the best of those in `--out` with fewer minutes, and the preset")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    text = arguments.variants.read_text() if arguments.variants else VARIANTS
    variants = ["", *filter(None, map(str.strip, text.splitlines()))]
    lines = arguments.out.read_text().splitlines() if arguments.out.exists() else []
    known = {(r["variant"], r["minutes"], r["seed"]): r for r in map(json.loads, lines)}
    if arguments.best is not None:
        before = max(minutes for _, minutes, _ in known if minutes < arguments.minutes)
        ranked = sorted((r for r in known.values() if r["minutes"] == before), key=_certified, reverse=True)
        variants = list(dict.fromkeys(["", *(r["variant"] for r in ranked[: arguments.best])]))
    rows = []
    for variant in variants:
        key = (variant, arguments.minutes, arguments.seed)
        if key not in known:
            settings = (arguments.root, arguments.minutes, arguments.seed)
            found = in_process(False, "benchmarks.recipe_search:score", variant, *settings)
            known[key] = dict(zip(("variant", "minutes", "seed"), key, strict=True)) | found
            with arguments.out.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
        rows.append(known[key])
        print(f"{_certified(known[key]):.1%}  {variant or PRESET}", flush=True)
    rows.sort(key=_certified, reverse=True)
    table(
        ["variant", "steps", "clean", *(f"certified at {n * 36}/255" for n in (1, 2, 3))],
        [[f"`{r['variant'] or PRESET}`", r["steps"], *(f"{100 * v:.1f}" for v in _accuracies(r))] for r in rows],
    )


def _accuracies(row: dict) -> list[float]:
    return [row["val_accuracy"], *(row[key] for key in row if key.startswith("val_certified"))]


def _certified(row: dict) -> float:
    return _accuracies(row)[1]


if __name__ == "__main__":
    main()
