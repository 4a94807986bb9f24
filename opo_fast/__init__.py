"""Contextual Markov decision processes: OPO-CMDP and its competitors on compiled kernels over flat layered arrays."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import reference
from ._support.threads import get_threads, set_threads
from .errors import OpoError
from .model.contextual import ContextualMDP, FiniteContexts, Trajectory
from .model.layered import LayeredMDP
from .model.layout import Layout
from .model.names import Names
from .model.operations import bonus, evaluate, exponential_weights, occupancy, rollout, solve
from .model.single import solve_layer
from .model.transitions import Transitions

if TYPE_CHECKING:
    from . import agents, analysis, envs, kernels, offline, oracles, study
    from .agents import OPO, ChainAgent
    from .algorithm.policy_chain import PolicyChain, policy_chain
    from .envs.rewards import rewards_to_losses
    from .model.updatable import UpdatableMDP
    from .oracles import FiniteDynamicsClass, FiniteLossClass
    from .runs.compare import compare
    from .runs.many import simulate_many
    from .runs.policy_table import policy_table
    from .runs.result import SimulationResult
    from .runs.simulation import Simulation, simulate
    from .runs.tune import tune

__version__ = "0.1.0"

__all__ = [
    "OPO",
    "ChainAgent",
    "ContextualMDP",
    "FiniteContexts",
    "FiniteDynamicsClass",
    "FiniteLossClass",
    "LayeredMDP",
    "Layout",
    "Names",
    "OpoError",
    "PolicyChain",
    "Simulation",
    "SimulationResult",
    "Trajectory",
    "Transitions",
    "UpdatableMDP",
    "agents",
    "analysis",
    "bonus",
    "compare",
    "envs",
    "evaluate",
    "exponential_weights",
    "get_threads",
    "kernels",
    "occupancy",
    "offline",
    "oracles",
    "policy_chain",
    "policy_table",
    "reference",
    "rewards_to_losses",
    "rollout",
    "set_threads",
    "simulate",
    "simulate_many",
    "solve",
    "solve_layer",
    "study",
    "tune",
]

_PACKAGES = ("agents", "analysis", "envs", "kernels", "offline", "oracles", "study")
_LATER = {
    "ChainAgent": "agents",
    "FiniteDynamicsClass": "oracles",
    "FiniteLossClass": "oracles",
    "OPO": "agents",
    "PolicyChain": "algorithm.policy_chain",
    "Simulation": "runs.simulation",
    "SimulationResult": "runs.result",
    "UpdatableMDP": "model.updatable",
    "compare": "runs.compare",
    "policy_chain": "algorithm.policy_chain",
    "policy_table": "runs.policy_table",
    "rewards_to_losses": "envs.rewards",
    "simulate": "runs.simulation",
    "simulate_many": "runs.many",
    "tune": "runs.tune",
}
"""Names that are imported on first use, and their modules."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f".{name}", __name__)
    if name in _LATER:
        found = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
        globals()[name] = found
        return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
