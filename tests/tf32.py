"""A processor that rounds the factors of float32 products to 10 bits (TF32) wherever torch's settings allow it to."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode

BY_LIBRARY = hasattr(torch._C, "_get_fp32_precision_getter")  # else there is one setting for all
SETTINGS = [(library, operator) for library in ("cuda", "mkldnn") for operator in ("all", "matmul")]
SETTINGS = [("generic", "all"), *SETTINGS, ("mkldnn", "conv")]  # not those of cuDNN, which allow TF32 by default
_aten = torch.ops.aten
_MATMUL = {_aten.mm: 0, _aten.bmm: 0, _aten.mv: 0, _aten.dot: 0, _aten.addmm: 1, _aten.baddbmm: 1, _aten.addmv: 1}
_MATMUL[torch.ops.mkldnn._linear_pointwise] = 0
_CONVOLUTION = {_aten.convolution: (0, 1), _aten.convolution_backward: (0, 1, 2)}


def round_to_tf32(x):
    """To the nearest float32 with 10 bits of mantissa, or complex number of two of them."""
    if x.is_complex():
        return torch.view_as_complex(round_to_tf32(torch.view_as_real(x.resolve_conj())))
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(torch.float32)


def _allowed(operator):
    if not BY_LIBRARY:
        return torch.get_float32_matmul_precision() != "highest"
    settings = [torch._C._get_fp32_precision_getter(library, operator) for library in ("cuda", "mkldnn")]
    return any(s not in ("ieee", "none") for s in (settings if operator == "matmul" else settings[1:]))


@contextmanager
def settings_of_products():
    """Settings that are made inside end with it."""
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")
        if BY_LIBRARY:
            for where in SETTINGS:
                torch._C._set_fp32_precision_setter(*where, "none")


@contextmanager
def tf32_allowed():
    """Matrix products and convolutions may be rounded, on CPUs and elsewhere."""
    with settings_of_products():
        torch.set_float32_matmul_precision("high")
        if BY_LIBRARY:
            torch.backends.mkldnn.conv.fp32_precision = "tf32"
        yield


class TF32(TorchDispatchMode):
    """Counts the products it rounded in `rounded`.

    Convolutions follow the setting of CPUs; that of CUDA allows TF32 by default.
    """

    supports_higher_order_operators = True  # as they are: none of them is a product

    def __init__(self):
        super().__init__()
        self.rounded = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not {*types} <= {torch.Tensor, torch.nn.Parameter}:
            return NotImplemented  # a tensor of another kind says itself what it computes
        packet = getattr(func, "overloadpacket", None)
        if packet in _MATMUL and _allowed("matmul"):
            factors = (_MATMUL[packet], _MATMUL[packet] + 1)
        elif packet in _CONVOLUTION and _allowed("conv"):
            factors = _CONVOLUTION[packet]
        else:
            return func(*args, **(kwargs or {}))
        args = list(args)
        if args[factors[0]].dtype in (torch.float32, torch.complex64):
            self.rounded += 1
            for i in factors:
                args[i] = round_to_tf32(args[i])
        return func(*args, **(kwargs or {}))
