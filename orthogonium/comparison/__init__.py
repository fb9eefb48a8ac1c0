"""Methods side by side: the same network, recipe and budget for each. Needs the extra `[train]`."""

from orthogonium.comparison.contestant import Contestant
from orthogonium.comparison.plan import Plan, base_recipe
from orthogonium.comparison.result import RunResult
from orthogonium.comparison.rows import Row
from orthogonium.comparison.running import Progress, compare
from orthogonium.comparison.summary import Comparison

__all__ = ["Comparison", "Contestant", "Plan", "Progress", "Row", "RunResult", "base_recipe", "compare"]
