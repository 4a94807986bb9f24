"""Runs of the command line: how environment and agent are built, and how a run is loaded from its folder."""

from __future__ import annotations

import ast
import pathlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .. import agents
from .._support.checks import as_integer, shown
from .._support.fields import Fields
from .._support.files import reading
from ..errors import OpoError
from ..model.names import some_of, suggestion
from ..runs.simulation import Simulation, read_run
from .options import environment, of_the_user

__all__ = ["RUN", "Setup", "context_of", "load_run"]

RUN = "run.npz"
"""The file in a run's folder from which the run can be resumed."""
WHAT = "a run saved by `opo-fast run`"


@dataclass(frozen=True)
class Setup:
    """The options given to `opo-fast run`, as plain values, which the run's file stores."""

    environment: str
    agent: str
    episodes: int
    seed: int = 0
    horizon: int | None = None
    settings: list[str] = field(default_factory=list)
    given: dict[str, Any] = field(default_factory=dict)
    backend: str = "numba"

    def build(self) -> tuple[Any, Any, dict[str, Any]]:
        """The environment, the agent, and the agent's settings."""
        cmdp = environment(self.environment, self.horizon, self.settings)
        entry = agents.registry.info(self.agent)
        options = {key: value for key, value in self.given.items() if value is not None}
        if "backend" in entry.options:
            options["backend"] = self.backend
        learner = agents.make(self.agent, cmdp, episodes=self.episodes, seed=self.seed, **options)
        return cmdp, learner, {**entry.practical, **{key: value for key, value in options.items() if key in entry.options}}

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the run's file."""
        return asdict(self)

    @classmethod
    def of(cls, about: Any) -> Setup:
        """Undo `to_dict`."""
        fields = Fields(about, WHAT, "setup")
        texts = {key: fields.value(key) for key in ("environment", "agent", "backend")}
        for key, text in texts.items():
            fields.check(key, isinstance(text, str), f"is {shown(text)}: a string is needed")
        fields.check("backend", texts["backend"] in ("numba", "numpy"), f"is {shown(texts['backend'])}")
        settings, given = fields.listed("settings"), fields.inner("given").plain()
        fields.check("settings", all(isinstance(text, str) for text in settings), "holds something other than strings")
        plain = all(value is None or isinstance(value, (int, float, str)) for value in given.values())
        fields.check("given", plain, "holds something other than numbers and strings")
        horizon = None if fields.value("horizon") is None else fields.integer("horizon", least=1)
        episodes, seed = fields.integer("episodes", least=1), as_integer(fields.value("seed"), "setup['seed']", least=0, most=None)
        return cls(**texts, episodes=episodes, seed=seed, horizon=horizon, settings=settings, given=given)


def load_run(path: pathlib.Path, *, env: str | None, episodes: int | None = None) -> tuple[Setup, Simulation, dict[str, Any]]:
    """The run in a folder or a file, and the settings of its agent.

    Parameters
    ----------
    path : path
    env : str, optional
        The environment, named again. A file must not decide which code runs: if the environment is the user's own function, it is
        called only if it is named here too.
    episodes : int, optional
        A longer run than planned.
    """
    if not path.exists():
        raise OpoError(f"there is no folder {str(path)!r}: give the folder of a run, such as runs/icu-sepsis-opo-seed0")
    file = path / RUN if path.is_dir() else path
    if path.name == "result.npz":
        raise OpoError(f"{str(path)!r} has the result of a run, but not what the agent learned: give its folder, {str(path.parent)!r}")
    state = read_run(file)
    with reading(file, WHAT):
        setup = Setup.of(Fields(state, WHAT).inner("about").value("setup"))
    if env is None and of_the_user(setup.environment):
        raise OpoError(f"the environment of this run is the function {setup.environment!r}: name it again as ENV to allow its call")
    if env is not None and env != setup.environment:
        raise OpoError(f"ENV is {env!r}: {setup.environment!r}, the environment of this run, is needed (or leave ENV out)")
    planned = setup.episodes if episodes is None else episodes
    setup = Setup(**{**setup.to_dict(), "episodes": planned})
    cmdp, learner, used = setup.build()
    run = Simulation(cmdp, learner, planned, setup.seed, backend=setup.backend)  # type: ignore[arg-type]
    run.restore(state)
    run.about = {"setup": setup.to_dict()}
    return setup, run, used


def context_of(run: Simulation, text: str | None) -> Any:
    """The context that a text stands for: a label, a context as printed, or numbers separated by commas."""
    env = run.cmdp
    listed: Sequence[Any] | None = getattr(env, "contexts", None)
    known = list(zip(run.contexts, run.labels, strict=True)) if listed is None else [(c, _label(env, c)) for c in listed]
    if text is None and len(known) == 1:
        return known[0][0]
    for match in (lambda context, label: label == text, lambda context, label: str(context) == text):
        found = [pair for pair in known if match(*pair)]
        if len(found) == 1:
            return found[0][0]
    if listed is None and text is not None:
        return _literal(text)
    labels = [label for _, label in known]
    given = "missing" if text is None else f"{text!r}{suggestion(text, labels)}"
    raise OpoError(f"--context is {given}: one of {some_of(labels) if labels else 'the contexts'} is needed")


def _label(env: Any, context: Any) -> str:
    return str(env.label(context)) if hasattr(env, "label") else str(context)


def _literal(text: str) -> Any:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return np.array(value, np.float64) if isinstance(value, (tuple, list)) else value
