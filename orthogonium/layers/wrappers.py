"""What stands around a module: hooks, and wrappers for devices and compilers, which compute what it does."""

from __future__ import annotations

from torch import nn

# What torch.fx raises of a forward pass whose course depends on values, or with layers that are in no module.
UNTRACEABLE = (TypeError, ValueError, RuntimeError, AttributeError, LookupError, NameError)


def is_hooked(module: nn.Module) -> bool:
    """Whether a call runs more than the forward of the class."""
    own_call = type(module).__call__ is not nn.Module.__call__
    return own_call or bool(module._forward_hooks or module._forward_pre_hooks)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside of torch's own wrappers; of subclasses and wrappers with hooks nothing is known."""
    kind = type(module)
    compiled = kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")
    if compiled and not (module._forward_hooks or module._forward_pre_hooks):  # its call is that of the compiler
        return unwrapped(module._orig_mod)  # type: ignore[arg-type]
    parallel = kind in (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if parallel and not is_hooked(module) and "forward" not in vars(module):
        return unwrapped(module.module)  # type: ignore[arg-type]
    return module
