"""The independent oracle: exact spectra, certified upper bounds, estimates from below.

| question | function | kind |
|---|---|---|
| anything | `spectrum` | stated in the result |
| the operator of any linear module | `operator_matrix`, `operator_singular_values` | exact |
| a non-linear module at points | `jacobian`, `jacobian_singular_values` | exact there |
| where a non-linear module is steepest | `steepest_point` | estimate |
| two inputs that any function moves far apart | `steepest_quotient`, on its `exact_twin` | estimate |
| all singular values of a circular convolution | `circular_singular_values` | exact |
| a norm that is never too small, by the cheapest sharp method | `norm_bound` | upper |
| the same, by one method each | `gram_bound`, `circular_gram_bound`, `grid_bound`, `unfolding_bound` | upper |
| a norm that is never too large | `power_iteration`, `lanczos`, `top_singular_values`, `tensor_norm` | estimate |

It reads layers through `geometry_of` and imports no other part of the library, so nothing certifies itself.
"""

from orthogonium.spectral.affine import is_affine
from orthogonium.spectral.circular import circular_singular_values
from orthogonium.spectral.definition import check_geometry
from orthogonium.spectral.enclosure import norm_bound
from orthogonium.spectral.estimate import lanczos, power_iteration, top_singular_values
from orthogonium.spectral.geometry import Convolution, convolution, geometry_of
from orthogonium.spectral.gram import circular_gram_bound, gram_bound
from orthogonium.spectral.grid import grid_bound
from orthogonium.spectral.jacobian import jacobian, jacobian_singular_values, steepest_point
from orthogonium.spectral.operator import operator_matrix, operator_singular_values
from orthogonium.spectral.quotients import Quotient, steepest_quotient
from orthogonium.spectral.spectrum import Spectrum, spectrum
from orthogonium.spectral.tensor_norm import tensor_norm
from orthogonium.spectral.twin import exact_twin
from orthogonium.spectral.unfoldings import unfolding_bound

__all__ = [
    "Convolution",
    "Quotient",
    "Spectrum",
    "check_geometry",
    "circular_gram_bound",
    "circular_singular_values",
    "convolution",
    "exact_twin",
    "geometry_of",
    "gram_bound",
    "grid_bound",
    "is_affine",
    "jacobian",
    "jacobian_singular_values",
    "lanczos",
    "norm_bound",
    "operator_matrix",
    "operator_singular_values",
    "power_iteration",
    "spectrum",
    "steepest_point",
    "steepest_quotient",
    "tensor_norm",
    "top_singular_values",
    "unfolding_bound",
]
