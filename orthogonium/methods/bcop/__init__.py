"""BCOP: the factors of an axis, the kernel they compose, and the images they are applied to in turn."""
