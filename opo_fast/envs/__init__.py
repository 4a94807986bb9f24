"""Environments: contextual MDPs with their model classes, and adapters from tables that people already have."""

from .environment import Environment, Noise, PerContext
from .generators import combination_lock, random_finite, random_linear, random_softmax
from .icu_sepsis import icu_sepsis, load_icu_data
from .registry import EnvironmentInfo, about, describe, info, make, names
from .rewards import RescaledRewards, RewardMap, rewards_to_losses

__all__ = [
    "Environment",
    "EnvironmentInfo",
    "Noise",
    "PerContext",
    "RescaledRewards",
    "RewardMap",
    "about",
    "combination_lock",
    "describe",
    "icu_sepsis",
    "info",
    "load_icu_data",
    "make",
    "names",
    "random_finite",
    "random_linear",
    "random_softmax",
    "rewards_to_losses",
]
