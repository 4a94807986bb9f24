"""Contextual Markov decision processes: OPO-CMDP and its competitors on compiled kernels over flat layered arrays."""

from . import reference
from .agents import OPO
from .chain import policy_chain
from .cmdp import ContextualMDP, FiniteContexts, Trajectory
from .envs.rewards import rewards_to_losses
from .errors import OpoError
from .layers import LayeredMDP
from .layout import Layout
from .operations import bonus, evaluate, exponential_weights, occupancy, rollout, solve
from .oracles import FiniteDynamicsClass, FiniteLossClass
from .simulate import SimulationResult, simulate
from .threads import get_threads, set_threads

__version__ = "0.1.0"

__all__ = [
    "OPO",
    "ContextualMDP",
    "FiniteContexts",
    "FiniteDynamicsClass",
    "FiniteLossClass",
    "LayeredMDP",
    "Layout",
    "OpoError",
    "SimulationResult",
    "Trajectory",
    "bonus",
    "evaluate",
    "exponential_weights",
    "get_threads",
    "occupancy",
    "policy_chain",
    "reference",
    "rewards_to_losses",
    "rollout",
    "set_threads",
    "simulate",
    "solve",
]
