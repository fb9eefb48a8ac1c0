"""What is common and sound has a bound; what has none is refused for the true reason, with an alternative."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from orthogonium import audit, certify, lipschitz_bound
from orthogonium import layers as ol
from orthogonium.certification import TraceError, UnboundedError
from orthogonium.errors import ParameterError, ShapeError
from tests.certification.networks import Fn
from tests.certification.soundness import sound_or_refused

D = torch.float64
MATRIX, SQUARE = torch.randn(4, 5, dtype=D), torch.randn(4, 4, dtype=D)
MATRICES = torch.randn(3, 4, 5, dtype=D)
INDEX = torch.tensor([[0, 0, 1]])


def double(fn):
    model = Fn(fn)
    model.register_buffer("kind", torch.zeros((), dtype=D))
    return model.eval()


# function on (n, *shape), shape; linear ones attain their constant
LINEAR = {
    "einsum, one axis": (lambda x: torch.einsum("nij,jk->nik", x, MATRIX), (3, 4)),
    "einsum, matrix by row": (lambda x: torch.einsum("nij,ijk->nik", x, MATRICES), (3, 4)),
    "einsum, two axes": (lambda x: torch.einsum("nij,ijk->nk", x, MATRICES), (3, 4)),
    "einsum, trace": (lambda x: torch.einsum("nii->n", x), (3, 3)),
    "addmm": (lambda x: torch.addmm(torch.ones(5, dtype=D), x, MATRIX, alpha=2.0), (4,)),
    "bmm": (lambda x: torch.bmm(x, MATRIX.expand(len(x), 4, 5)), (3, 4)),
    "bmm from the left": (lambda x: torch.bmm(MATRIX.T.expand(len(x), 5, 4), x), (4, 3)),
    "baddbmm": (lambda x: torch.baddbmm(torch.zeros(1, dtype=D), x, MATRIX.expand(len(x), 4, 5)), (3, 4)),
    "matmul of stacks": (lambda x: x[:, :, None] @ MATRICES, (3, 4)),
    "matmul with a vector": (lambda x: x @ MATRIX[:, 0], (4,)),
    "tensordot": (lambda x: torch.tensordot(x, MATRICES, dims=([1, 2], [0, 1])), (3, 4)),
    "kron": (lambda x: torch.kron(x[:, None], SQUARE[None]), (4,)),
    "unfold": (lambda x: F.unfold(x, 2, padding=1), (2, 4, 4)),
    "fold": (lambda x: F.fold(x, (4, 4), 3), (9, 4)),
    "windows": (lambda x: x.unfold(1, 3, 2), (7,)),
    "list": (lambda x: x[:, [0, 0, 2]], (4,)),
    "two lists": (lambda x: x[:, [0, 1, 1], [2, 2, 2]], (3, 4)),
    "gather": (lambda x: x.gather(1, INDEX.expand(len(x), 3)), (4,)),
    "take_along_dim": (lambda x: torch.take_along_dim(x, INDEX, 1), (4,)),
    "index_select": (lambda x: x.index_select(1, torch.tensor([3, 3, 3])), (4,)),
    "lerp": (lambda x: torch.lerp(x, 2 * x.flip(1), 0.3), (4,)),
    "full_like": (lambda x: x + torch.full_like(x, 2.0), (4,)),
    "new_tensor": (lambda x: x * x.new_tensor([1.0, 2.0, 3.0, 4.0]), (4,)),
    "cat along an axis by its other name": (lambda x: torch.cat([x, x], axis=1), (4,)),
    "batch folded in and out": (lambda x: (x.reshape(-1, 4) @ SQUARE).reshape(len(x), 3, 4), (3, 4)),
    "batch moved": (lambda x: x.movedim(0, -1).mul(2).movedim(-1, 0), (3, 4)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_linear_functions(name):
    fn, shape = LINEAR[name]
    eye = torch.eye(math.prod(shape), dtype=D).reshape(-1, *shape)
    matrix = (fn(eye) - fn(torch.zeros_like(eye[:2]))[:1]).reshape(len(eye), -1)
    exact = float(torch.linalg.matrix_norm(matrix, ord=2))
    assert exact * (1 - 1e-12) <= lipschitz_bound(double(fn), shape).value <= exact * (1 + 1e-9)


# function on (n, 4) → its constant
FUNCTIONS = {
    "norm": (lambda x: torch.linalg.norm(x, dim=1), 1.0),
    "norm of order 1": (lambda x: torch.linalg.norm(x, ord=1, dim=1), 2.0),
    "norm of order ∞": (lambda x: torch.linalg.norm(x, ord=math.inf, dim=1), 1.0),
    "distance": (lambda x: F.pairwise_distance(x, torch.ones(4, dtype=D)), 1.0),
    "distances": (lambda x: (x[:, None] - SQUARE).norm(dim=2), 2.0),
    "pieces that meet": (lambda x: torch.where(x > 1, 2 * x - 1, x), 2.0),
    "softmin": (lambda x: F.softmin(x, 1), 0.5),
    "projection onto the ball": (lambda x: F.normalize(x, eps=1.0), 1.0),
    "one number for each sample": (lambda x: x.sum(1), 2.0),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    fn, constant = FUNCTIONS[name]
    assert sound_or_refused(double(fn), (4,)) == pytest.approx(constant, rel=1e-9)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cells = kind(4, 4, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0]


class OrthogonalRecurrent(nn.Module):
    """What is advised in place of a recurrent layer of torch."""

    def __init__(self):
        super().__init__()
        self.cell, self.act = ol.OrthoLinear(4 + 4, 4), ol.MaxMin()

    def forward(self, x):
        h = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            h = self.act(self.cell(torch.cat([h, step], dim=-1)))
        return h


class Tokens(nn.Module):
    """OrthoLinear on the transposed axis."""

    def __init__(self):
        super().__init__()
        self.mix = ol.OrthoLinear(3, 3)

    def forward(self, x):
        return self.mix(x.mT).mT


# model on (n, 3, 4) that has no useful bound, what must be said of it, and what is advised instead
REFUSED = {
    "LayerNorm": (nn.LayerNorm(4), "divides by a deviation.*LayerCentering", ol.LayerCentering(3)),
    "GroupNorm": (nn.GroupNorm(3, 3), "divides by a deviation.*LayerCentering", ol.LayerCentering(3)),
    "RMSNorm": (nn.RMSNorm(4), "(steep near 0|divides by a deviation).*BatchLipNorm", ol.BatchLipNorm(3)),
    "InstanceNorm": (nn.InstanceNorm1d(3), "InstanceNorm.*BatchCentering", ol.BatchCentering(3)),
    "attention": (Attention(), "(Attention|product).*OrthoLinear", Tokens()),
    "transformer": (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), "Attention.*OrthoLinear", Tokens()),
    "sequence first": (nn.TransformerEncoderLayer(4, 2, 8), "Attention.*OrthoLinear", Tokens()),
    "LSTM": (Recurrent(nn.LSTM), "gates multiply two values.*OrthoLinear", OrthogonalRecurrent()),
    "GRU": (Recurrent(nn.GRU), "gates multiply two values.*OrthoLinear", OrthogonalRecurrent()),
    "LSTM in float64": (Recurrent(nn.LSTM).double(), "gates multiply two values.*OrthoLinear", OrthogonalRecurrent()),
    "GRUCell": (nn.Sequential(nn.Flatten(0, 1), nn.GRUCell(4, 4)), "gates multiply two values", OrthogonalRecurrent()),
    "jump": (Fn(lambda x: torch.where(x > 0, x, x + 1)), "do not meet", Fn(lambda x: torch.where(x > 0, x, 0.5 * x))),
    "normalize": (Fn(lambda x: F.normalize(x, dim=2)), "Clamp", Fn(lambda x: F.normalize(x, dim=2, eps=1.0))),
    "norm of the batch": (Fn(lambda x: x / x.norm(dim=2, keepdim=True)), "clamp",
        Fn(lambda x: x / x.norm(dim=2, keepdim=True).clamp(min=1))),
    "cdist": (Fn(lambda x: torch.cdist(x, x.new_ones(1, 2, 4))), "norm",
        Fn(lambda x: (x[:, None] - x.new_ones(4)).norm(dim=-1))),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_reason_and_an_alternative(name):
    model, reason, alternative = REFUSED[name]
    with pytest.raises(UnboundedError, match=f"(?s){reason}"):
        lipschitz_bound(model.eval(), (3, 4))
    assert lipschitz_bound(alternative.eval(), (3, 4)).value < math.inf


def test_what_is_advised_for_recurrent_layers_keeps_1_whatever_the_length():
    model = OrthogonalRecurrent().double().eval()
    bound = lipschitz_bound(model, (40, 4)).value
    assert bound < 1 + 1e-9
    x = torch.randn(40, 4, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x[None])[0], x).reshape(4, -1)
    assert torch.linalg.matrix_norm(jacobian, 2) <= bound


def test_the_audit_of_a_plain_recurrent_layer_says_once_that_its_constant_grows_with_the_length():
    (warning,) = audit(Recurrent(nn.RNN).eval(), (6, 4)).warnings
    assert "the constant depends on the length" in warning and "OrthoLinear(hidden + features, hidden)" in warning


def test_instance_norm_with_running_statistics():
    layer = nn.InstanceNorm1d(3, affine=True, track_running_stats=True).double().eval()
    layer.running_var.copy_(torch.tensor([4.0, 1.0, 0.25]))
    assert lipschitz_bound(layer, (3, 4)).value == pytest.approx(2.0, rel=1e-4)


def network():
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(48, 3)]
    return nn.Sequential(*layers).eval()


def data(model):
    x = torch.randn(6, 2, 4, 4)
    return [(x, model(x).argmax(1))]


class TestPrograms:
    """Compiled by torch, in whatever way: the same operators, the same certificates."""

    def test_exported(self):
        model, batch = network(), torch.export.Dim("batch", min=1)
        program = torch.export.export(model, (torch.randn(4, 2, 4, 4),), dynamic_shapes=({0: batch},)).module()
        batches = data(model)
        found, plain = (certify(m, batches) for m in (program, model))
        assert torch.allclose(found.radii, plain.radii, rtol=1e-9) and bool((found.radii > 0).all())

    def test_exported_for_one_size_of_the_batch(self):
        program = torch.export.export(network(), (torch.randn(2, 2, 4, 4),)).module()
        with pytest.raises(ShapeError, match="batch of 3.*dynamic_shapes"):
            lipschitz_bound(program, (2, 4, 4))

    def test_exported_in_training(self):
        model, batch = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Linear(3, 2)), torch.export.Dim("batch", min=2)
        program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: batch},)).module()
        with pytest.raises((UnboundedError, TraceError, ShapeError)):
            certify(program, [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))])

    @pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
    @pytest.mark.parametrize("kind", ["script", "trace", "freeze", "fx"])
    def test_other_programs(self, kind):
        model = network()
        program = {
            "script": lambda: torch.jit.script(model),
            "trace": lambda: torch.jit.trace(model, torch.randn(2, 2, 4, 4)),
            "freeze": lambda: torch.jit.freeze(torch.jit.script(model)),
            "fx": lambda: torch.fx.symbolic_trace(model),
        }[kind]()
        batches = data(model)
        found, plain = (certify(m, batches) for m in (program, model))
        assert bool((found.radii > 0).all()) and bool((found.radii >= plain.radii * (1 - 1e-3)).all())
        if kind != "freeze":  # which makes one layer of two, with a smaller constant
            assert torch.allclose(found.radii, plain.radii, rtol=1e-6)

    def test_fx_in_training(self):
        with pytest.raises(ParameterError, match="eval"):
            certify(torch.fx.symbolic_trace(network().train()), data(network()))


class TestData:
    """What loaders give, and what is asked for."""

    @pytest.mark.parametrize(
        "eps", [0.5, 1, np.float32(0.5), torch.tensor(0.5), torch.tensor([0.5, 0.25]), np.array([0.5]), [0.5], (0.5, 1)]
    )
    def test_radii(self, eps):
        model = network()
        found = certify(model, data(model), eps=eps)
        assert found.eps == tuple(np.ravel(np.asarray(eps)).astype(float).tolist())

    @pytest.mark.parametrize("eps", ["0.5", None, -1.0, math.nan, math.inf, [[0.1], [0.2, 0.3]]])
    def test_radii_that_are_none(self, eps):
        with pytest.raises(ParameterError, match="eps"):
            certify(network(), data(network()), eps=eps)

    def test_an_empty_first_batch_and_further_fields(self):
        model = network()
        ((x, y),) = data(model)
        found = certify(model, [(x[:0], y[:0]), (x, y, ["names"] * 6, torch.arange(6))])
        assert torch.equal(found.radii, certify(model, [(x, y)]).radii)

    @pytest.mark.parametrize(
        "batch", [torch.randn(6, 2, 4, 4), {"x": torch.randn(6, 2, 4, 4)}, (torch.randn(6, 2, 4, 4),)]
    )
    def test_batches_without_labels(self, batch):
        with pytest.raises(ShapeError, match="pair of tensors"):
            certify(network(), [batch])

    def test_one_logit(self):
        x, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.long)
        for model in (nn.Linear(4, 1), nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))):
            with pytest.raises(ShapeError, match="at least 2 classes"):
                certify(model.eval(), [(x, labels)])
            assert lipschitz_bound(model, (4,)).value > 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_casts_to_float_inside(self, dtype):
        model = Fn(lambda x: 2 * x.float())
        model.register_buffer("kind", torch.zeros((), dtype=dtype))
        assert lipschitz_bound(model.eval(), (4,)).value == pytest.approx(2.0)
