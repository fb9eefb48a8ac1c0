"""`convert`: networks as people write them become 1-Lipschitz, train, and tell what was done to them."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import orthogonium
from orthogonium import convert, lipschitz_bound
from orthogonium.data import load_dataset, unit_pixels
from orthogonium.errors import ParameterError
from orthogonium.layers import AdaptiveOrthoConv2d, BatchCentering, MaxMin, OrthoLinear
from orthogonium.methods import METHODS
from orthogonium.testing import assert_certificate
from tests.conversion.networks import MLP, VGG11, ResNet18, UNet

SMALL = {
    "ResNet-18": (lambda: ResNet18(width=4), (3, 32, 32)),
    "VGG-11": (lambda: VGG11(width=4, hidden=64, pooled=2), (3, 32, 32)),
    "U-Net": (lambda: UNet(width=4), (1, 16, 16)),
    "MLP": (MLP, (1, 8, 8)),
}
FULL = {"ResNet-18": (ResNet18, (3, 64, 64)), "VGG-11": (lambda: VGG11(hidden=512), (3, 32, 32))}


def train(model, shape, steps=20, batch=4, temperature=None, lr=1e-2):
    """Fit a fixed batch; the loss in eval mode, before and after, with statistics that have come to rest."""
    x = torch.randn(batch, *shape)
    output = model.eval()(x)
    labels = torch.arange(batch) % output.shape[1] if output.dim() == 2 else (x[:, 0] > 0).long()
    temperature = temperature or 1 / output.detach().std()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def loss():
        return F.cross_entropy(temperature * model(x), labels)

    @torch.no_grad()
    def loss_at_rest():
        model.train()
        for _ in range(30):
            model(x)
        model.eval()
        return loss().item()

    first = loss_at_rest()
    for _ in range(steps):
        model.train()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    return first, loss_at_rest()


def check_bound_and_training(make, shape, gain=0.9, temperature=None, lr=1e-2, **options):
    plain = make()
    before = copy.deepcopy(plain.state_dict())
    found = convert(plain, shape, **options)
    assert found.refused == () and found.bound <= 1 + 1e-4
    assert all(torch.equal(value, before[key]) for key, value in plain.state_dict().items())
    x = torch.randn(2, *shape)
    assert found.model.eval()(x).shape == plain.eval()(x).shape
    first, last = train(found.model, shape, temperature=temperature, lr=lr)
    assert last < gain * first
    assert lipschitz_bound(found.model, shape).value <= 1 + 1e-4
    return found


@pytest.mark.parametrize("name", SMALL)
def test_networks_become_1_lipschitz_and_train(name):
    check_bound_and_training(*SMALL[name])


@pytest.mark.parametrize("name", SMALL)
def test_kept_weights_keep_the_bound(name):
    check_bound_and_training(*SMALL[name], gain=0.99, weights="keep", steps=10)


@pytest.mark.slow
@pytest.mark.parametrize("name", FULL)
def test_networks_of_their_own_width(name):
    # Of 32×32 pixels the last pooling of VGG makes 49 copies of one: logits hardly differ, and 1 / std would be too steep.
    # Entries of orthonormal rows are as small as 1 / √width, and so are steps.
    check_bound_and_training(*FULL[name], temperature=20.0 if name == "VGG-11" else None, lr=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_every_method(method):
    shape = (1, 8, 8)
    found = convert(UNet(width=4), shape, method)
    assert found.refused == () and found.bound <= 1 + 1e-4
    train(found.model, shape, steps=2)
    assert lipschitz_bound(found.model, shape).value <= 1 + 1e-4
    if METHODS[method].activated:
        assert "inside the layer before it" in str(found.changes)


def test_the_table_names_every_change():
    found = convert(ResNet18(width=4), (3, 32, 32))
    names = [change.name for change in found.changes]
    assert len(names) == 20 + 20 + 17 + 8 + 1 + 1 + 1  # convolutions, norms, activations, sums, two poolings, head
    text = str(found)
    assert "layer2.0.downsample.0" in text and "kernel (2, 2)" in text  # 4→8 channels, stride 2: no orthogonal 1×1
    assert "ConvexSum(2)" in text and "ScaledMaxPool2d" in text and "windows overlap" in text
    assert text.splitlines()[-1].startswith("ResNet18: Lipschitz constant")
    module = found.model.get_submodule("layer1.0.conv1")
    assert isinstance(module, AdaptiveOrthoConv2d) and isinstance(found.model.fc, OrthoLinear)
    assert isinstance(found.model.get_submodule("layer1.0.bn1"), BatchCentering)


def test_a_feasible_shortcut_stays_one_by_one():
    plain = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2), nn.ReLU(), nn.Conv2d(8, 32, 1, stride=(1, 2)))
    found = convert(plain, (8, 9, 9))
    assert found.model.get_submodule("0").kernel_size == (1, 1)
    assert found.model.get_submodule("2").kernel_size == (1, 2)
    assert found.model(torch.randn(1, 8, 9, 9)).shape == plain(torch.randn(1, 8, 9, 9)).shape


class Everything(nn.Module):
    """Calls in forward, shared modules, in-place sums, nested lists."""

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            [nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 6, 3, padding=1, padding_mode="circular")]
        )
        self.act, self.pool = nn.ReLU(), nn.AvgPool2d(2)
        self.depthwise = nn.Conv2d(6, 6, 3, padding=1, groups=6)
        self.odd = nn.Linear(24, 7)
        self.offset = nn.Parameter(torch.zeros(7))
        self.head = nn.Linear(7, 4)

    def forward(self, x):
        x = self.act(self.convs[0](x))
        y = self.act(self.convs[1](x))
        y += F.gelu(self.depthwise(x))
        x = self.pool(torch.cat((x, y), 1)).mean(dim=3)
        x = torch.add(x, 1.0)
        a, b = x.chunk(2, dim=1)
        x = F.leaky_relu(a.add(b), 0.1).flatten(1)
        x = F.elu(self.odd(x)) + self.offset
        return F.log_softmax(self.head(F.dropout(x, 0.5, self.training)), dim=-1)


@pytest.mark.parametrize("options", [{}, {"activation": "keep"}, {"padding_mode": "circular"}, {"learnable": False}])
def test_calls_in_forward(options):
    found = check_bound_and_training(Everything, (3, 8, 8), **options)
    after = {change.name: change.after for change in found.changes}
    assert after["depthwise"].startswith("AOLConv2d") and after["cat"].startswith("UnitConcat(2")
    assert after["add"].startswith("ConvexSum(2") and after["add_2"].startswith("ConvexSum(2")
    assert after["log_softmax"] == "Identity()" and after["dropout"].startswith("Dropout")
    gates = [p for name, p in found.model.named_parameters() if name.endswith("raw")]
    assert len(gates) == (0 if options.get("learnable") is False else 3)
    if options.get("activation") == "keep":
        assert "constant 1.12" in str(found.changes)  # GELU
    else:
        assert after["elu"] == "Abs()"  # 7 channels
    x = torch.randn(64, 3, 8, 8)
    found.model.eval()
    assert torch.equal(found.model(x), found.model(x))  # dropout follows eval
    found.model.train()
    assert not torch.equal(found.model(x), found.model(x))


def test_copies_pickles_and_state_dicts():
    found = convert(Everything(), (3, 8, 8))
    x = torch.randn(2, 3, 8, 8)
    model = found.model.eval()
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(x), model(x))
    other = convert(Everything(), (3, 8, 8)).model.eval()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), model(x))
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    torch.testing.assert_close(torch.load(buffer, weights_only=False)(x), model(x))


def test_a_shared_layer_is_converted_once():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = nn.Linear(6, 6)

        def forward(self, x):
            for _ in range(3):
                x = torch.tanh(self.step(x))
            return x

    found = convert(Recurrent(), (6,))
    assert [c.name for c in found.changes] == ["step"] and found.bound <= 1 + 1e-4


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


def test_hooks_and_tied_weights_are_not_dropped_in_silence():
    tied = convert(Tied(), (6,))
    assert [r.name for r in tied.refused] == ["b"] and "weight is that of a" in str(tied)
    assert tied.bound <= 1 + 1e-4
    hooked = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    hooked[0].register_forward_hook(lambda module, args, output: 5 * output)
    hooked.register_forward_pre_hook(lambda module, args: (5 * args[0],))
    found = convert(hooked, (6,))
    assert [r.name for r in found.refused] == ["(model)", "0"] and all("hooks" in r.reason for r in found.refused)
    x, y = torch.randn(2, 4, 6)
    assert (found.model(x) - found.model(y)).norm() <= (x - y).norm() * (1 + 1e-5)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.gate = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):  # (n, t, 4)
        x = self.norm(self.first(x))
        x = x * torch.sigmoid(self.gate(x))
        return x * self.scale


def test_what_has_no_bound_is_refused_by_name():
    found = convert(Attention(), (5, 4))
    assert math.isinf(found.bound)
    reasons = {refusal.name: str(refusal) for refusal in found.refused}
    assert "norm" not in reasons and "product" in reasons["mul"] and "trained" in reasons["mul_1"]
    assert "⚠ not converted: mul" in str(found) and "no Lipschitz constant is known" in str(found)
    assert isinstance(found.model.first, OrthoLinear)


def test_layer_norm_of_the_last_axes():
    """Of tokens (batch, time, channels): the mean of each over its channels is subtracted."""
    plain = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 4), nn.LayerNorm((5, 4)))
    found = convert(plain, (5, 4))
    assert found.bound <= 1 + 1e-4 and found.refused == ()
    x = torch.randn(2, 5, 6)
    torch.testing.assert_close(found.model.get_submodule("1")(x), x - x.mean(-1, keepdim=True))


def test_attention_is_refused_with_what_to_take_instead():
    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    found = convert(Plain(), (5, 8))
    assert math.isinf(found.bound)
    assert any("DistanceAttention" in str(refusal) for refusal in found.refused)


class ByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm, self.act = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU()

    def forward(self, x):
        x = self.act(self.norm(self.layer(x)))
        return x if x.sum() > 0 else -x


def test_a_forward_that_cannot_be_traced_keeps_its_code():
    found = convert(ByValue(), (2, 6, 6))
    assert isinstance(found.model, ByValue) and isinstance(found.model.act, MaxMin)
    assert "cannot be traced" in found.refused[0].reason and len(found.changes) == 3
    assert math.isinf(found.bound)
    with pytest.raises(ParameterError, match="graph"):
        convert(ByValue(), (2, 6, 6), weights="keep")


def test_the_head_makes_up_for_rounding():
    found = convert(MLP(), (1, 8, 8))
    assert 1 - 1e-5 < found.bound <= 1 + 1e-6 and found.model.fc3.lipschitz <= 1


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
def test_other_constants(lipschitz):
    found = convert(MLP(), (1, 8, 8), lipschitz=lipschitz)
    assert found.bound == pytest.approx(lipschitz, rel=1e-4)
    own = [m.lipschitz for m in found.model.modules() if isinstance(m, OrthoLinear)]
    assert own == pytest.approx([lipschitz ** (1 / len(own))] * len(own), rel=1e-3)
    kept = convert(MLP(), (1, 8, 8), lipschitz=lipschitz, weights="keep")
    assert kept.bound == pytest.approx(lipschitz, rel=1e-4)


def test_constants_are_spread_over_what_everything_passes():
    """Not over branches, whose constants do not multiply; and a layer that is called twice has two shares."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right, self.twice = (nn.Linear(6, 6) for _ in range(4))
            self.mixed = nn.Linear(6, 6)

        def forward(self, x):
            x = torch.relu(self.first(x))
            x = self.left(x) + torch.relu(self.right(x))
            x = self.twice(torch.relu(self.twice(x)))
            return x + self.mixed(self.mixed(x))

    found = convert(Branches(), (6,), lipschitz=27.0, learnable=False)
    assert found.bound == pytest.approx(27, rel=1e-3)
    own = {name: getattr(found.model, name).lipschitz for name in ("first", "left", "right", "twice", "mixed")}
    assert own == pytest.approx({"first": 3, "left": 1, "right": 1, "twice": 3, "mixed": 1}, rel=1e-3)
    branches = convert(ResNet18(width=4), (3, 32, 32), lipschitz=0.2)
    assert 0.1 < branches.bound <= 0.2 * (1 + 1e-4) and branches.model.fc.lipschitz < 1


