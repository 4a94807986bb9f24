"""Environments by name, for the command line and for scripts."""

from __future__ import annotations

import functools
import inspect
import os
import pathlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._support.checks import MANY, as_integer, as_path, having, instance, shown
from .._support.progress import bar
from .._support.state import peek
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.names import suggestion
from ..model.operations import evaluate, solve
from . import bandits, families, gathering, generators, icu_variants, large, lower_bounds
from .environment import Environment, PerContext
from .icu_sepsis import icu_sepsis
from .prism import from_prism
from .tables import TabularMDP

__all__ = ["EnvironmentInfo", "about", "describe", "from_file", "info", "make", "names"]


@dataclass(frozen=True)
class EnvironmentInfo:
    """Description of one environment in the list.

    Attributes
    ----------
    name, summary, contexts, source : str
    sizes : str
        Sizes with the default options.
    extra : str
        The extra of the package that it needs, or an empty string.
    options : tuple of str
        Options that `make` takes for it.
    """

    name: str
    summary: str
    sizes: str
    contexts: str
    source: str
    extra: str
    factory: Callable[..., Environment]

    @property
    def options(self) -> tuple[str, ...]:
        """Options that `make` takes for it."""
        return tuple(inspect.signature(self.factory).parameters)


_ENTRIES = [
    EnvironmentInfo(
        "icu-sepsis",
        "sepsis treatment in intensive care, estimated from real patients",
        "10 steps, 716 states, 25 actions",
        "4: severity group of the admission",
        "PyPI icu-sepsis 2.0.1",
        "icu",
        icu_sepsis,
    ),
    EnvironmentInfo(
        "icu-wards",
        "sepsis treatment where doses that clinicians never gave may be fatal",
        "10 steps, 716 states, 25 actions",
        "3: how strict the ward is",
        "PyPI icu-sepsis 2.0.1",
        "icu",
        icu_variants.icu_wards,
    ),
    EnvironmentInfo(
        "icu-formulary",
        "sepsis treatment where some doses are not stocked",
        "10 steps, 716 states, 25 actions",
        "4: the ward's formulary",
        "PyPI icu-sepsis 2.0.1",
        "icu",
        icu_variants.icu_formulary,
    ),
    EnvironmentInfo(
        "icu-reduced",
        "sepsis treatment with conditions aggregated by severity: small and dense",
        "10 steps, 33 states, 25 actions",
        "4: severity group of the admission",
        "PyPI icu-sepsis 2.0.1",
        "icu",
        icu_variants.icu_reduced,
    ),
    EnvironmentInfo(
        "combination-lock",
        "hard exploration: a costly path that pays only at its end, with decoy candidates",
        "6 steps, 2 states, 3 actions",
        "5: each with its own code",
        "generated",
        "",
        generators.combination_lock,
    ),
    EnvironmentInfo(
        "layered-bandit",
        "hard instance: a bandit in each context and state, independent of all others",
        "3 steps, 2 states, 3 actions",
        "2",
        "generated; contextual bandit lower bound",
        "",
        lower_bounds.layered_bandit,
    ),
    EnvironmentInfo(
        "hidden-path",
        "hard instance: a tree with one hidden path whose end is slightly better",
        "5 steps, 1 to 4 states, 2 actions",
        "3: each with its own path",
        "generated; lower bound of episodic learning",
        "",
        lower_bounds.hidden_path,
    ),
    EnvironmentInfo(
        "frozen-lake",
        "crossing a frozen lake to a goal",
        "20 steps, 17 states, 4 actions",
        "4: how slippery it is",
        "Gymnasium FrozenLake-v1",
        "gym",
        families.frozen_lake,
    ),
    EnvironmentInfo(
        "taxi",
        "picking up a passenger and dropping them off",
        "20 steps, 501 states, 6 actions",
        "12: where the passenger waits and wants to go",
        "Gymnasium Taxi-v4",
        "gym",
        families.taxi,
    ),
    EnvironmentInfo(
        "cliff-walking",
        "walking along a cliff",
        "20 steps, 49 states, 4 actions",
        "2: dry or slippery ground",
        "Gymnasium CliffWalking-v1",
        "gym",
        families.cliff_walking,
    ),
    EnvironmentInfo(
        "resource-gathering",
        "bringing gold and gems home past two enemies",
        "20 steps, 94 states, 4 actions",
        "6: strength of the enemies, and which ore is wanted",
        "Quantitative Verification Benchmark Set",
        "",
        gathering.resource_gathering,
    ),
    EnvironmentInfo(
        "bandit",
        "guessing the class of a row of a data set",
        "1 step, 3 actions",
        "150 rows, or all",
        "scikit-learn iris (data=wine, breast_cancer, digits)",
        "sklearn",
        bandits.classification_bandit,
    ),
    EnvironmentInfo(
        "trial",
        "choosing among the four treatments of the randomised trial ACTG175",
        "1 step, 4 actions",
        "3: the patient's CD4 count",
        "PyPI lifelines",
        "trial",
        bandits.trial_bandit,
    ),
    EnvironmentInfo(
        "inventory",
        "ordering stock of several items; up to a million states (items=3, capacity=99)",
        "20 steps, 100 states, 3 actions",
        "3: demand regime",
        "generated",
        "",
        large.inventory,
    ),
    EnvironmentInfo(
        "queue-network",
        "serving queues in a row; up to a million states (queues=4, capacity=31)",
        "20 steps, 100 states, 2 actions",
        "3: arrival rates",
        "generated",
        "",
        large.queue_network,
    ),
    EnvironmentInfo(
        "random-finite",
        "random losses and transitions, finite classes of independent candidates",
        "5 steps, 4 states, 3 actions",
        "5",
        "generated",
        "",
        generators.random_finite,
    ),
    EnvironmentInfo(
        "random-linear",
        "losses and transitions linear in the context",
        "5 steps, 4 states, 3 actions",
        "8 points of the simplex, or endless",
        "generated",
        "",
        generators.random_linear,
    ),
    EnvironmentInfo(
        "random-softmax",
        "softmax transitions and logistic losses of the context",
        "5 steps, 4 states, 3 actions",
        "8 points of the cube, or endless",
        "generated",
        "",
        generators.random_softmax,
    ),
]
_BY_NAME = {entry.name: entry for entry in _ENTRIES}


