"""The walk through the graph: each node is kept, replaced or refused, and the unit of its output is recorded."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, fx, nn

from orthogonium.conversion.constrained import Settings, constrained, is_constrained
from orthogonium.conversion.edits import Edits, attribute_of, name_of
from orthogonium.conversion.functions import (
    CONCATENATIONS,
    MOVEMENT,
    SUMS,
    NodeCall,
    as_module,
    pass_by_position,
    picks_entries,
)
from orthogonium.conversion.modules import (
    BATCH_NORM,
    RELU_LIKE,
    CannotConvertError,
    Place,
    constant_of,
    ignores_units,
    replace,
)
from orthogonium.conversion.normalization import WITHOUT_DIVISION, centering, folded, kept_centering
from orthogonium.conversion.result import Change, describe
from orthogonium.conversion.scaled import Scaled
from orthogonium.conversion.tracing import shape_of
from orthogonium.errors import OrthogoniumError
from orthogonium.layers.joins import ConvexSum, UnitConcat
from orthogonium.layers.normalization import BatchCentering
from orthogonium.layers.parametrization import Constrained
from orthogonium.methods import METHODS

_WEIGHTED = (nn.Linear, nn.modules.conv._ConvNd)


class Converter(Edits):
    """Converts a graph in place."""

    def __init__(self, model: fx.GraphModule, settings: Settings) -> None:
        super().__init__(model)
        self.settings = settings
        self._replaced: dict[
            str, tuple[float, float]
        ] = {}  # for modules that are called again: divisor, unit of the input
        self._folded: dict[
            int, Tensor | None
        ] = {}  # normalizations whose scale is in the layer before: bias of that layer
        self._swallowed: set[fx.Node] = set()  # activations that went into the layer before them

    def run(self) -> fx.GraphModule:
        """Walk, and make the result a module again."""
        for node in list(self.model.graph.nodes):
            if node.op == "placeholder":
                self.units[node] = 1.0
            elif node.op not in ("get_attr", "output"):
                self._visit(node)
        self.model.graph.lint()
        self.model.delete_all_unused_submodules()
        self.model.recompile()
        return self.model

    def head(self) -> Constrained | None:
        """The last constrained layer that everything passes through, if there is one."""
        (output,) = (node for node in self.model.graph.nodes if node.op == "output")
        node = output
        while len(node.all_input_nodes) == 1:
            node = node.all_input_nodes[0]
            module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else None
            if isinstance(module, Constrained):
                return module
        return None

    def _visit(self, node: fx.Node) -> None:
        inputs = [n for n in node.all_input_nodes if n in self.units]
        if not inputs:
            return  # a constant
        self.units[node] = self.units[inputs[0]]
        if "lost_to" in node.meta:  # modules that replace a write have results of their own
            self._refuse(
                node,
                f"It writes into a tensor that {node.meta['lost_to']} reads afterwards, by itself or as a view. Write "
                "without inplace, and read the result: y = torch.relu(y), y = 3 * y.",
            )
            return
        pass_by_position(node)
        if node.meta.get("without_grad"):
            self._refuse(node, "It ran without gradients (torch.no_grad), and now has them. Use detach() in forward.")
        try:
            if not node.users and shape_of(node) is not None and node.target not in MOVEMENT:
                raise CannotConvertError("Nothing reads its result. Leave it out of the forward pass, or read it.")
            if node.op == "call_module":
                self._module(node, self.model.get_submodule(str(node.target)))
            elif (module := as_module(node)) is not None:
                self._module(node, module)
            else:
                self._operation(node, inputs)
        except OrthogoniumError as error:
            self._refuse(node, str(error))

    # ── modules ──

    def _module(self, node: fx.Node, module: nn.Module) -> None:
        unit = self.units[node]
        if node in self._swallowed:
            self._install(node, nn.Identity(), module, "inside the layer before it")
        elif node.op == "call_module" and str(node.target) in self._replaced:
            self._again(node, module, unit)
        elif isinstance(module, _WEIGHTED) and not is_constrained(module):
            self._weighted(node, module, unit)
        elif isinstance(module, _WEIGHTED):
            self._constrained(node, module, unit)
        elif isinstance(module, BATCH_NORM):
            self._batch_norm(node, module, unit)
        else:
            result = replace(module, self._place(node), self.settings.activation)
            if result.module is not None:
                self._install(node, result.module, module, result.note, per_call=not _has_state(module))
            elif node.op != "call_module" and _is_stateful(module):
                self._install(node, module, module, "follows train and eval")
            self._remember(node, result.divided, _has_state(module))

    def _remember(self, node: fx.Node, divided: float, once: bool = True) -> None:
        """Record the unit after a node; modules with parameters or statistics are replaced `once`, others per call."""
        unit = self.units[node]
        self.units[node] = unit * divided
        if node.op == "call_module" and once:
            self._replaced.setdefault(str(node.target), (divided, unit))

    def _again(self, node: fx.Node, module: nn.Module, unit: float) -> None:
        """A module that was met before, and was replaced for the unit that values had there."""
        divided, before = self._replaced[str(node.target)]
        self.units[node] = unit * divided
        state = (name for name, _ in (*module.named_parameters(), *module.named_buffers()))
        shifts = any(name.endswith(("bias", "running_mean")) for name in state)
        if self.settings.keep and shifts and abs(unit - before) > 1e-9 * before:
            raise CannotConvertError(
                f"It is called again where values have the unit {unit:.4g} instead of {before:.4g}, which its bias or "
                "mean would need, too. Use a module for each call, or new weights."
            )

    def _place(self, node: fx.Node) -> Place:
        source = next(n for n in node.all_input_nodes if n in self.units)
        shape = shape_of(source)
        if shape is None:
            raise CannotConvertError("Its input is not a tensor.")
        at_the_end = all(user.op == "output" for user in node.users)
        return Place(shape[1:], self.units[source], self._channel_axis(source, len(shape)), at_the_end)

    def _channel_axis(self, node: fx.Node, rank: int) -> int:
        """The last axis after a dense layer, else the second."""
        while rank > 2 and node.op.startswith("call"):
            if node.op == "call_module" and isinstance(self.model.get_submodule(str(node.target)), nn.Linear):
                return rank - 1
            before = [n for n in node.all_input_nodes if n in self.units]
            if not before or shape_of(before[0]) is None or len(shape_of(before[0]) or ()) != rank:
                break
            node = before[0]
        return 1

    def _weighted(self, node: fx.Node, layer: Any, unit: float) -> None:
        source = next(n for n in node.all_input_nodes if n in self.units)
        before, after = shape_of(source), shape_of(node)
        assert before is not None and after is not None
        norm = self._norm_to_keep(node)
        activation, holder = self._activation_behind(node)
        plain = layer if norm is None else folded(layer, norm)
        made = constrained(plain, self.settings, activation, (before[2:], after[2:]))
        if self.settings.keep and made.layer.bias is not None and plain.bias is not None:
            with torch.no_grad():
                made.layer.bias.copy_(plain.bias / (unit * made.scale))  # type: ignore[operator]
        if made.activated and holder is not None:
            self._swallowed.add(holder)
        if norm is not None:
            self._folded[id(norm)] = layer.bias
        self._install(node, made.layer, layer, made.note, made.distance)
        self._remember(node, made.scale)

    def _constrained(self, node: fx.Node, layer: Any, unit: float) -> None:
        """A layer that is already constrained stays, with its bias in the unit of its input.

        If a scale is to be kept, another constrained layer replaces it. If there is none, as for a kernel as large as
        the image, the normalization loses its scale, and this is noted.
        """
        if self._norm_to_keep(node) is not None:
            try:
                self._weighted(node, layer, unit)
                return
            except OrthogoniumError:
                pass
        if self.settings.keep and unit != 1 and layer.bias is not None:
            with torch.no_grad():
                layer.bias.div_(unit)
            note = "constrained already; its bias in the unit of its input"
            self.changes.append(Change(name_of(node), describe(layer), describe(layer), note))
        self._remember(node, 1.0)

    def _norm_to_keep(self, node: fx.Node) -> Any:
        """The batch normalization after a layer whose weight can absorb its scale, if weights are kept."""
        if not self.settings.keep:
            return None
        follower = next(iter(node.users)) if len(node.users) == 1 else None
        if follower is None or follower.op != "call_module":
            return None
        module = self.model.get_submodule(str(follower.target))
        once = len(self._calls(str(node.target))) == len(self._calls(str(follower.target))) == 1
        dense = node.op == "call_module" and isinstance(self.model.get_submodule(str(node.target)), nn.Linear)
        other_axis = (
            dense and len(shape_of(node) or ()) != 2
        )  # features are last, a normalization looks at the second axis
        return module if isinstance(module, BATCH_NORM) and once and not other_axis else None

    def _activation_behind(self, node: fx.Node) -> tuple[nn.Module | None, fx.Node | None]:
        """The activation that is the only reader of this node, maybe after a normalization: a layer may contain it."""
        if not METHODS[self.settings.method].activated:
            return None, None
        while len(node.users) == 1:
            node = next(iter(node.users))
            module = self.model.get_submodule(str(node.target)) if node.op == "call_module" else as_module(node)
            if isinstance(module, RELU_LIKE):
                return nn.ReLU(), node
            if not isinstance(module, (*BATCH_NORM, BatchCentering)):
                break
        return None, None

    def _batch_norm(self, node: fx.Node, norm: Any, unit: float) -> None:
        in_layer = id(norm) in self._folded
        if self.settings.keep:
            new, divided, note = kept_centering(norm, unit, in_layer, self._folded.get(id(norm)))
        else:
            new, divided, note = centering(norm), 1.0, WITHOUT_DIVISION
        self._install(node, new, norm, note)
        self._remember(node, divided)

    # ── operations ──

    def _operation(self, node: fx.Node, inputs: list[fx.Node]) -> None:
        shape = shape_of(node)
        values = [n for n in inputs if shape_of(n) is not None]
        if shape is not None and not any("tensor_meta" in n.meta for n in inputs):
            del self.units[node]  # computed from sizes alone: a constant
        elif node.target in CONCATENATIONS and len(values) > 1:
            self._concatenate(node, values)
        elif node.target in SUMS and len(values) == 2:
            self._sum(node, values)
        elif node.target in CONCATENATIONS and _beside_constants(node, values):
            if self.units[values[0]] != 1:
                raise CannotConvertError("It concatenates constants, which are not in the unit of the value.")
        elif len(values) > 1:
            raise CannotConvertError("It combines two values that both depend on the input: a product has no bound.")
        elif shape is None or node.target in MOVEMENT and not _arithmetic(node) and not picks_entries(node):
            return
        else:
            self._function(node, values)

    def _sum(self, node: fx.Node, values: list[fx.Node]) -> None:
        if shape_of(values[0]) != shape_of(values[1]):
            raise CannotConvertError("One of the terms is broadcast, which expands. Give both the same shape.")
        if node.kwargs:
            raise CannotConvertError("A sum with a factor. Multiply the term before it is added.")
        if SUMS[node.target] < 0:
            raise CannotConvertError("A difference of branches. Change the sign inside one, by its last layer.")
        units = [self.units[n] for n in values]
        join = ConvexSum(units if self.settings.keep else 2, self.settings.learnable, **self._kind())
        self._join(node, join, values, sum(units) if self.settings.keep else 1.0, "gates sum up to 1")

    def _concatenate(self, node: fx.Node, values: list[fx.Node]) -> None:
        listed = node.args[0]
        if not isinstance(listed, list | tuple) or list(listed) != values:
            raise CannotConvertError("Constants are among what is concatenated, or a tensor is there twice.")
        if node.kwargs:
            raise CannotConvertError(f"It is called with {', '.join(node.kwargs)}. Concatenate without.")
        dim = node.args[1] if len(node.args) > 1 else 0
        units = [self.units[n] for n in values]
        weights = units if self.settings.keep else len(units)
        join = UnitConcat(weights, dim, self.settings.learnable, **self._kind())  # type: ignore[arg-type]
        unit = sum(u * u for u in units) ** 0.5 if self.settings.keep else 1.0
        self._join(node, join, values, unit, "weights of norm 1")

    def _join(self, node: fx.Node, join: nn.Module, values: list[fx.Node], unit: float, note: str) -> None:
        before = self._describe(node)
        self._call(node, join, tuple(values))
        self.changes.append(Change(name_of(node), before, describe(join), note))
        self.units[node] = unit

    def _function(self, node: fx.Node, values: list[fx.Node]) -> None:
        """Any other function of one value: divided by its constant, if that exceeds 1."""
        first = not node.kwargs or node.args[0] is values[0]  # a factor `alpha` is that of the second term
        if node.target in SUMS and list(node.args).count(values[0]) == 1 and first:
            self._shift(node, values[0])
            return
        shape = shape_of(values[0])
        assert shape is not None
        call, unit = NodeCall(node, self._indices(node, values[0])), self.units[values[0]]
        constant = constant_of(call, shape[1:])
        unit = 1.0 if unit == 1 or ignores_units(call, shape[1:]) else unit
        if constant > 1 + 1e-6:
            name = self._describe(node)
            self._call(node, Scaled(call, 1 / constant, unit), (values[0],))
            self.changes.append(Change(name_of(node), name, f"{name} / {constant:.5g}", "divided by its constant"))
            self.units[node] = self.units[values[0]] * constant
        elif unit != 1:
            name = self._describe(node)
            self._call(node, Scaled(call, 1.0, unit), (values[0],))
            self.changes.append(
                Change(name_of(node), name, f"{name} in units of {unit:.5g}", "of values of its own size")
            )

    def _indices(self, node: fx.Node, value: fx.Node) -> dict[fx.Node, Tensor]:
        """Integer or boolean tensors among the arguments of a function, which no optimizer changes."""
        found: dict[fx.Node, Tensor] = {}
        for source in node.all_input_nodes:
            held = attribute_of(self.model, str(source.target)) if source.op == "get_attr" else None
            if isinstance(held, Tensor) and not held.is_floating_point() and not held.is_complex():
                found[source] = held
            elif source is not value:
                raise CannotConvertError(
                    "It multiplies by a tensor that may be trained, or by a size: no bound is kept."
                )
        return found

    def _spread(self, node: fx.Node, value: fx.Node) -> fx.Node:
        """The value, divided by the factor by which broadcasting in a sum increases distances: it repeats entries."""
        before, after = shape_of(value), shape_of(node)
        assert before is not None and after is not None
        if before == after:
            return value
        if len(before) != len(after) or before[0] != after[0]:
            raise CannotConvertError(
                "The value is broadcast along the samples. Give the constant no more axes than it has."
            )
        constant = math.sqrt(math.prod(after) / math.prod(before))
        with self.model.graph.inserting_before(node):
            divided = self.model.graph.call_function(torch.clone, (value,))
        self._call(divided, Scaled(nn.Identity(), 1 / constant), (value,))
        divided.meta = dict(value.meta)
        node.replace_input_with(value, divided)
        name = self._describe(node)
        note = "it broadcasts the value: divided by the constant of that"
        self.changes.append(Change(name_of(node), name, f"{name} / {constant:.5g}", note))
        self.units[divided] = self.units[node] = self.units[value] * constant
        return divided

    def _shift(self, node: fx.Node, value: fx.Node) -> None:
        """Bring an added constant into the unit of the value."""
        value = self._spread(node, value)
        unit = self.units[value]
        if unit == 1:
            return
        (place,) = (i for i, argument in enumerate(node.args) if argument is not value)
        constant = node.args[place]
        reads = [
            n for n in self.model.graph.nodes if n.op == "get_attr" and n.target == getattr(constant, "target", None)
        ]
        if isinstance(constant, fx.Node) and len(reads) == 1 and len(constant.users) == 1:
            with torch.no_grad():
                attribute_of(self.model, str(constant.target)).div_(unit)
        elif isinstance(constant, int | float):
            node.update_arg(place, constant / unit)
        else:
            raise CannotConvertError(
                f"The constant that is added cannot be brought into the unit {unit:.4g} of the value."
            )


def _beside_constants(node: fx.Node, values: list[fx.Node]) -> bool:
    """Whether a value is concatenated once, with constants only: distances do not change."""
    listed = node.args[0]
    return isinstance(listed, list | tuple) and [x for x in listed if x in values] == values and not node.kwargs


def _arithmetic(node: fx.Node) -> bool:
    return not isinstance(node.target, str) and node.target.__name__ in ("mul", "add", "sub", "floordiv")


def _has_state(module: nn.Module) -> bool:
    return next((True for _ in (*module.parameters(), *module.buffers())), False)


def _is_stateful(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.dropout._DropoutNd)
