"""Agents: OPO-CMDP and the systems that the paper compares it with."""

from .opo import OPO
from .protocol import Agent

__all__ = ["OPO", "Agent"]
