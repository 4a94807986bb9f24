"""Environments: contextual MDPs with their model classes, and adapters from tables that people already have."""

from .environment import Environment, Noise, PerContext
from .generators import combination_lock, random_finite, random_linear, random_softmax
from .icu_sepsis import icu_sepsis, load_icu_data
from .rewards import RescaledRewards, RewardMap, rewards_to_losses

__all__ = [
    "Environment",
    "Noise",
    "PerContext",
    "RescaledRewards",
    "RewardMap",
    "combination_lock",
    "icu_sepsis",
    "load_icu_data",
    "random_finite",
    "random_linear",
    "random_softmax",
    "rewards_to_losses",
]
