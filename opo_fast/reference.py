"""The package's operations in plain NumPy, to be read beside the paper: no incremental trick, no kernel.

The signatures are those of the package's functions; ``backend="numpy"`` selects these. Inputs are taken as valid: the
public functions of `opo_fast` validate.
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