@pytest.mark.parametrize("lipschitz", [0.3, 7.0])
def test_certificates_of_other_constants_hold(lipschitz):
    """Radii are divided by the constant, and an attack inside of them finds nothing; one that ignored it would."""
    torch.manual_seed(0)
    model = convert(MLP(), (1, 8, 8), lipschitz=lipschitz).model.eval()
    x = torch.rand(16, 1, 8, 8)
    labels = model(x).argmax(1)
    radii = orthogonium.certify(model, [(x, labels)]).radii
    assert (radii > 0).all()
    assert_certificate(model, x, radii, labels)
    if lipschitz > 1:
        with pytest.raises(AssertionError):
            assert_certificate(model, x, radii * lipschitz, labels)


def test_options_reach_the_layers():
    found = convert(nn.Sequential(nn.Conv2d(2, 4, 3)), (2, 6, 6), "aol", niter=3)
    assert found.model.get_submodule("0").parametrizations.weight[0].kernel.niter == 3


@pytest.mark.parametrize("dims", [1, 3])
def test_other_dimensions(dims):
    conv, transpose = getattr(nn, f"Conv{dims}d"), getattr(nn, f"ConvTranspose{dims}d")
    norm, pool = getattr(nn, f"BatchNorm{dims}d"), getattr(nn, f"MaxPool{dims}d")
    plain = nn.Sequential(conv(2, 4, 3, padding=1), norm(4), nn.ReLU(), pool(3, 1, 1), transpose(4, 2, 2, stride=2))
    found = convert(plain, (2, *(6,) * dims))
    assert found.bound <= 1 + 1e-4 and len(found.changes) == 5


