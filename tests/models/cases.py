"""Every model of the registry, reduced to a size at which it can be measured."""

from orthogonium.models import create_model

SMALL = {
    "aocnet_tiny": ((1, 8, 8), {"widths": (8, 12), "hidden": (16,)}),
    "lip_resnet_tiny": ((1, 8, 8), {"widths": (8, 12), "depths": (1, 1)}),
    "lip_resnet18": ((3, 6, 6), {"widths": (8,), "depths": (1,), "skip": "concat", "patch": 2}),
    "lip_shift_mixer": ((3, 8, 8), {"dim": 12, "depth": 3}),
    "liresnet": ((1, 8, 8), {"width": 8, "depth": 2, "neck": 12, "hidden": (16,)}),
    "lip_convmixer_tiny": ((1, 8, 8), {"dim": 16, "depth": 2, "kernel_size": 3}),
    "lip_convmixer_small": ((3, 8, 8), {"dim": 16, "depth": 1, "skip": "prescaled", "patch": 4, "kernel_size": 3}),
    "aocnet_v1": ((3, 16, 16), {"base_width": 4, "embedding_dim": 16, "groups": 2, "block_depth": 1}),
    "bcop_large_cnn": ((1, 8, 8), {}),
    "conv_mixer_inspired": ((3, 8, 8), {"dim": 16, "depth": 2}),
    "large_staged_cnn": ((3, 14, 14), {"dim_repeats": [(8, 1), (16, 1)], "dim_nb_dense": (16, 2)}),
    "lip_resnet": ((3, 16, 16), {"base_width": 4, "depths": (1, 1)}),
    "lip_vgg": ((3, 20, 20), {"base_width": 2, "hidden": 16}),
    "patch_based_cnn": ((3, 8, 8), {"dim": 16, "depth": 2}),
    "patch_based_expanded_cnn": ((3, 8, 8), {"dim": 16, "depth": 2, "kernel_size": 3}),
    "sllxbcop_resnet50": ((3, 16, 16), {"base_width": 4, "depths": (1, 1)}),
    "staged_cnn": ((3, 8, 8), {"dim_repeats": [(8, 1), (16, 1)], "dim_nb_dense": (16, 1)}),
}
CLASSWISE = {"aocnet_v1", "lip_resnet", "large_staged_cnn"}  # each logit is 1-Lipschitz, not all of them together


def small(name, **options):
    """The reduced model with 5 classes, and the shape of its images."""
    shape, reduced = SMALL[name]
    return create_model(name, shape, 5, **{**reduced, **options}), shape