def names() -> list[str]:
    """The names of all environments."""
    return list(_BY_NAME)


def info(name: str) -> EnvironmentInfo:
    """The description of an environment, without building it."""
    instance(name, "name", str, needed="the name of an environment")
    entry = _BY_NAME.get(name)
    if entry is None:
        file = " and no such file" if "/" in name or "." in name else ""
        raise OpoError(
            f"there is no environment {name!r}{file}{suggestion(name, _BY_NAME)}: {', '.join(_BY_NAME)}, or the path of a file, is needed"
        )
    return entry


def about(name: str) -> str:
    """One line about an environment: what it is, its sizes, contexts and source, and the extra that it needs."""
    instance(name, "name", str, needed="the name of an environment, or the path of a file,")
    if name not in _BY_NAME and os.path.isfile(name):
        return f"the model in the file {name}"
    entry = info(name)
    needs = f"; needs the extra {entry.extra!r}" if entry.extra else ""
    return f"{entry.summary} ({entry.sizes}; contexts: {entry.contexts}; {entry.source}{needs})"


def make(name: str, **options: Any) -> Environment:
    """Make an environment by name, or from a file.

    Parameters
    ----------
    name : str
        One of `names`, or the path of a file.
    **options
        Options of the environment: see ``info(name).options`` and the docstring of its function.

    Returns
    -------
    Environment

    Raises
    ------
    OpoError
        On an unknown name or option, a value out of range, or a missing package.
    """
    instance(name, "name", str, needed="the name of an environment, or the path of a file,")
    if name not in _BY_NAME and os.path.isfile(name):
        factory: Callable[..., Environment] = functools.partial(from_file, name)
        known: tuple[str, ...] = ("horizon", "reward")
    else:
        entry = info(name)
        factory, known = entry.factory, entry.options
    for option in options:
        if option not in known:
            raise OpoError(f"{name} has no option {option!r}{suggestion(option, known)}: one of {', '.join(known)} is needed")
    try:
        return factory(**options)
    except TypeError as error:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise OpoError(f"{name} cannot be built with {given}: {error}") from error