def test_mistakes():
    for options, match in [
        ({"method": "magic"}, "no method 'magic'"),
        ({"weights": "old"}, "weights is one of 'new', 'keep'"),
        ({"activation": "relu"}, "activation is one of"),
        ({"method": "sandwich", "weights": "keep"}, "contain their activation"),
        ({"lipschitz": -1.0}, "must be positive"),
    ]:
        with pytest.raises(ParameterError, match=match):
            convert(MLP(), (1, 8, 8), **options)
    with pytest.raises(ParameterError, match="input_shape"):
        convert(MLP(), 64)
    with pytest.raises(ParameterError, match="takes a module"):
        convert(torch.relu, (3,))
    assert "convert" in dir(orthogonium)


# ── kept weights ──


def trained_digits(steps=150):
    data = load_dataset("digits")
    train_set, test_set = data.train, data.test
    x, y = unit_pixels(train_set.pixels), train_set.labels
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip
    steps_to(model, x, y, unit_pixels(test_set.pixels), test_set.labels, steps, temperature=1.0)
    return model, x, y, unit_pixels(test_set.pixels), test_set.labels


def accuracy(model, x, y):
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def steps_to(model, x, y, test_x, test_y, steps, temperature=30.0, goal=2.0):
    """Number of steps after which the accuracy is `goal`; `steps` if it is not reached."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(0)
    for step in range(steps):
        if goal <= 1 and accuracy(model, test_x, test_y) >= goal:
            return step
        model.train()
        index = torch.randint(len(x), (128,), generator=generator)
        loss = F.cross_entropy(temperature * model(x[index]), y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return steps


def test_kept_weights_start_above_chance_and_need_fewer_steps():
    kept_steps = new_steps = 0
    for seed in range(3):  # one alone may go either way
        torch.manual_seed(seed)
        plain, *data = trained_digits()
        test = data[2:]
        reference = accuracy(plain, *test)
        assert reference > 0.95
        kept = convert(plain, (1, 8, 8), weights="keep")
        new = convert(plain, (1, 8, 8), activation="keep")
        assert accuracy(kept.model, *test) > 0.2  # chance is 0.1
        assert all(change.distance is not None for change in kept.changes if "Conv2d" in change.before)
        kept_steps += steps_to(kept.model, *data, 150, goal=reference - 0.02)
        new_steps += steps_to(new.model, *data, 150, goal=reference - 0.02)
        assert lipschitz_bound(kept.model, (1, 8, 8)).value <= 1 + 1e-4
    assert kept_steps < new_steps


def test_kept_weights_of_a_method_that_scales_keep_the_accuracy():
    torch.manual_seed(0)
    plain, *data = trained_digits()
    scaled = convert(plain, (1, 8, 8), "aol", weights="keep")
    assert scaled.bound <= 1 + 1e-4 and accuracy(scaled.model, *data[2:]) >= accuracy(plain, *data[2:]) - 0.01


@pytest.mark.parametrize("make", [lambda: ResNet18(width=4), lambda: UNet(width=4), Everything, MLP])
def test_methods_that_scale_keep_the_network_up_to_a_factor(make):
    plain = make()
    shape = {"ResNet18": (3, 32, 32), "UNet": (1, 16, 16), "Everything": (3, 8, 8), "MLP": (1, 8, 8)}[
        type(plain).__name__
    ]
    if isinstance(plain, Everything):  # each group has a factor of its own, the same for equal ones
        plain.depthwise.weight.data[1:] = plain.depthwise.weight.data[:1]
    plain.train()
    for _ in range(3):  # statistics that are not those of the start
        plain(1 + 2 * torch.randn(16, *shape))
    plain.double().eval()
    found = convert(plain, shape, "spectral" if isinstance(plain, MLP) else "aol", weights="keep")
    x = torch.randn(8, *shape, dtype=torch.float64)
    after, before = found.model.eval()(x), plain(x)
    if isinstance(plain, MLP | Everything):  # without the softmax at the end, up to a constant for each sample
        before = before.log() if isinstance(plain, MLP) else before
        after, before = after - after.mean(1, keepdim=True), before - before.mean(1, keepdim=True)
    assert F.cosine_similarity(after.flatten(), before.flatten(), dim=0) > 1 - 1e-6
    assert found.agreement > 1 - 1e-6


def test_agreement_is_measured():
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 4))
    kept = convert(plain, (1, 4, 4), "spectral", weights="keep")
    assert kept.agreement == pytest.approx(1, abs=1e-6) and "agree to 1.0000" in str(kept)
    other = convert(plain, (1, 4, 4), "spectral", weights="keep", activation="maxmin")
    x = torch.randn(4096, 1, 4, 4)
    seen = F.cosine_similarity(other.model(x).flatten(), plain(x).flatten(), dim=0)
    assert other.agreement < 0.99 and abs(other.agreement - seen) < 0.2
    assert convert(plain, (1, 4, 4)).agreement is None


def test_frozen_layers_and_their_modes_stay_so():
    plain = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    plain[0].requires_grad_(False)
    plain[1].eval()
    model = convert(plain, (2, 4, 4)).model
    assert not any(p.requires_grad for p in model.get_submodule("0").parameters())
    assert all(p.requires_grad for p in model.get_submodule("4").parameters())
    assert model.training and not model.get_submodule("1").training and model.get_submodule("4").training


class WithoutGradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            x = self.first(x)
        return self.second(x)


def test_parts_without_gradients_are_named():
    found = convert(WithoutGradients(), (4,))
    assert [refusal.name for refusal in found.refused] == ["first"] and "no_grad" in found.refused[0].reason


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x) + x


@pytest.mark.parametrize("normalized", [False, True])
def test_layers_with_a_forward_pass_of_their_own_are_followed(normalized):
    layer = Doubled(4, 4)
    if normalized:
        layer = nn.utils.parametrizations.weight_norm(layer)
    found = convert(nn.Sequential(layer, nn.ReLU()), (4,), "spectral", weights="keep")
    lost = found.refused or math.isinf(found.bound)
    assert lost or (found.agreement > 1 - 1e-5 and found.bound <= 1 + 1e-4)


def test_the_reason_why_another_method_took_over_is_told():
    plain = nn.Sequential(nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(20, 2))
    notes = str(convert(plain, (3, 4, 4), "rko", ortho_params=None).changes)
    assert "rko has no such layer: " in notes


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_networks_are_refused_with_what_to_write_instead(cell):
    class Last(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(4, 4, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0][:, -1]

    (refused,) = orthogonium.convert(Last(), (5, 4)).refused
    assert refused.name == "cell" and "OrthoLinear" in refused.reason and "build_once" in refused.reason
