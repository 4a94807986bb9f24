"""Agents by name, for the command line, studies and comparisons."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .._support.checks import instance
from ..algorithm.parameters import PRACTICAL
from ..errors import OpoError
from ..model.names import Names, suggestion
from .bandits import FALCON, POCMAB, UCCB, RegCB, SquareCB
from .base import check_layout
from .baselines import BonusFreeOPO, EpsilonGreedy, Greedy, Optimum, Uniform
from .euc3rl import EUC3RL
from .lolipop import LOLIPOP
from .opo import OPO
from .rmucdd import RMUCDD, listed_contexts, minimum_reachability
from .tabular_opo import TabularOPO

__all__ = ["AgentInfo", "info", "make", "names", "practical"]

DRAWN = 32
"""Number of contexts drawn from an endless environment to compute its minimum reachability."""


@dataclass(frozen=True)
class AgentInfo:
    """Description of one agent in the list.

    Attributes
    ----------
    name, summary : str
    factory : type
    takes : tuple of str
        Which of layout, loss_class, dynamics_class, cmdp are the first arguments of the constructor.
    practical : dict
        Keyword arguments of the practical setting: factors on the theory's values with which it learns.
    bandit : bool
        Whether it is only for H = 1 and one state.
    fixed : tuple of str
        Options of `OPO` that this agent sets itself.
    """

    name: str
    summary: str
    factory: type[Any]
    takes: tuple[str, ...]
    practical: dict[str, Any] = field(default_factory=dict)
    bandit: bool = False
    fixed: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """Keyword arguments of the agent's class, and of the classes to which it passes ``**options``."""
        found: list[str] = []
        for function in [vars(kind)["__init__"] for kind in inspect.getmro(self.factory) if "__init__" in vars(kind)]:
            parameters = inspect.signature(function).parameters.values()
            found += [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in (*found, *self.fixed)]
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
        return tuple(found)


_MODEL = ("layout", "loss_class", "dynamics_class")
_LOSS = ("layout", "loss_class")

# Chosen by bench/tune_agents.py as the best on its environments, over grids of similar size; OPO tunes itself.
_ENTRIES = [
    AgentInfo("opo", "OPO-CMDP, the paper's algorithm, self-tuning", OPO, _MODEL),
    AgentInfo("e-uc3rl", "Eluder-based counterfactual optimism, greedy planning", EUC3RL, _MODEL, {"bonus_scale": 3e-5}),
    AgentInfo("rm-ucdd", "counted actions under minimum reachability, greedy planning", RMUCDD, _MODEL, {"bonus_scale": 1e-6}),
    AgentInfo("lolipop", "layerwise policy cover, inverse gap weighting", LOLIPOP, _MODEL, {"eta_scale": 1e5, "trust_scale": 1e2}),
    AgentInfo(
        "tabular-opo",
        "optimistic policy optimization with counts, one table per context",
        TabularOPO,
        ("layout",),
        {"bonus_scale": 0.01, "eta_scale": 20.0},
    ),
    AgentInfo("uniform", "all actions with equal probability", Uniform, ("layout",)),
    AgentInfo("greedy", "the optimum of the fitted model", Greedy, _MODEL),
    AgentInfo("epsilon-greedy", "greedy with a share of random actions that falls as t^(-1/3)", EpsilonGreedy, _MODEL, {"scale": 0.01}),
    AgentInfo(
        "opo-no-bonus",
        "OPO-CMDP without its bonus",
        BonusFreeOPO,
        _MODEL,
        {"eta_scale": 5.0},
        fixed=("bonus_scale", "beta_loss", "beta_dynamics"),
    ),
    AgentInfo("optimum", "knows the true model", Optimum, ("cmdp",)),
    AgentInfo(
        "po-cmab",
        "OPO-CMDP for bandits",
        POCMAB,
        _LOSS,
        {"bonus_scale": 1e-4, "eta_scale": 150.0},
        bandit=True,
        fixed=("beta_dynamics",),
    ),
    AgentInfo("uccb", "upper counterfactual confidence bounds", UCCB, _LOSS, {"bonus_scale": 1e-4}, bandit=True),
    AgentInfo("squarecb", "inverse gap weighting on the newest fit", SquareCB, _LOSS, {"eta_scale": 100.0}, bandit=True),
    AgentInfo("falcon", "inverse gap weighting in epochs that double", FALCON, _LOSS, {"eta_scale": 1000.0}, bandit=True),
    AgentInfo("regcb", "optimism over all functions that fit the data", RegCB, _LOSS, {"bonus_scale": 0.3}, bandit=True),
]
_BY_NAME = {entry.name: entry for entry in _ENTRIES}
_FILLED = ("episodes", "seed", "action_mask")


