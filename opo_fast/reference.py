"""The package's operations in plain NumPy, which follow the paper's equations: no kernels, no incremental computation.

Signatures are those of the package's functions, which call these if ``backend="numpy"``. Inputs are not checked here; the public
functions of `opo_fast` check them.
"""

from .algorithm.algorithm1 import opo_cmdp, policy_chain
from .model.reference import Evaluation, Solution, bonus, evaluate, exponential_weights, occupancy, rollout, solve, solve_layer

__all__ = [
    "Evaluation",
    "Solution",
    "bonus",
    "evaluate",
    "exponential_weights",
    "occupancy",
    "opo_cmdp",
    "policy_chain",
    "rollout",
    "solve",
    "solve_layer",
]
