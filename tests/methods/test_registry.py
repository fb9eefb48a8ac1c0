"""Methods from outside: by a call, and by the entry points of a package that is installed."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn

import orthogonium
from orthogonium.errors import ParameterError
from orthogonium.layers import AOLConv2d, LipschitzConv2d, LipschitzLinear, OrthoLinear
from orthogonium.methods import METHODS, Method, register_method
from orthogonium.methods.registry import MethodTable
from orthogonium.models import create_model


class Half(AOLConv2d):
    """A convolution of another package."""


@pytest.fixture
def half():
    entry = Method(
        "half",
        "Nobody 2026",
        "lipschitz",
        "circular or zeros",
        "80 c³",
        conv={2: Half},
        linear=f"{__name__}:HalfLinear",
    )
    yield register_method(entry)
    del METHODS["half"]


class HalfLinear(OrthoLinear):
    """A dense layer of another package."""


def test_everything_takes_it(half):
    assert isinstance(LipschitzConv2d(2, 4, 3, stride=2, method="half"), Half)
    assert isinstance(LipschitzLinear(2, 4, method="half"), HalfLinear)
    model = create_model("aocnet_tiny", (1, 8, 8), widths=(8, 16), method="half").eval()
    assert any(isinstance(m, Half) for m in model.modules())
    assert orthogonium.lipschitz_bound(model, (1, 8, 8)).value <= 1 + 1e-4
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    found = orthogonium.convert(plain, (1, 4, 4), "half")
    assert found.bound <= 1 + 1e-4
    assert {Half, HalfLinear} <= {type(m).__mro__[1] for m in found.model.modules()}
    with pytest.raises(ParameterError, match="has no 1-D convolutions; its layers are Half, HalfLinear"):
        orthogonium.layers.LipschitzConv1d(2, 2, 3, method="half")


class HandsOn(Half):
    """A layer that hands its arguments on, as users write them."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


def test_layers_that_hand_their_arguments_on_take_those_of_their_bases():
    register_method(Method("hands on", "Nobody 2026", "lipschitz", "circular or zeros", "80 c³", conv={2: HandsOn}))
    try:
        layer = LipschitzConv2d(2, 4, 3, stride=2, bias=False, method="hands on")
        assert isinstance(layer, HandsOn) and layer.stride == (2, 2) and layer.bias is None
        with pytest.raises(ParameterError, match=r"does not take nosuch.*it takes: lipschitz, niter\."):
            LipschitzConv2d(2, 4, 3, method="hands on", nosuch=1)
    finally:
        del METHODS["hands on"]


def test_classes_that_know_no_padding_same_with_a_stride_make_networks():
    """`nn.Conv2d` and its subclasses refuse padding="same" with a stride."""

    class Taps(nn.Conv2d):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.weight.data /= self.weight[0].numel()

    register_method(Method("taps", "Nobody 2026", "lipschitz", "circular or zeros", "c³", conv={2: Taps}))
    try:
        for name, options in (("aocnet_tiny", {}), ("lip_resnet_tiny", {"depths": (1, 1)})):
            model = create_model(name, (1, 8, 8), widths=(8, 16), method="taps", **options)
            assert model(torch.rand(2, 1, 8, 8)).shape == (2, 10)
            assert {layer.stride for layer in model.modules() if isinstance(layer, Taps)} == {(1, 1), (2, 2)}
    finally:
        del METHODS["taps"]


def test_what_is_wrong_is_refused(half):
    with pytest.raises(ParameterError, match="'half' already"):
        register_method(half)
    with pytest.raises(ParameterError, match="registered as a Method, got dict"):
        register_method({"name": "other"})
    with pytest.raises(ParameterError, match="'orthogonal' or 'lipschitz', got 'exact'"):
        Method("other", "", "exact", "", "")
    with pytest.raises(ParameterError, match="'package.module:Class', got 'Half'"):
        Method("other", "", "lipschitz", "", "", conv={2: "Half"})
    with pytest.raises(ParameterError, match="has a name"):
        Method("", "", "lipschitz", "", "")


def test_packages_that_are_installed(tmp_path):
    """A method in a package of its own is seen by the command, and one that registers itself is entered once."""
    (tmp_path / "others.py").write_text(
        textwrap.dedent("""
        from orthogonium.layers import AOLConv2d
        from orthogonium.methods import Method, register_method
        ONE = Method("one", "Nobody 2026", "lipschitz", "zeros", "c³", conv={2: AOLConv2d})
        AOL = {2: "orthogonium.layers.conv.aol:AOLConv2d"}
        TWO = [Method("two", "Nobody 2026", "lipschitz", "zeros", "c³", conv=AOL)]
        SELF = register_method(Method("three", "Nobody 2026", "lipschitz", "zeros", "c³", conv={2: AOLConv2d}))
        """)
    )
    info = tmp_path / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[orthogonium.methods]\na = others:ONE\nb = others:TWO\nc = others:SELF\n")
    made = "type(LipschitzConv2d(2, 2, 3, method=m)).__mro__[1].__name__ for m in ('one', 'two', 'three')"
    code = f"from orthogonium.layers import LipschitzConv2d; print(*({made}))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.split() == ["AOLConv2d"] * 3


def test_an_entry_point_that_fails_is_loud_each_time(monkeypatch):
    class Broken:
        def load(self):
            raise ImportError("no such package")

    monkeypatch.setattr("orthogonium.methods.registry.entry_points", lambda group: [Broken()])
    table = MethodTable([])
    for _ in range(2):
        with pytest.raises(ImportError, match="no such package"):
            list(table)


def test_layers_from_outside_are_measured_not_believed():
    """A method that promises too much is found out by the bound."""
    register_method(Method("liar", "Nobody 2026", "orthogonal", "circular", "0", conv={2: nn.Conv2d}))
    try:
        conv = LipschitzConv2d(2, 2, 3, padding=1, method="liar", padding_mode="zeros")
    finally:
        del METHODS["liar"]
    nn.init.ones_(conv.weight)
    assert orthogonium.lipschitz_bound(conv, (2, 8, 8)).value > 10
    assert conv(torch.ones(1, 2, 8, 8)).norm() > 10
