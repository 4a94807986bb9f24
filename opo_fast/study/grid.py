"""The runs of a study: every combination of environment, agent, settings and seed, each with an id."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import agents
from .._support.text import setting

if TYPE_CHECKING:
    from .file import Entry, Study

__all__ = ["Choice", "Run", "canonical", "choices", "expand"]


@dataclass(frozen=True)
class Choice:
    """An environment or an agent with all its options.

    Attributes
    ----------
    name : str
        A name that the package knows, or an import path ``module:function``.
    options : dict
        All options, including those from the grid.
    point : dict
        The options from the grid.
    label : str
        For tables and legends; not part of a run's identity.
    filled : dict
        An agent's practical setting, which the package uses for options that are not given. It is part of the identity, so that a version
        with another practical setting never mixes its runs with those of this one.
    """

    name: str
    options: Mapping[str, Any]
    point: Mapping[str, Any]
    label: str
    filled: Mapping[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """All settings, whether given or filled in."""
        return {**self.filled, **self.options}

    @property
    def key(self) -> str:
        """Name and settings, which identify a choice."""
        return canonical({"name": self.name, "options": self.settings})

    def record(self) -> dict[str, Any]:
        """The record of this choice that is stored with a run."""
        point = {"point": dict(self.point), "label": self.label}
        return {"name": self.name, "options": dict(self.options), "settings": self.settings, **point}


@dataclass(frozen=True)
class Run:
    """One run of a study. Its `id` is a hash of exactly environment, agent, episodes and seed."""

    environment: Choice
    agent: Choice
    episodes: int
    seed: int
    id: str

    @property
    def label(self) -> str:
        """Environment, agent and seed, for display."""
        return f"{self.environment.label} / {self.agent.label} / seed {self.seed}"


def canonical(value: Any) -> str:
    """JSON with sorted keys in which equal numbers are written alike (1 and 1.0 are the same setting)."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def choices(entry: Entry, kind: str) -> Iterator[Choice]:
    """Every point of an entry's grid; `kind` is "environments" or "agents"."""
    filled = agents.practical(entry.name) if kind == "agents" and entry.name in agents.names() else {}
    for values in itertools.product(*entry.grid.values()):
        point = dict(zip(entry.grid, values, strict=True))
        varied = ", ".join(f"{key}={setting(value)}" for key, value in point.items() if len(entry.grid[key]) > 1)
        label = f"{entry.label} ({varied})" if varied else entry.label
        yield Choice(entry.name, {**entry.options, **point}, point, label, filled)


def expand(study: Study) -> list[Run]:
    """All runs of a study, seed by seed, so that an unfinished study can be compared on the seeds that are done."""
    pairs = [
        (environment, agent, f"{environment.key}\n{agent.key}\n{study.episodes}\n")
        for entry in study.environments
        for environment in choices(entry, "environments")
        for other in study.agents
        for agent in choices(other, "agents")
    ]
    return [
        Run(environment, agent, study.episodes, seed, hashlib.sha256(f"{key}{seed}".encode()).hexdigest()[:20])
        for seed in study.seeds
        for environment, agent, key in pairs
    ]
