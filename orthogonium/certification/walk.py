"""Walks the graph of any model by running it once on zeros that know their Lipschitz constant.

Note [How the graph is walked]
The input is a tensor subclass, so every torch function the model calls, by whatever Python code, passes through
`__torch_function__`: the function runs as usual and the result carries the constant that the table of rules gives. Calls of
modules are seen too: layers that are measured as a whole (`layer_rules`) are leaves, all other modules are walked
through, torch's own included. Python's control flow over shapes, flags and configuration simply happens. What would
lose track of a value (`.item()`, `if x.sum() > 0`, `.numpy()`) raises `TraceError`. Parameters, buffers and whatever is
computed from them alone are constants.

Note [In-place operations]
An in-place function changes the value of the tensor it is called on. Other tensors that share its memory (views) have
changed too, in ways not followed here: they lose their bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from orthogonium.certification.failures import TraceError, Unbounded
from orthogonium.certification.tracking import (
    CONSTANTS,
    ESCAPES,
    SHAPES,
    Call,
    Step,
    Tracked,
    has_hooks,
    mapped,
    plain,
    tensors,
    type_name,
)
from orthogonium.certification.values import Base, Value, network_input
from orthogonium.certification.watch import memory_of, watched
from orthogonium.spectral import Spectrum

BATCH = 2  # so that a rule can tell the batch from an axis of size 1

_patch_lock = threading.RLock()


@dataclass
class Walker:
    """One walk: where we are, what was met, and what to do with functions and layers.

    `function_rule(call)` returns the value of the output (or one for each tensor of it), or raises `NoBound`.
    """

    function_rule: Callable[[Call], Value | Sequence[Value] | None]
    layer_rule: Callable[[nn.Module, Tracked, Walker], Value | None]
    summarized: Callable[[nn.Module], bool] = lambda module: False
    names: dict[int, str] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    unbounded: list[Unbounded] = field(default_factory=list)
    tracked: list[Tracked] = field(default_factory=list)
    memory: set[int | None] = field(default_factory=set)  # of tracked tensors, which are all kept
    bases: dict[tuple[int, int, int], Base] = field(default_factory=dict)
    spectra: dict[tuple[int, torch.Size], Spectrum] = field(default_factory=dict)  # of a layer at an input shape
    secants: dict[tuple[int, torch.Size], float] = field(default_factory=dict)
    hidden: dict[int, tuple[Value, Unbounded]] = field(default_factory=dict)
    failed: str = ""  # innermost module that raised
    lost: TraceError | None = None  # raised by the watch, whatever others made of it
    last_dense: tuple[Tracked, nn.Linear, Value] | None = None  # output, layer, value of its input

    @property
    def place(self) -> str:
        """Name of the module that is running."""
        return self.stack[-1] if self.stack else "(model)"

    def track(self, tensor: Tensor, value: Value) -> Tracked:
        """A tensor with its value."""
        result = tensor.detach().as_subclass(Tracked)
        result.value, result.walker = value, self
        self.tracked.append(result)
        self.memory |= {memory_of(result)} - {None}
        return result

    def no_bound(self, x: Value, operation: str, reason: str, remedy: str) -> Value:
        """Note an operation without a constant; only where its input still had one, so that causes are listed."""
        if x.bound != float("inf"):
            self.unbounded.append(Unbounded(self.place, operation, reason, remedy))
            warning = f"{reason} {remedy}"
            self.steps.append(Step(self.place, operation, float("inf"), "unbounded", float("inf"), warnings=(warning,)))
        return x.scaled(float("inf"))

    def latent(self, x: Value, operation: str, reason: str, remedy: str) -> Value:
        """A value without a bound that may never be used; `reveal` notes it when it is."""
        value = x.scaled(float("inf"))
        value = Value(value.base, value.rows)
        self.hidden[id(value)] = value, Unbounded(self.place, operation, reason, remedy)
        return value

    def reveal(self, value: Value) -> None:
        """Note why a value has no bound, if that has not been noted."""
        _, node = self.hidden.get(id(value), (None, None))
        if node is not None and node not in self.unbounded:
            self.unbounded.append(node)
            note = (f"{node.reason} {node.remedy}",)
            infinity = float("inf")
            self.steps.append(Step(node.place, node.operation, infinity, "unbounded", infinity, warnings=note))

    # ── functions ──

    def function(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What `__torch_function__` does."""
        call = Call(func, args, kwargs, self)
        if call.name in SHAPES or call.name in CONSTANTS:
            return func(*plain(args), **plain(kwargs))
        if call.name == "requires_grad_":
            return args[0]
        if call.name in ESCAPES:
            raise TraceError(
                f"{self.place} calls {call.name} on a value computed from the input, so that what the model computes may "
                "depend on it: the model is not one function to bound. Replace branches on values by tensor operations "
                "(torch.where, clamp, max), and keep diagnostics out of forward."
            )
        if call.name == "__setitem__":
            return self._assign(call)
        call.output = func(*plain(args), **plain(kwargs))
        if not tensors(call.output):
            return call.output
        for operand in call.operands:
            self.reveal(operand.value)
        values = self.function_rule(call)
        if values is None:
            return call.output
        if call.in_place:
            return self._changed(call, values)
        return self._wrapped(call.output, values)

    def _wrapped(self, output: Any, values: Value | Sequence[Value]) -> Any:
        remaining = iter([values] * len(tensors(output)) if isinstance(values, Value) else values)
        return mapped(lambda t: self.track(t, next(remaining)), output)

    def _changed(self, call: Call, values: Value | Sequence[Value]) -> Tracked:
        """Note [In-place operations]."""
        value = values if isinstance(values, Value) else values[0]
        target = call.args[0]
        if not isinstance(target, Tracked):
            raise TraceError(
                f"{self.place} writes a value computed from the input into a tensor in place ({call.name}), which is not "
                "followed. Write out = out + x instead of out += x."
            )
        self.overwrite(target, value)
        return target

    def overwrite(self, target: Tracked, value: Value) -> None:
        """Give `target` a new value after its memory has changed."""
        memory = target.untyped_storage().data_ptr()
        for other in self.tracked:
            if other is not target and other.untyped_storage().data_ptr() == memory:
                other.value = self.latent(other.value, "view", "Its memory was changed in place.", "Use a copy.")
        target.value = Value(value.base, value.rows)  # a new one: pieces cut before are not pieces of what is there now

    def _assign(self, call: Call) -> None:
        """`x[…] = y`: the tensor written to and all its views lose their bound."""
        source = next(t for t in tensors((call.args, call.kwargs)) if isinstance(t, Tracked))
        call.func(*plain(call.args), **plain(call.kwargs))
        if not isinstance(call.args[0], Tracked):
            raise TraceError(
                f"{self.place} writes a value computed from the input into a tensor in place (x[…] = y), which is not "
                "followed. Use torch.cat, torch.stack or torch.where."
            )
        value = self.no_bound(
            source.value, "x[…] = y", "Assignment in place is not followed.", "Use torch.cat or torch.where."
        )
        self.overwrite(call.args[0], value)

    # ── modules ──

    @contextmanager
    def inside(self, module: nn.Module) -> Iterator[None]:
        """While `module` runs."""
        self.stack.append(self.names.get(id(module), f"(unregistered {type_name(module)})") or "(model)")
        try:
            yield
        except BaseException:
            self.failed = self.failed or self.place
            raise
        finally:
            self.stack.pop()

    def module(self, original: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """What a call of a module does: measure a layer as a whole, or walk through."""
        with self.inside(module):
            if len(args) == 1 and not kwargs and isinstance(args[0], Tracked):
                with torch._C.DisableTorchFunctionSubclass():
                    self.reveal(args[0].value)
                    if has_hooks(module):
                        return self._hooked(original, module, args[0])
                    value = self.layer_rule(module, args[0], self)
                    if value is not None:
                        return self._leaf(module, args[0], original(module, plain(args[0])), value)
                    first, source = len(self.steps), args[0].value
                result = original(module, *args, **kwargs)
                if self.summarized(module) and isinstance(result, Tracked):
                    self._summarize(module, first, source, result.value)
                return result
            return original(module, *args, **kwargs)

    def _leaf(self, module: nn.Module, x: Tracked, output: Tensor, value: Value) -> Tracked:
        result = self.track(output, value)
        if isinstance(module, nn.Linear):
            self.last_dense = result, module, x.value
        return result

    def _hooked(self, original: Callable[..., Any], module: nn.Module, x: Tracked) -> Any:
        """A module with forward hooks: its own forward is bounded as usual, the hooks are walked through."""
        own = module.forward
        overridden = "forward" in module.__dict__

        def forward(*args: Any, **kwargs: Any) -> Any:
            if len(args) == 1 and not kwargs and isinstance(args[0], Tracked):
                with torch._C.DisableTorchFunctionSubclass():
                    module.__dict__.pop("forward")
                    if overridden:
                        module.forward = own
                    value = self.layer_rule(module, args[0], self)
                    if value is not None:
                        return self._leaf(module, args[0], own(plain(args[0])), value)
            return own(*args, **kwargs)

        source = x.value.bound
        module.forward = forward
        try:
            with torch._C._EnableTorchFunction():
                result = original(module, x)
        finally:
            module.__dict__.pop("forward", None)
            if overridden:
                module.forward = own
        promised = getattr(module, "guarantee", None)
        if promised is not None and isinstance(result, Tracked) and result.value.bound > source * (1 + 1e-4):
            factor = result.value.bound / source
            text = f"Its guarantee is broken by a forward hook: together they are {factor:.6g}-Lipschitz at most."
            bound, kind = result.value.bound, "constant"
            step = Step(self.place, f"hook of {type_name(module)}", factor, kind, bound, warnings=(text,))
            own_steps = [s for s in self.steps if s.place == self.place and s.kind == "constant"]
            self.steps = [s for s in self.steps if s not in own_steps] + [step]
        return result

    def _summarize(self, module: nn.Module, first: int, source: Value, value: Value) -> None:
        """One step instead of the arithmetic of the module itself; the steps of its parts stay."""
        own = [s for s in self.steps[first:] if s.place == self.place and s.kind == "constant"]
        self.steps[first:] = [s for s in self.steps[first:] if s not in own]
        factor = value.bound / source.bound if 0 < source.bound < float("inf") else value.bound
        text = str(module.guarantee) if hasattr(module, "guarantee") else None
        self.steps.append(Step(self.place, type_name(module), factor, "constant", value.bound, guarantee=text))


@contextmanager
def _seen_modules(walker: Walker) -> Iterator[None]:
    """Calls of modules with tracked arguments go through the walker."""
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(t, Tracked) and t.walker is walker for t in tensors((args, kwargs))):
            return walker.module(original, module, args, kwargs)
        return original(module, *args, **kwargs)

    with _patch_lock:
        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put buffers (running statistics) and the random generator back afterwards.

    Meanwhile parameters ask for no gradient, so that constrained weights are built once even where slopes are taken.
    """
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    asking = [p for p in model.parameters() if p.requires_grad]
    try:
        for p in asking:
            p.requires_grad_(False)
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            yield
    finally:
        for p in asking:
            p.requires_grad_(True)
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)


def walk(model: nn.Module, zeros: Tensor, walker: Walker) -> Any:
    """Run `model` on zeros (batch, …) under the walker; the output is tracked."""
    for name, module in model.named_modules(remove_duplicate=False):
        walker.names.setdefault(id(module), name)
    with unchanged(model), _seen_modules(walker), watched(walker):
        with torch._C.DisableTorchFunctionSubclass():
            x = walker.track(zeros, network_input())
        return model(x)
