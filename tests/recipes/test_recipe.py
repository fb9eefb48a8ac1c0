import dataclasses

import pytest

from orthogonium.data import DATASETS, make_augmentation
from orthogonium.errors import ParameterError
from orthogonium.models import describe_model, list_models
from orthogonium.training import PRESETS, Recipe

WRONG = {
    "model": [3],
    "root": [3],
    "seed": [-1, 2**63, 0.5],
    "decay_biases": ["no"],
    "epochs": [0, 2.5, True],
    "batch_size": [0, -1],
    "accumulate": [0, 3],  # 3 does not divide 128
    "early_stop": [0, 5],  # without held-out data
    "validate_every": [0],
    "lr": ["fast", 0.0, -1.0, float("nan")],
    "minutes": [0.0, float("inf")],
    "clip_norm": [0.0],
    "weight_decay": [-0.1],
    "ema": [0.0, 1.0],
    "validation": [-0.1, 1.0],
    "eps": [0.5, ("x",), (), (0.0,), (-1.0, 0.5), (0.25, 0.25), (36 / 255, 0.1412)],
    "precision": ["fp8"],
    "monitor": ["loss"],
    "schedule": ["exponential"],
    "warmup": [-0.1, 1.0],
    "extra": [3],
    "extra_share": [0.0, 1.0],
    "optimizer": ["lion"],
    "lookahead": [0, 1, 2.5],
    "lookahead_share": [0.0, 1.5],
    "radius_schedule": ["log"],
    "radius_warmup": [0.0, 1.5],
    "optimizer_options": [{"lr": 1.0}, {"fused": True}, {"betas": 3}, {"momentum": 0.9}],
    "model_options": [{"conv": object()}, 3, {"image_shape": [1, 8, 8]}],
    "loss": ["mse"],
    "loss_options": [{"offst": 1.0}, {"temperature": -1.0}, {"reduction": "sum"}],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_wrong_values_are_refused(name, value):
    with pytest.raises(ParameterError, match=r"."):
        Recipe(**{name: value})


def test_a_schedule_of_radii_needs_a_radius():
    assert Recipe(loss="emma", radius_schedule="cosine").radius_warmup == 0.5
    with pytest.raises(ParameterError, match="'cosine' asks for no radius.*emma"):
        Recipe(loss="cosine", radius_schedule="linear")


@pytest.mark.parametrize(
    ("name", "value", "needs"),
    [
        ("extra_share", 0.3, {"extra": "more.npz"}),
        ("lookahead_share", 0.3, {"lookahead": 5}),
        ("radius_warmup", 0.3, {"radius_schedule": "linear"}),
        ("decay_biases", True, {"weight_decay": 0.1}),
    ],
)
def test_what_has_no_effect_is_refused(name, value, needs):
    assert getattr(Recipe(**{name: value}, **needs), name) == value
    with pytest.raises(ParameterError, match=f"{name}={value} has no effect without .*{next(iter(needs))}"):
        Recipe(**{name: value})


def test_a_radius_of_zero_does_not_grow():
    with pytest.raises(ParameterError, match="radius_schedule='linear' has no effect on offset=0"):
        Recipe(loss_options={"offset": 0}, radius_schedule="linear")


def test_parts_of_a_batch_have_the_share_of_extra_images():
    Recipe(extra="more.npz", extra_share=0.75, batch_size=32, accumulate=8)
    with pytest.raises(ParameterError, match=r"is 22 images.*1 in each are 16. Choose extra_share=0.5"):
        Recipe(extra="more.npz", extra_share=0.7, batch_size=32, accumulate=16)


def test_training_needs_an_end():
    with pytest.raises(ParameterError, match="epochs=, minutes="):
        Recipe(epochs=None)


def test_one_cycle_needs_a_warmup():
    with pytest.raises(ParameterError, match="warmup"):
        Recipe(schedule="one-cycle", warmup=0.0)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json_and_name_what_exists(name):
    recipe = PRESETS[name]
    assert Recipe.from_json(recipe.to_json()) == recipe
    assert recipe.model in list_models() and recipe.data in DATASETS
    assert recipe.model_options.keys() <= describe_model(recipe.model).options.keys()
    make_augmentation(recipe.augment)


def test_every_field_survives_json():
    changed = Recipe(
        model="other", model_options={"widths": (8, 16)}, data="cifar10", root="/data", augment="crop-flip",
        validation=0.1,
        loss="hkr", loss_options={"alpha": 0.9}, optimizer="sgd", optimizer_options={"momentum": 0.8}, lr=0.5,
        weight_decay=0.1, decay_biases=True, schedule="linear", warmup=0.3, epochs=None, minutes=0.5, batch_size=32,
        accumulate=2, clip_norm=3.0, ema=0.9, lookahead=5, lookahead_share=0.8,
            radius_schedule="linear", radius_warmup=0.2, extra="more.npz", extra_share=0.7,
            precision="64", seed=5, early_stop=3, monitor="accuracy", validate_every=2,
        eps=(0.125,),
    )  # fmt: skip
    default = Recipe()
    assert all(getattr(changed, f.name) != getattr(default, f.name) for f in dataclasses.fields(Recipe))
    assert Recipe.from_json(changed.to_json()) == changed


def test_unknown_fields_are_named():
    with pytest.raises(ParameterError, match="learning_rate.*lr"):
        Recipe().replace(learning_rate=1.0)
    with pytest.raises(ParameterError, match="JSON"):
        Recipe.from_json("{")
    with pytest.raises(ParameterError, match="JSON object: got list"):
        Recipe.from_json("[]")


def test_recipes_of_version_0_1_are_read():
    saved = '{"max_minutes": 5.0, "patience": 3, "radii": [0.5], "validation": 0.1}'
    assert Recipe.from_json(saved) == Recipe(minutes=5.0, early_stop=3, eps=(0.5,), validation=0.1)
    with pytest.raises(ParameterError, match="no field radii"):
        Recipe.from_json('{"radii": [0.5], "eps": [0.25]}')
    with pytest.raises(ParameterError, match="no field radii"):
        Recipe().replace(radii=(0.5,))


def test_options_are_copied():
    options = {"offset": 1.0}
    recipe = Recipe(loss_options=options)
    options["offset"] = 2.0
    assert recipe.loss_options == {"offset": 1.0}
