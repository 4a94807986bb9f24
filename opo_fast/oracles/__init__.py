"""Regression oracles: the protocol, the function classes that the package can fit, refit schedules, and logged trajectories."""

from .checks import check_oracle
from .finite import FiniteDynamicsOracle, FiniteLossOracle
from .finite_classes import FiniteDynamicsClass, FiniteLossClass
from .linear import DisjointLinearLossClass, DisjointLinearLossOracle, LinearLossClass, LinearLossOracle
from .log import TrajectoryLog
from .mixture import MixtureDynamicsClass, MixtureDynamicsOracle, mixture_weights
from .protocol import DynamicsOracle, FunctionClass, LossOracle
from .schedule import Refit, ScheduledOracle, scheduled
from .sklearn import SklearnDynamicsClass, SklearnDynamicsOracle, SklearnLossClass, SklearnLossOracle, pair_features
from .softmax import SoftmaxDynamicsClass, SoftmaxDynamicsOracle
from .stationary import stationary_features
from .support import Support
from .tabular import TabularDynamicsClass, TabularDynamicsOracle, TabularLossClass, TabularLossOracle

__all__ = [
    "DisjointLinearLossClass",
    "DisjointLinearLossOracle",
    "DynamicsOracle",
    "FiniteDynamicsClass",
    "FiniteDynamicsOracle",
    "FiniteLossClass",
    "FiniteLossOracle",
    "FunctionClass",
    "LinearLossClass",
    "LinearLossOracle",
    "LossOracle",
    "MixtureDynamicsClass",
    "MixtureDynamicsOracle",
    "Refit",
    "ScheduledOracle",
    "SklearnDynamicsClass",
    "SklearnDynamicsOracle",
    "SklearnLossClass",
    "SklearnLossOracle",
    "SoftmaxDynamicsClass",
    "SoftmaxDynamicsOracle",
    "Support",
    "TabularDynamicsClass",
    "TabularDynamicsOracle",
    "TabularLossClass",
    "TabularLossOracle",
    "TrajectoryLog",
    "check_oracle",
    "mixture_weights",
    "pair_features",
    "scheduled",
    "stationary_features",
]
