"""Why some operators have no bound, and what to use instead."""

_NORM = "It divides by a deviation that may be as small as √eps: a constant of 316 or more, of no use as a bound."
_ATTENTION = "Attention is a product of values: it is not Lipschitz on unbounded inputs."
_TOKENS = "Mix tokens by OrthoLinear on the transposed axis, or by convolutions."
_CELL = (
    "Write the loop with cell = OrthoLinear(hidden + features, hidden) and h = act(cell(torch.cat([h, x], dim=-1))), "
    "under build_once: 1-Lipschitz in the whole sequence (docs/building.md, Recurrent networks)."
)
GATES = ("Its gates multiply two values that both depend on the input: not Lipschitz.", _CELL)
RECURRENCE = ("It applies its matrix at each step: the constant depends on the length, and training changes it.", _CELL)
ADVICE: dict[str, tuple[str, str]] = {
    "layer_norm": (_NORM, "Use LayerCentering."),
    "group_norm": (_NORM, "Use LayerCentering."),
    "rms_norm": (_NORM, "Leave it out, or use BatchLipNorm."),
    "fused_rms_norm": (_NORM, "Leave it out, or use BatchLipNorm."),
    "transformer_encoder_layer_fwd": (_ATTENTION, _TOKENS),
    "multi_head_attention": (_ATTENTION, _TOKENS),
    "scaled_dot_product_attention": (_ATTENTION, _TOKENS),
    "scaled_dot_product_flash_attention": (_ATTENTION, _TOKENS),
    "scaled_dot_product_flash_attention_for_cpu": (_ATTENTION, _TOKENS),
    "scaled_dot_product_efficient_attention": (_ATTENTION, _TOKENS),
    "scaled_dot_product_cudnn_attention": (_ATTENTION, _TOKENS),
    "glu": ("A gate is a product of values: not Lipschitz.", "Use MaxMin."),
    "exp": ("The exponential is not Lipschitz.", "Use Softplus."),
    "expm1": ("The exponential is not Lipschitz.", "Use Softplus."),
    "sqrt": ("The root has an infinite slope at 0.", "Use L2NormPool; roots of sums of squares are known."),
    "rsqrt": ("It is steep near 0, and so are normalizations by it (RMSNorm).", "Leave it out, or use BatchLipNorm."),
    "log": ("The logarithm has an infinite slope at 0.", "Use log_softmax or Softplus."),
    "reciprocal": ("It is not Lipschitz near 0.", "Divide by constants only."),
    "hardshrink": ("It jumps.", "Use Softshrink."),
    "var": ("Variances are squares: not Lipschitz.", "Use std, or L2NormPool."),
    "prod": ("Products of values are not Lipschitz.", "Use sums, maxima or norms."),
    "cumprod": ("Products of values are not Lipschitz.", "Use sums, maxima or norms."),
    "cdist_forward": ("Its rounding is that of a difference of squares.", "Use (x[:, None] - w).norm(dim=-1)."),
    "lstm": GATES,
    "mkldnn_rnn_layer": GATES,
}  # fmt: skip
