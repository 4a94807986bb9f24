"""Environments: contextual MDPs with their model classes, and adapters for the tables of other libraries."""

from .adapters import from_gymnasium, from_mdptoolbox, from_pairs, from_quantecon
from .bandits import classification_bandit, trial_bandit
from .environment import Environment, Noise, PerContext
from .families import cliff_walking, family, frozen_lake, taxi
from .functions import from_functions
from .gathering import gathering_table, resource_gathering
from .generators import combination_lock, random_finite, random_linear, random_softmax
from .icu_sepsis import icu_sepsis, load_icu_data
from .icu_variants import icu_formulary, icu_reduced, icu_table, icu_wards
from .large import inventory, queue_network
from .lower_bounds import hidden_path, layered_bandit
from .prism import from_prism
from .registry import EnvironmentInfo, about, describe, from_file, info, make, names
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
    "classification_bandit",
    "cliff_walking",
    "combination_lock",
    "describe",
    "expected_rewards",
    "family",
    "from_file",
    "from_functions",
    "from_gymnasium",
    "from_mdptoolbox",
    "from_pairs",
    "from_prism",
    "from_quantecon",
    "frozen_lake",
    "gathering_table",
    "hidden_path",
    "icu_formulary",
    "icu_reduced",
    "icu_sepsis",
    "icu_table",
    "icu_wards",
    "info",
    "inventory",
    "layered_bandit",
    "load_icu_data",
    "make",
    "names",
    "queue_network",
    "random_finite",
    "random_linear",
    "random_softmax",
    "resource_gathering",
    "rewards_to_losses",
    "taxi",
    "trial_bandit",
]