def _reward_structures(file: pathlib.Path) -> dict[str, list[pathlib.Path]]:
    """The reward files of a model's numbered reward structures, by structure."""
    found: dict[str, list[pathlib.Path]] = {}
    for other in sorted(file.parent.glob("*.[st]rew")):
        if other.stem.removeprefix(file.stem).isdecimal() and other.stem.startswith(file.stem):
            found.setdefault(other.stem, []).append(other)
    return found


def from_file(path: str | os.PathLike[str], horizon: int | None = None, reward: str | None = None) -> Environment:
    """An environment with one context, whose model is read from a file; both classes contain only the truth.

    Parameters
    ----------
    path : path
        An npz file written by `TabularMDP.save` or `LayeredMDP.save`, or a .tra file of PRISM or Storm. In the latter case, files
        with the same stem that end in .lab, .sta, .srew, .trew, .rew, .state.rew or .trans.rew are read too.
    horizon : int, optional
        Number of steps, for a model without layers; default 20.
    reward : str, optional
        The reward structure, if PRISM wrote several: "robot1" stands for robot1.srew and robot1.trew next to robot.tra.

    Raises
    ------
    OpoError
        If the file is invalid.
    """
    file = pathlib.Path(as_path(path))
    steps = 20 if horizon is None else as_integer(horizon, "horizon", least=1, most=MANY)
    if file.suffix == ".tra":
        endings = (".lab", ".sta", ".srew", ".trew", ".rew", ".state.rew", ".trans.rew")
        present = {ending: other for ending in endings if os.path.isfile(other := file.with_suffix(ending))}
        labels, states = present.pop(".lab", None), present.pop(".sta", None)
        structures = _reward_structures(file)
        if reward is not None:
            if reward not in structures:
                raise OpoError(f"reward is {shown(reward)}: one of {', '.join(structures) or 'none'} is needed")
            return from_prism(file, labels=labels, states=states, rewards=structures[reward]).environment(steps)
        if structures:
            raise OpoError(f"{os.fspath(path)} has the reward structures {', '.join(structures)}: choose one by reward (--set reward=NAME)")
        return from_prism(file, labels=labels, states=states, rewards=list(present.values())).environment(steps)
    if file.suffix != ".npz":
        raise OpoError(f"{os.fspath(path)}: the file ends in {file.suffix!r}; .npz or .tra is needed")
    if peek(file, "format", "a model of opo_fast") != "opo_fast.LayeredMDP":
        return TabularMDP.load(file).environment(steps)
    if horizon is not None:
        raise OpoError(f"horizon is {horizon}: the model in {os.fspath(path)} has its own layers, so leave horizon out")
    mdp = LayeredMDP.load(file)
    return Environment(
        mdp.layout,
        [PerContext([mdp.losses], "truth")],
        [PerContext([mdp.transitions], "truth")],
        contexts=[0],
        labels=[file.stem],
        action_mask=mdp.action_mask,
        name=file.stem,
        source=os.fspath(path),
    )


