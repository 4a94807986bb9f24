"""The environments and agents that a study names."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections import OrderedDict
from typing import Any

from .. import agents, envs
from .._support.modules import load
from ..errors import OpoError
from .file import Study
from .grid import Choice, Run
from .origin import origin

__all__ = ["check_names", "forget", "make_agent", "make_environment"]

KEPT = 4
"""Environments that a process keeps in memory."""
_made: OrderedDict[tuple[str, str], Any] = OrderedDict()


def check_names(study: Study) -> None:
    """Refuse unknown names before anything is run; import paths are only resolved by the runs."""
    for kind, known in (("environments", envs.names()), ("agents", agents.names())):
        for i, entry in enumerate(getattr(study, kind)):
            if ":" not in entry.name and entry.name not in known and not os.path.isfile(study.root / entry.name):
                raise OpoError(
                    f"{kind}[{i}].name is {entry.name!r}: one of {', '.join(known)}, or an import path 'module:function', is needed"
                )


def make_environment(run: Run, root: str) -> Any:
    """The environment of a run. A worker keeps the last few of the package's own, which do not change."""
    choice = run.environment
    if ":" in choice.name:
        return load(choice.name, root)(**choice.options)
    key = choice.key, repr(origin(run, root))
    if key not in _made:
        beside = pathlib.Path(root, choice.name)
        _made[key] = envs.make(os.fspath(beside) if os.path.isfile(beside) else choice.name, **choice.options)
        while len(_made) > KEPT:
            _made.popitem(last=False)
    _made.move_to_end(key)
    return _made[key]


def forget() -> None:
    """Drop the environments that are kept."""
    _made.clear()


def make_agent(choice: Choice, environment: Any, episodes: int, seed: int, root: str) -> Any:
    """A new agent; ``episodes`` and ``seed`` are passed to functions with these parameters, unless they are in the options."""
    if ":" not in choice.name:
        return agents.make(choice.name, environment, **{"episodes": episodes, "seed": seed, **choice.options})
    function = load(choice.name, root)
    known = inspect.signature(function).parameters
    given = {name: value for name, value in (("episodes", episodes), ("seed", seed)) if name in known}
    return function(environment, **{**given, **choice.options})
