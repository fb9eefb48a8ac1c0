"""Which recipe certifies most CIFAR-10 in a given time: variants of a preset, judged on images held out of training.

Run with `.venv/bin/python -m benchmarks.recipe_search --root FOLDER --minutes 3 --out RESULTS`, and nothing else; then
again with more minutes and `--best 4`, which takes the best of the run before. The test data are not looked at. A
variant is what it changes, as in `loss_options.temperature=0.25 batch_size=256`; `--variants FILE` has one a line, and
one that sets `minutes` takes these. `--base FILE` changes the recipe of a file (`recipe.json` of a run) instead of the
preset: `--base benchmarks/earlier_recipe.json --variants benchmarks/recipe_variants.txt --minutes 7` is the search that
found the preset.
"""

import argparse
import copy
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
loss="cosine" loss_options={}
loss="cosine-vra" loss_options={"eps":0.5}
radius_schedule="linear"
radius_schedule="cosine" radius_warmup=0.25
radius_schedule="linear" loss_options.offset=1.5
schedule="one-cycle" warmup=0.3
model_options.norm=null
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


def changed(variant: str, fields: dict) -> dict:
    """The fields of a recipe, with those of the variant in their place."""
    fields = copy.deepcopy(fields)
    for change in variant.split():
        path, _, value = change.partition("=")
        *folders, name = path.split(".")
        place = fields
        for folder in folders:
            place = place[folder]
        place[name] = json.loads(value)
    return fields


def score(variant: str, base: Path | None, root: str, minutes: float, seed: int) -> dict:
    """Accuracies on a tenth of the training data, after training on the rest."""
    from orthogonium.training import PRESETS, Recipe, fit

    judged = (Recipe.read(base) if base else PRESETS[PRESET]).replace(
        root=root, minutes=minutes, validation=0.1, validate_every=10**6, eps=[EPS, 2 * EPS, 3 * EPS], seed=seed
    )
    recipe = Recipe.from_dict(changed(variant, judged.to_dict()))
    with tempfile.TemporaryDirectory() as folder:
        result = fit(recipe, Path(folder) / "run", progress=False, checkpoint_minutes=None)
    return {"steps": result.steps, "seconds": result.seconds, **result.history[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--out", type=Path, required=True, help="a file of results of one base; those in it are kept")
    parser.add_argument("--base", type=Path, help=f"a file with the recipe to change, instead of {PRESET}")
    parser.add_argument("--variants", type=Path, help="a file of variants, instead of those in this module")
    parser.add_argument("--best", type=int, help="only the best of those in `--out` with fewer minutes, and the base")
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
    name = str(arguments.base or PRESET)
    rows = []
    for variant in variants:
        key = (variant, arguments.minutes, arguments.seed)
        if key not in known:
            settings = (arguments.base, arguments.root, arguments.minutes, arguments.seed)
            found = in_process(False, "benchmarks.recipe_search:score", variant, *settings)
            known[key] = dict(zip(("variant", "minutes", "seed"), key, strict=True)) | found
            with arguments.out.open("a") as file:
                file.write(json.dumps(known[key]) + "\n")
        rows.append(known[key])
        print(f"{_certified(known[key]):.1%}  {variant or name}", flush=True)
    rows.sort(key=_certified, reverse=True)
    table(
        ["variant", "steps", "clean", *(f"certified at {n * 36}/255" for n in (1, 2, 3))],
        [[f"`{r['variant'] or name}`", r["steps"], *(f"{100 * v:.1f}" for v in _accuracies(r))] for r in rows],
    )


def _accuracies(row: dict) -> list[float]:
    return [row["val_accuracy"], *(row[key] for key in row if key.startswith("val_certified"))]


def _certified(row: dict) -> float:
    return _accuracies(row)[1]


if __name__ == "__main__":
    main()
