"""Agents: OPO-CMDP, the systems that the paper compares it with, contextual bandits, and simple baselines."""

from .bandits import FALCON, POCMAB, UCCB, RegCB, SquareCB, inverse_gap_weights
from .base import BaseAgent
from .baselines import BonusFreeOPO, EpsilonGreedy, Greedy, Optimum, Uniform
from .chain_agent import ChainAgent
from .euc3rl import EUC3RL, euc3rl_parameters
from .lolipop import LOLIPOP
from .opo import OPO
from .oracle_agent import OracleAgent
from .protocol import Agent
from .registry import AgentInfo, info, make, names, practical
from .rmucdd import RMUCDD, minimum_reachability, rmucdd_parameters
from .tabular_opo import TabularOPO

__all__ = [
    "EUC3RL",
    "FALCON",
    "LOLIPOP",
    "OPO",
    "POCMAB",
    "RMUCDD",
    "UCCB",
    "Agent",
    "AgentInfo",
    "BaseAgent",
    "BonusFreeOPO",
    "ChainAgent",
    "EpsilonGreedy",
    "Greedy",
    "Optimum",
    "OracleAgent",
    "RegCB",
    "SquareCB",
    "TabularOPO",
    "Uniform",
    "euc3rl_parameters",
    "info",
    "inverse_gap_weights",
    "make",
    "minimum_reachability",
    "names",
    "practical",
    "rmucdd_parameters",
]