def names(layout: Any = None) -> list[str]:
    """Names of all agents; with a layout, of those that can be used with it."""
    if layout is not None:
        check_layout(layout)
    bandit = layout is None or layout.layer_sizes == (1,)
    return [entry.name for entry in _ENTRIES if bandit or not entry.bandit]


def info(name: str) -> AgentInfo:
    """The description of an agent."""
    instance(name, "agent", str, needed="the name of an agent")
    if name not in _BY_NAME:
        raise OpoError(f"agent is {name!r}{suggestion(name, _BY_NAME)}: one of {', '.join(_BY_NAME)} is needed")
    return _BY_NAME[name]


def practical(name: str) -> dict[str, Any]:
    """The practical setting of an agent: the default in `make`."""
    return dict(info(name).practical)


def make(
    name: str,
    env: Any,
    *,
    episodes: int,
    bonus_scale: float | None = None,
    eta_scale: float | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Make an agent for an environment, by default in the practical setting.

    Parameters
    ----------
    name : str
        One of `names`.
    env : Environment
        Any object with layout, loss_class, dynamics_class and action_mask, as far as the agent needs them.
    episodes : int
        T.
    bonus_scale, eta_scale : float, optional
        Factors on the theory's values, 1 being the theory; an agent without a bonus or a learning rate refuses them.
        Default: the agent's practical setting. OPO tunes itself if neither is given; if one is, the other has its value in
        `opo_fast.analysis.PRACTICAL`.
    seed : int
        For agents that draw random numbers (LOLIPOP).
    **options
        Other arguments of the agent's class.

    Raises
    ------
    OpoError
        If the agent or an option is unknown, or the agent cannot be used in this environment.
    """
    entry = info(name)
    allowed = entry.options
    scales = {"bonus_scale": bonus_scale, "eta_scale": eta_scale}
    options.update({key: value for key, value in scales.items() if value is not None})
    known = [key for key in allowed if key not in _FILLED]
    for key in options:
        if key not in known:
            needed = f"one of {', '.join(known)} is needed" if known else "it has no options"
            # What is an option of another agent is no typing error.
            hint = "" if any(key in other.options for other in _ENTRIES) else suggestion(key, known)
            raise OpoError(f"{key} is not an option of agent {name!r}{hint}: {needed}")
    given = {"episodes": episodes, "seed": seed, "action_mask": getattr(env, "action_mask", None), **entry.practical}
    if entry.factory is OPO:
        # Self-tuning OPO rounds the number of episodes up to a power of two as it goes, so its runs can be extended.
        del given["episodes"]
        if {"eta", "beta_loss", "beta_dynamics", *scales} & set(options) or options.get("tuning") == "theory":
            given["episodes"] = episodes
        if set(scales) & set(options):
            given.update(PRACTICAL._asdict())
    if entry.factory is RMUCDD and "p_min" not in options:
        given["p_min"] = minimum_reachability(env, _contexts(env))
    arguments = {**{key: value for key, value in given.items() if key in allowed}, **options}
    first = []
    for key in entry.takes:
        if key != "cmdp" and not hasattr(env, key):
            raise OpoError(f"env is a {type(env).__name__} without {key}: agent {name!r} needs it")
        first.append(env if key == "cmdp" else getattr(env, key))
    agent = entry.factory(*first, **arguments)
    if hasattr(agent, "names"):
        agent.names = Names.of(env)
    return agent


def _contexts(env: Any) -> Any:
    """All contexts of an environment, or some drawn ones if they are endless."""
    listed = listed_contexts(env)
    if listed is not None:
        return listed
    rng = np.random.default_rng(0)
    return [env.sample_context(rng) for _ in range(DRAWN)]
