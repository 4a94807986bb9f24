"""Environments: contextual MDPs with their model classes, and adapters from tables that people already have."""

from .environment import Environment, PerContext
from .icu_sepsis import icu_sepsis, load_icu_data
from .rewards import RescaledRewards, RewardMap, rewards_to_losses

__all__ = ["Environment", "PerContext", "RescaledRewards", "RewardMap", "icu_sepsis", "load_icu_data", "rewards_to_losses"]
