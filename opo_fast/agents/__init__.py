"""Agents: OPO-CMDP and the systems that the paper compares it with."""

from .base import BaseAgent
from .euc3rl import EUC3RL, euc3rl_parameters
from .opo import OPO
from .protocol import Agent
from .rmucdd import RMUCDD, minimum_reachability, rmucdd_parameters

__all__ = ["EUC3RL", "OPO", "RMUCDD", "Agent", "BaseAgent", "euc3rl_parameters", "minimum_reachability", "rmucdd_parameters"]
