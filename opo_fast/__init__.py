"""Contextual Markov decision processes: OPO-CMDP and its competitors on compiled kernels over flat layered arrays."""

from . import reference
from .chain import policy_chain
from .cmdp import ContextualMDP, FiniteContexts, Trajectory
from .errors import OpoError
from .layers import LayeredMDP, Layout
from .operations import bonus, evaluate, exponential_weights, occupancy, rollout, solve
from .threads import get_threads, set_threads
