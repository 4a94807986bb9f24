"""Regression oracles: the protocol, and the function classes that the package solves."""

from .finite import FiniteDynamicsClass, FiniteDynamicsOracle, FiniteLossClass, FiniteLossOracle
from .protocol import DynamicsOracle, FunctionClass, LossOracle

__all__ = [
    "DynamicsOracle",
    "FiniteDynamicsClass",
    "FiniteDynamicsOracle",
    "FiniteLossClass",
    "FiniteLossOracle",
    "FunctionClass",
    "LossOracle",
]
