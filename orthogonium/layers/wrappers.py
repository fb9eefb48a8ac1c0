"""What surrounds a module: hooks, and wrappers for devices and compilers, which compute the same function."""

from __future__ import annotations

from torch import nn

# What torch.fx raises for a forward pass with value-dependent control flow, or with layers that are in no module.
UNTRACEABLE = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NameError)


def is_hooked(module: nn.Module) -> bool:
    """Whether a call runs more than the forward of the class."""
    own_call = type(module).__call__ is not nn.Module.__call__
    return own_call or bool(module._forward_hooks or module._forward_pre_hooks)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside torch's own wrappers; nothing is known about subclasses and wrappers with hooks."""
    kind = type(module)
    compiled = kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")
    if compiled and not (module._forward_hooks or module._forward_pre_hooks):  # its call is that of the compiler
        return unwrapped(module._orig_mod)  # type: ignore[arg-type]
    parallel = kind in (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if parallel and not is_hooked(module) and "forward" not in vars(module):
        return unwrapped(module.module)  # type: ignore[arg-type]
    return module