def describe(environment: Environment, most: int = 100, *, progress: bool | None = None) -> dict[str, Any]:
    """Describe an environment by plain data.

    Parameters
    ----------
    environment : Environment
    most : int
        Largest number of contexts to evaluate; if contexts are endless, at most five are drawn.
    progress : bool, optional
        Whether to show a progress bar. Default: on a terminal and in a notebook, after two seconds.

    Returns
    -------
    dict
        ``name``, ``source``, ``layers`` (sizes), ``steps``, ``n_states``, ``n_actions``, ``allowed_pairs``,
        ``transitions`` (of all layers), ``storage``, ``bytes`` (distinct transitions of one context), ``n_contexts`` (None
        if endless), ``loss_class``, ``dynamics_class`` (names), and ``contexts``: for each, ``label``,
        ``probability``, ``reachable`` (share of the states), ``uniform``, ``optimum`` and ``worst`` (values V(s_1), sums of
        losses), and ``reward_uniform`` and ``reward_optimum``, the same in the user's reward (None if there is none).
    """
    having(environment, "environment", ("layout", "contexts", "mdp", "label", "reward_value", "loss_class"), "an Environment")
    most, layout = as_integer(most, "most", least=1), environment.layout
    if environment.contexts is None:
        rng = np.random.default_rng(0)
        contexts = [environment.sample_context(rng) for _ in range(min(most, 5))]
        chances: list[float | None] = [None] * len(contexts)
    else:
        contexts = list(environment.contexts[:most])
        assert environment.probabilities is not None
        chances = environment.probabilities[:most].tolist()
    rows: list[dict[str, Any]] = []
    with bar(f"models and values of {environment.name}", 4 * len(contexts), progress) as show:
        for context, chance in zip(contexts, chances, strict=True):
            done = 4 * len(rows)
            mdp = environment.mdp(context)
            show(done + 1)
            row: dict[str, Any] = {"label": environment.label(context), "probability": chance, "reachable": _reachable(mdp)}
            row["uniform"] = float(evaluate(mdp, mdp.uniform_policy()).v[0])
            show(done + 2)
            row["optimum"] = float(solve(mdp).v[0])
            show(done + 3)
            row["worst"] = layout.horizon - float(solve(mdp.with_losses(1.0 - mdp.losses)).v[0])
            for key in ("uniform", "optimum"):
                row[f"reward_{key}"] = None if environment.reward_map is None else float(environment.reward_value(row[key]))
            rows.append(row)
            show(done + 4)
    transitions = environment.mdp(contexts[0]).transitions
    mask = environment.action_mask
    return {
        "name": environment.name,
        "source": environment.source,
        "layers": list(layout.layer_sizes),
        "steps": environment.steps,
        "n_states": layout.n_states,
        "n_actions": layout.n_actions,
        "allowed_pairs": layout.n_states * layout.n_actions if mask is None else int(mask.sum()),
        "transitions": transitions.n_transitions,
        "storage": "CSR" if transitions.kind else "dense",
        "bytes": transitions.nbytes,
        "n_contexts": None if environment.contexts is None else len(environment.contexts),
        "loss_class": list(environment.loss_class.names),
        "dynamics_class": list(environment.dynamics_class.names),
        "contexts": rows,
    }


def _reachable(mdp: LayeredMDP) -> float:
    """Share of the states that some policy can reach."""
    t, layout = mdp.transitions, mdp.layout
    reached = np.zeros(layout.n_states, bool)
    reached[0] = True
    for h in range(layout.horizon - 1):
        here, there = layout.layer(h), layout.layer(h + 1)
        lo, hi = int(t.rows[here.start]), int(t.rows[here.stop])
        per_state = np.diff(t.rows[here.start : here.stop + 1])
        rows = np.flatnonzero(np.repeat(reached[here], per_state))
        start, n_rows = int(t.block[h]), hi - lo
        if t.kind:
            pointer = t.indptr[start : start + n_rows + 1]
            base = int(pointer[0])
            part = slice(base, int(pointer[-1]))
            live = np.repeat(np.isin(np.arange(n_rows), rows, assume_unique=True), np.diff(pointer)) & (t.data[part] > 0)
            reached[there][t.indices[part][live]] = True
        else:
            block = t.data[start : start + n_rows * layout.layer_sizes[h + 1]].reshape(-1, n_rows)
            reached[there] |= (block[:, rows] > 0).any(axis=1)
    return float(reached.mean())
