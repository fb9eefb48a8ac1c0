"""`ClassParam` as scripts for 0.0.4 use it."""

import pickle

import pytest
import torch
from torch import nn

from orthogonium.class_param import ClassParam, flatten_config


def listed(*args, **kwargs):
    return args, kwargs


def test_positionals_of_the_call_replace_the_first_stored_ones():
    stored = ClassParam(listed, 1, 2, 3, x=1, y=2)
    assert stored() == ((1, 2, 3), {"x": 1, "y": 2})
    assert stored(9) == ((9, 2, 3), {"x": 1, "y": 2})
    assert stored(9, 8, 7, 6) == ((9, 8, 7, 6), {"x": 1, "y": 2})
    assert stored(x=5, z=2) == ((1, 2, 3), {"x": 5, "y": 2, "z": 2})
    pool = ClassParam(nn.LPPool2d, 2, 2)(1)
    assert (pool.norm_type, pool.kernel_size, pool.stride) == (1, 2, None)


def test_without_a_constructor_it_makes_identities():
    x = torch.randn(2, 3)
    for made in (ClassParam()(), ClassParam()(64), ClassParam()(64, bias=False)):
        assert nn.Sequential(made)(x) is x
    assert str(ClassParam()) == "Identity()"


def test_it_prints_like_a_call():
    conv = ClassParam(nn.Conv2d, 3, 8, bias=False)
    assert str(conv) == "Conv2d(3,8,bias=False)"
    assert str(ClassParam(nn.Sequential, conv, act="relu")) == "Sequential(Conv2d(3,8,bias=False),act=relu)"
    assert str(pickle.loads(pickle.dumps(conv))) == str(conv)


CONV = ClassParam(nn.Conv2d, 3, 8, bias=False)
NESTED = ClassParam(listed, CONV, nn.ReLU, [1, 2], act=CONV, sizes={"kernel": 3}, pair=(1, 2), nothing=None)


@pytest.mark.parametrize(
    "config,expected",
    [
        (CONV.get_config(), {"fct": "Conv2d", "args": {"args_0": "3", "args_1": "8"}, "kwargs": {"bias": "False"}}),
        (CONV.get_config(flatten=True), {"fct": "Conv2d", "args_0": "3", "args_1": "8", "bias": "False"}),
        (
            NESTED.get_config(),
            {
                "fct": "listed",
                "args": {"args_0": CONV.get_config(flatten=True), "args_1": "ReLU", "args_2": ["1", "2"]},
                "kwargs": {
                    "act": CONV.get_config(flatten=True),
                    "sizes": {"kernel": "3"},
                    "pair": "(1, 2)",
                    "nothing": "None",
                },
            },
        ),
        (
            NESTED.get_config(flatten=True),
            {
                "fct": "listed",
                **{f"args_0/{key}": value for key, value in CONV.get_config(flatten=True).items()},
                "args_1": "ReLU",
                "args_2/args_0": "1",
                "args_2/args_1": "2",
                **{f"act/{key}": value for key, value in CONV.get_config(flatten=True).items()},
                "sizes/kernel": "3",
                "pair": "(1, 2)",
                "nothing": "None",
            },
        ),
        (flatten_config({"a": {"b": 1, "c": {"d": 2}}, "e": 3}), {"a/b": "1", "a/c/d": "2", "e": "3"}),
        (flatten_config({"a": 1}, ["run", "0"]), {"run/0/a": "1"}),
        (flatten_config({"a": [1, CONV]}), {"a/args_0": "1", **flatten_config(CONV, ["a", "args_1"])}),
        (flatten_config({"a": [], "b": {}}), {}),
    ],
)
def test_config(config, expected):
    assert config == expected
