import inspect
import re

import pytest
import torch

from orthogonium import models
from orthogonium.errors import ParameterError
from orthogonium.models import create_model, describe_model, list_models
from orthogonium.models.input_normalization import InputNormalization
from orthogonium.models.lip_resnet import lip_resnet_tiny
from orthogonium.models.network_parts import ClassifierParts, same_padding


def test_names_are_sorted_and_found():
    names = list_models()
    assert names == sorted(set(names)) and "aocnet_tiny" in names
    assert [describe_model(n).name for n in names] == names


@pytest.mark.parametrize("name", list_models())
def test_entries_say_what_they_are(name):
    entry = describe_model(name)
    assert entry.summary.endswith(".") and re.search(r"\(20\d\d\), \"", entry.provenance)
    assert len(entry.image_shape) == 3


@pytest.mark.parametrize("name", list_models())
def test_a_name_is_that_of_a_function(name):
    """Of a module of its own, or of the file of its family."""
    modules = [value for value in vars(models).values() if inspect.ismodule(value)]
    (build,) = {vars(module)[name] for module in modules if inspect.isfunction(vars(module).get(name))}
    assert build.__name__ == name and (build.__doc__ or "").startswith(describe_model(name).summary)


def test_family_members_have_their_own_defaults():
    assert describe_model("lip_resnet18").options["depths"] == (2, 2, 2, 2)
    assert describe_model("lip_resnet_tiny").options["depths"] == (1, 1, 1)


def test_an_option_of_other_models_names_them():
    with pytest.raises(ParameterError, match="'lip_resnet' has no option method.*Models that have: .*lip_resnet_tiny"):
        create_model("lip_resnet", method="bro")


@pytest.mark.parametrize(
    "options, match",
    [
        ({"kernelsize": 3}, "has no option kernelsize. Its options: widths, depth"),
        ({"method": "qr"}, "no method 'qr' for images. Known: aoc"),
        ({"method": "aoc", "conv": torch.nn.Conv2d}, "either method or conv"),
        ({"act": "gelu"}, "no activation 'gelu'. Known: maxmin"),
        ({"norm": "batchnorm"}, "no norm 'batchnorm'. Known"),
        ({"pool": "sum"}, "no pool 'sum'"),
        ({"head": "softmax"}, "no head 'softmax'. Known: global, classwise"),
        ({"padding_mode": "reflect"}, "circular"),
        ({"widths": "abc"}, "widths of model 'aocnet_tiny' is a list of whole numbers: got 'abc'"),
        ({"widths": (8.0,)}, "list of whole numbers"),
        ({"depth": True}, "whole number"),
        ({"act": 3}, "a text, or a class"),
        ({"norm": [1]}, "a class.*, or null"),
        ({"pool": []}, "is a text"),
        ({"stride_kernel": "x"}, "a whole number, or null"),
        ({"mean": "x"}, "a number, a list of numbers, or null"),
        ({"widths": (7,)}, "multiple of 2 channels, got 7"),
        ({"widths": ()}, "needs a stage"),
        ({"patch": 9}, "between 1 and that of the image 8×8: got 9"),
        ({"std": 0.0}, "positive"),
        ({"mean": (0.1, 0.2)}, "each of the 1 channels"),
        ({"image_shape": (8, 8)}, r"\(channels, height, width\)"),
        ({"n_classes": 0}, "n_classes must be a positive integer"),
    ],
)
def test_wrong_options(options, match):
    with pytest.raises(ParameterError, match=match):
        create_model("aocnet_tiny", **{"image_shape": (1, 8, 8), **options})


def test_wrong_options_of_the_families():
    with pytest.raises(ParameterError, match="a list of lists of 2 whole numbers"):
        create_model("staged_cnn", dim_repeats=[[64, 2, 1]])
    with pytest.raises(ParameterError, match="true or false, or a class"):
        create_model("patch_based_expanded_cnn", skip=3)
    with pytest.raises(ParameterError, match="a depth for each width"):
        create_model("lip_resnet_tiny", widths=(8, 8))
    with pytest.raises(ParameterError, match="no skip 'add'"):
        create_model("lip_resnet_tiny", skip="add")
    with pytest.raises(ParameterError, match="odd width, 9"):
        create_model("lip_resnet_tiny", (1, 8, 8), widths=(9,), depths=(1,), act="abs", skip="concat")
    with pytest.raises(ParameterError, match="must divide dim 64"):
        create_model("lip_convmixer_tiny", channels_per_group=3)
    with pytest.raises(ParameterError, match="patch_size.*between 1 and that of the image 32×32: got 0"):
        create_model("patch_based_cnn", patch_size=0)


@pytest.mark.parametrize("name, size", [("lip_vgg", 16), ("lip_resnet", 3), ("sllxbcop_resnet50", 3)])
def test_images_that_are_too_small(name, size):
    with pytest.raises(ParameterError, match=f"got {size}×32"):
        create_model(name, (3, size, 32))


def test_members_of_a_family_are_functions_too():
    model = lip_resnet_tiny((1, 8, 8), 5, ClassifierParts(hidden=(16,)), widths=(8,), depths=(1,))
    assert len(model.dense) == 2 and model(torch.rand(2, 1, 8, 8)).shape == (2, 5)


def test_unknown_model():
    with pytest.raises(ParameterError, match="no model 'resnet50'. Models: aocnet_tiny"):
        create_model("resnet50")
    with pytest.raises(ParameterError, match="no model"):
        describe_model("resnet50")


@pytest.mark.parametrize("kernel_size", range(1, 8))
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_same_padding(kernel_size, stride):
    padding = same_padding(kernel_size, stride)
    if padding == "same":
        assert kernel_size % 2 == 0 or kernel_size < stride
        return
    conv = torch.nn.Conv2d(1, 1, kernel_size, stride, padding)
    assert conv(torch.zeros(1, 1, 12, 12)).shape[-1] == 12 // stride


def test_input_normalization_rejects_other_images():
    with pytest.raises(ValueError, match="has 3 channels"):
        InputNormalization(3)(torch.zeros(1, 1, 4, 4))
