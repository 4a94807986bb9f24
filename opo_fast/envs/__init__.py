"""Environments: contextual MDPs with their model classes, and adapters from tables that people already have."""

from .adapters import from_gymnasium, from_mdptoolbox, from_pairs, from_quantecon
from .environment import Environment, Noise, PerContext
from .generators import combination_lock, random_finite, random_linear, random_softmax
from .icu_sepsis import icu_sepsis, load_icu_data
from .registry import EnvironmentInfo, about, describe, info, make, names
from .rewards import RescaledRewards, RewardMap, rewards_to_losses
from .tables import TabularMDP, expected_rewards

__all__ = [
    "Environment",
    "EnvironmentInfo",
    "Noise",
    "PerContext",
    "RescaledRewards",
    "RewardMap",
    "TabularMDP",
    "about",
    "combination_lock",
    "describe",
    "expected_rewards",
    "from_gymnasium",
    "from_mdptoolbox",
    "from_pairs",
    "from_quantecon",
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
