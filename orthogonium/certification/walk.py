"""Follows any model, operator by operator, with tensors that know their Lipschitz constant.

Note [How a model is followed] The model runs on an input that stands for all inputs (`Tracked`, see Note
[Memory] of `tracked.py`). Every ATen operator of that run comes here, below all Python: hooks, subclasses,
`functional_call`, weights swapped in forward, exported programs and scripts have already happened. Operators are
looked up by their overload object in a closed table (`rules`); an operator without a rule has no bound. Weights are the
tensors that reach an operator, read at that moment; no attribute of a module is trusted, and modules only give their
names to the report. An operator that writes in place is treated as its functional counterpart followed by a write into
memory and sources, according to its torch schema.

Turning values into Python numbers (`.item()`, `if x.sum() > 0`, `.numpy()`) raises `TraceError`. Samples must not meet:
each entry of each tensor belongs to one sample of the batch. The walk is repeated with another batch size, and must
give the same constants.

Note [As a whole] Some of our functions are bounded by a theorem about all of their operations (`layers/whole.py`). Such
a function is taken as a whole if it is exactly the one the theorem is about: of one of our classes, with no method
replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from orthogonium.certification.checks import check_constants, check_digits, check_overlap
from orthogonium.certification.failures import TraceError
from orthogonium.certification.operators import ALIASES, READS, functional_of
from orthogonium.certification.places import Places, as_written
from orthogonium.certification.rules.call import Call, Effect, Jump, NoBound
from orthogonium.certification.tensors import Tensors, everything
from orthogonium.certification.tracked import Tracked, plain, replaced, tensors_in
from orthogonium.certification.whole_call import WholeCall, untouched

_GENERAL = "Use operations with a bound, or divide the model so that this one lies outside."


class Walk(Tensors, TorchDispatchMode):
    """One walk: what was met, and how operators are treated. Note [How a model is followed].

    Args:
        rules: what is known of operators, by overload object.
        patterns: what is known of several operators together; returns None if nothing is.
        wholes: what is known of functions that are taken as a whole.
        advice: reason and remedy for operators without a rule, by name.
        places: which module is running.
        beside_any_constant: operators that may combine values with constants that are not finite.
    """

    def __init__(
        self,
        rules: dict[Any, Callable[[Call], Any]],
        patterns: Callable[[Call, Any], Any],
        wholes: dict[Any, Callable[..., Any]],
        advice: dict[str, tuple[str, str]],
        places: Places,
        beside_any_constant: frozenset[Any] = frozenset(),
    ) -> None:
        Tensors.__init__(self, places)
        TorchDispatchMode.__init__(self)
        self.rules, self.patterns, self.wholes, self.advice = rules, patterns, wholes, advice
        self.beside_any_constant = beside_any_constant
        self.measured: list[Any] = []  # spectra of constants, with the constants they belong to

    # ── operators ──

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Note [How a model is followed]."""
        if self.paused:
            return func(*args, **(kwargs or {}))
        try:
            return self._dispatched(func, args, kwargs or {})
        except BaseException as error:  # the model may catch it and carry on with something else
            self.lost = self.lost or error
            raise

    def _dispatched(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors = list(tensors_in((args, kwargs)))
        tracked = [t for t in tensors if isinstance(t, Tracked)]
        for t in tensors:
            if not isinstance(t, Tracked) and type(t).__torch_dispatch__ is not Tensor.__torch_dispatch__:
                raise TraceError(
                    f"{self.place} computes with a {type(t).__name__}, a tensor with operators of its own, which are "
                    "not followed. Use ordinary tensors (for shards: gather them first)."
                )
        if any(t.walk is not self and not t.constant for t in tracked):
            raise TraceError(
                f"{self.place} uses a value of an earlier call: the model keeps values from one call to the next, so "
                "that it is not a function of its input alone."
            )
        if torch.Tag.inplace_view in func.tags and isinstance(args[0], Tracked):
            return self._reshaped(func, args, kwargs)
        if torch.Tag.nondeterministic_seeded in func.tags and not _without_values(tensors):
            return self._random(func, args, kwargs, tensors)
        if all(t.constant for t in tracked):
            return self._constants(func, args, kwargs, tensors)
        if func in READS:
            raise TraceError(
                f"{self.place} calls {READS[func]} on a value computed from the input, so that what the model computes "
                "may depend on it: the model is not one function to bound. Replace branches on values by tensor "
                "operations (torch.where, clamp, max), and keep diagnostics out of forward."
            )
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if written:
            return self._write(func, args, kwargs, written)
        return self._apply(Call(self, func, args, kwargs))

    def _constants(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """An operator on constants alone: new tensors may be written to later, views of parameters may not."""
        output = func(*plain(args), **plain(kwargs))
        given = {t.untyped_storage().data_ptr() for t in tensors if not isinstance(t, Tracked) and _has_memory(t)}
        by_inner = {id(t.value): t for t in tensors if isinstance(t, Tracked)}

        def wrapped(t: Tensor) -> Tensor:
            if id(t) in by_inner:
                return by_inner[id(t)]
            return t if not _has_memory(t) or t.untyped_storage().data_ptr() in given else self.constant(t)

        return replaced(output, wrapped)

    def _random(self, func: Any, args: Any, kwargs: Any, tensors: Sequence[Tensor]) -> Any:
        """Random numbers: a different function at each call."""
        operands = [t for t in tensors if isinstance(t, Tracked)]
        if not all(t.constant for t in operands):
            call = Call(self, func, args, kwargs)
            if func in self.rules or call.name in self.advice:  # random only in training, or not the reason
                return self._apply(call)
            raise TraceError(f"{self.place}: {call.name}: {' '.join(_RANDOM)}")
        self.note(func._schema.name.split("::")[-1].strip("_"), *_RANDOM)
        output = func(*plain(args), **plain(kwargs))
        known = {id(t.value): t for t in operands}
        return replaced(output, lambda t: known[id(t)] if id(t) in known else self.constant(t))

    def _apply(self, call: Call) -> Any:
        if call.func.is_view or call.func in ALIASES:
            return self._viewed(call)
        rule = self.rules.get(call.func)
        try:
            known = self.patterns(call, rule)
            if known is not None:
                check_digits(call, known, self.bases[0].dtype)
                return known if isinstance(known, Tracked) else self._outputs(call, known)
            if rule is None:
                name = call.name
                reason, remedy = self.advice.get(name, ("No Lipschitz constant is known.", _GENERAL))
                raise NoBound(reason, remedy)
            if call.func not in self.beside_any_constant:
                check_constants(call)
            effects = rule(call)
            if isinstance(effects, Tracked):
                check_digits(call, effects, self.bases[0].dtype)
                return effects
            for x in call.operands:
                for base in x.used():
                    self.reveal(base)
            check_digits(call, effects, self.bases[0].dtype)
        except NoBound as missing:
            self.note(call.name, missing.reason, missing.remedy)
            outputs = tensors_in(call.output)
            lost = tuple(x.form().scaled(math.inf) for x in call.operands)
            effects = [Effect(lost, everything(t, self.batch)) for t in outputs]
        return self._outputs(call, effects)

    def _outputs(self, call: Call, effects: Any) -> Any:
        listed = iter([effects] if isinstance(effects, (Effect, Jump)) else effects)
        operands = call.operands
        first = True

        def wrapped(t: Tensor) -> Tracked:
            nonlocal first
            effect = next(listed)
            result = self.computed(t, effect, operands, call.name)
            if first and isinstance(effect, Effect):
                self.record(call, effect, result, operands)
            first = False
            return result

        output = replaced(call.output, wrapped)
        return tuple(output) if isinstance(output, list) and not isinstance(call.output, list) else output

    def _viewed(self, call: Call) -> Any:
        """Views get their sources automatically. Note [Memory]."""

        def wrapped(t: Tensor) -> Tracked:
            memory = self.memories.find(t)
            if memory is None and t.numel():
                raise AssertionError(f"{call.func} did not return a view.")
            memory = memory or self.memories.of(t)
            if t.dtype != memory.dtype or t.is_neg() or t.is_conj():
                raise TraceError(f"{self.place}: {call.name} reads the bits of numbers as others. Use .to(dtype).")
            return Tracked(t, memory, self)

        return replaced(call.output, wrapped)

    def _reshaped(self, func: Any, args: Any, kwargs: Any) -> Tracked:
        """`unsqueeze_` and the like: another view of the same memory, by the same object."""
        functional = functional_of(func)
        if functional is None or not functional.is_view:
            raise TraceError(
                f"{self.place}: {func} changes the shape of a tensor in place. Use a function that returns a view."
            )
        target = args[0]
        names = [a.name for a in functional._schema.arguments]
        call = Call(self, func, args, kwargs)
        viewed = functional(**{n: plain(call[n]) for n in names})
        with no_dispatch():  # on the object itself, whose shape torch knows
            func(*args, **kwargs)
        target.show(viewed)
        return target

    def _write(self, func: Any, args: Any, kwargs: Any, written: Sequence[str]) -> Any:
        """An operator that writes: its functional counterpart, then the write."""
        call = Call(self, func, args, kwargs)
        target = call[written[0]]
        functional = functional_of(func)
        if len(written) != 1 or functional is None or not isinstance(target, Tensor):
            raise TraceError(
                f"{self.place}: what {func} writes is not followed. Use functions that return their results."
            )
        if not isinstance(target, Tracked):
            raise TraceError(
                f"{self.place} writes a value computed from the input into a tensor that it keeps ({call.name}): a "
                "parameter, a buffer or a tensor from outside of the call. The model then depends on earlier calls."
            )
        check_overlap(self.place, target, call.operands)
        names = [a.name for a in functional._schema.arguments]
        value = self._dispatched(functional, (), {n: call[n] for n in names})
        if isinstance(value, (tuple, list)):
            raise TraceError(
                f"{self.place}: what {func} writes is not followed. Use functions that return their results."
            )
        self.write(target, value)
        return target

    def write(self, target: Tracked, value: Tensor) -> None:
        """Put a value into the memory of `target`, seen by all its views."""
        if value.shape != target.shape:
            raise TraceError(f"{self.place} writes a value of shape {tuple(value.shape)} into {tuple(target.shape)}.")
        if value.dtype != target.dtype:
            value = self._dispatched(torch.ops.aten._to_copy.default, (value,), {"dtype": target.dtype})
        sources = value.codes.clone() if isinstance(value, Tracked) and not value.constant else None
        target.value.copy_(value.value if isinstance(value, Tracked) else value)
        if sources is not None or not target.constant:
            codes = target.codes  # before the base that numbers them is forgotten
            target.memory.written()
            codes.copy_(sources) if sources is not None else codes.zero_()

    # ── as a whole ──

    def take(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """A function by its own rule; NotImplemented where its operators are followed. Note [As a whole]."""
        rule = self.wholes.get(fn)
        owner = args[0] if args and isinstance(args[0], nn.Module) else None
        if rule is None or self.paused or (owner is not None and not untouched(owner)):
            return NotImplemented
        with self.pause():
            call = WholeCall(self, fn, args)
            for x in call.operands:
                for base in x.used():
                    self.reveal(base)
            try:
                effect = rule(call)
            except NoBound as missing:
                self.note(call.name, missing.reason, missing.remedy)
                lost = tuple(x.form().scaled(math.inf) for x in call.operands)
                effect = Effect(lost, everything(call.output, self.batch))
            if effect is NotImplemented:
                return effect
            result = self.computed(call.output, effect, call.operands, call.name)
            self.record(call, effect, result, call.operands)
            return result


_RANDOM = ("It draws random numbers: each call is another function.", "Call model.eval(), or leave the noise out.")


def _without_values(tensors: Sequence[Tensor]) -> bool:
    """Whether an operator only fills in shapes, as when a layer is made on the meta device."""
    return bool(tensors) and all(t.is_meta for t in tensors)


def _has_memory(t: Tensor) -> bool:
    return t.layout is torch.strided and t.device.type != "meta" and bool(t.untyped_storage().data_ptr())


def walk_model(model: nn.Module, zeros: Tensor, walk: Walk) -> Any:
    """Run `model` on zeros (batch, …) under the walk."""
    with torch.no_grad(), as_written(), walk.places.followed(walk.entered, walk.left), walk:
        return model(walk.input(zeros))
