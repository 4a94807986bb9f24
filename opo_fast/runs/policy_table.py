"""A policy as people read it: one row per reached state and action, by name, with occupancy, value and Q."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, having, instance
from .._support.files import writing
from .._support.text import figure, html_table, plain, printable
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.names import Names
from ..model.operations import check_policy, evaluate, occupancy

__all__ = ["PolicyRow", "PolicyTable", "policy_table"]

Array = npt.NDArray[Any]
SHOWN = 40
"""Rows that a printed table has."""


class PolicyRow(NamedTuple):
    """A state and an action of a policy.

    ``state`` counts inside the layer ``stage``; both begin at 0. ``reached`` is the probability that an episode comes to the state,
    ``occupancy`` that it also plays the action. ``value`` (V) and ``q`` (Q) are expected sums of losses from here to the end.
    """

    stage: int
    state: int
    state_name: str
    action: int
    action_name: str
    probability: float
    reached: float
    occupancy: float
    loss: float
    q: float
    value: float


class PolicyTable:
    """A policy in a model at one context.

    Parameters
    ----------
    mdp : LayeredMDP
        The model that occupancy, value and Q are of: fitted, or true.
    policy : array_like, shape (n_states, A)
    names : Names, optional
    label : str
        What the context means.
    model : str
        What the model is, for the heading.
    reached_only : bool
        Leave out states that the policy does not come to.

    Attributes
    ----------
    policy, occupancy, q, losses : ndarray, shape (n_states, A)
    value : ndarray, shape (n_states,)
    """

    def __init__(
        self,
        mdp: LayeredMDP,
        policy: npt.ArrayLike,
        *,
        names: Names | None = None,
        label: str = "",
        model: str = "given",
        reached_only: bool = True,
    ) -> None:
        instance(mdp, "mdp", LayeredMDP)
        self.mdp, self.names, self.label, self.model = mdp, names or Names(), label, model
        self.names.check(mdp.layout)
        self.policy = check_policy(mdp, policy)
        self.losses = mdp.losses
        self.occupancy = occupancy(mdp, self.policy)
        self.q, self.value = evaluate(mdp, self.policy)
        self.reached = self.occupancy.sum(axis=1)
        keep = self.reached > 0 if as_bool(reached_only, "reached_only") else np.ones(mdp.layout.n_states, bool)
        self.states = np.flatnonzero(keep)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[PolicyRow]:
        layout, mask = self.mdp.layout, self.mdp.action_mask
        for s in self.states.tolist():
            stage, local = layout.local(s)
            name = self.names.state(layout, s)
            for a in range(layout.n_actions) if mask is None else np.flatnonzero(mask[s]).tolist():
                numbers = (self.policy[s, a], self.reached[s], self.occupancy[s, a], self.losses[s, a], self.q[s, a], self.value[s])
                yield PolicyRow(stage, local, name, a, self.names.action(a), *map(float, numbers))

    def best(self) -> list[PolicyRow]:
        """The likeliest action of each state, of equals the lowest."""
        best: dict[tuple[int, int], PolicyRow] = {}
        for row in self:
            key = row.stage, row.state
            if key not in best or row.probability > best[key].probability:
                best[key] = row
        return list(best.values())

    @property
    def title(self) -> str:
        """Context, model and value of the policy."""
        context = f"context {self.label}, " if self.label else ""
        return f"Policy: {context}{self.model} model, V(s_1) = {figure(float(self.value[0]), '.4f')}"

    def to_columns(self) -> dict[str, list[Any]]:
        """The rows as columns by name."""
        rows = list(self)
        return {name: [row[i] for row in rows] for i, name in enumerate(PolicyRow._fields)}

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise OpoError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.to_columns())

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write the rows with a heading line, numbers to the last bit."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(PolicyRow._fields)
        writer.writerows(self)
        with writing(path) as file:
            file.write(text.getvalue().encode())

    def _cells(self) -> tuple[list[str], list[list[str]], int]:
        """Headings, the most likely action of each state, likeliest states first within a stage, and how many are left out."""
        rows = sorted(self.best(), key=lambda row: (row.stage, -row.reached, row.state))
        heads = ["stage", "state", "reached", "action", "prob.", "Q", "V"]
        numbers = []
        for r in rows[:SHOWN]:
            values = [figure(x, ".3f") for x in (r.reached, r.probability, r.q, r.value)]
            numbers.append([str(r.stage), printable(r.state_name), values[0], printable(r.action_name), *values[1:]])
        return heads, numbers, len(rows) - len(numbers)

    def __str__(self) -> str:
        heads, rows, more = self._cells()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) if i in (1, 3) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
            for row in (heads, *rows)
        ]
        return "\n".join([printable(self.title), *(line.rstrip() for line in lines), *([f"... {more} more states"] if more else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows, more = self._cells()
        return html_table(self.title, heads, rows, f"... {more} more states" if more else "")

    def plot(self, path: str | os.PathLike[str] | None = None, *, stage: int | None = None) -> Any:
        """A heat map of the probabilities of actions in the reached states (extra `plot`); returns the matplotlib Axes.

        Parameters
        ----------
        path : path, optional
            Write the picture there; its ending names the format.
        stage : int, optional
            Only the states of this layer.
        """
        from .plots import new_figure, save_figure, show_in_notebook

        layout = self.mdp.layout
        states = [s for s in self.states.tolist() if stage is None or layout.local(s)[0] == stage]
        if not states:
            raise OpoError(f"stage is {stage!r}: a layer with a reached state, 0 to {layout.horizon - 1}, is needed")
        axes = new_figure(7.0, min(30.0, 1.6 + 0.22 * len(states))).add_subplot()
        shade = axes.imshow(self.policy[states], vmin=0, vmax=1, cmap="Blues", aspect="auto", interpolation="nearest")
        names = [f"{layout.local(s)[0]}: {plain(self.names.state(layout, s))}" for s in states]
        step = -(-len(names) // 130)
        axes.set_yticks(range(0, len(names), step), names[::step], fontsize=8)
        turned = layout.n_actions > 8
        axes.set_xticks(
            range(layout.n_actions), [plain(self.names.action(a)) for a in range(layout.n_actions)], rotation=90 if turned else 0
        )
        axes.set_xlabel("action")
        axes.set_ylabel("stage: state")
        axes.set_title(plain(self.title), fontsize=10)
        axes.figure.colorbar(shade, ax=axes, label="probability", location="top", shrink=0.5, aspect=30)
        show_in_notebook(axes)
        if path is not None:
            save_figure(axes.figure, path)
        return axes


def policy_table(
    agent: Any, context: Any, env: Any = None, *, names: Names | None = None, true_model: bool = False, reached_only: bool = True
) -> PolicyTable:
    """What an agent would do at a context.

    Parameters
    ----------
    agent : Agent or LearnedPolicy
    context : hashable or ndarray
    env : Environment, optional
        Gives names of contexts, states and actions, and the true model.
    names : Names, optional
        In place of those of the agent or the environment.
    true_model : bool
        Occupancy, value and Q of the true model of `env`. Default: of the agent's fitted model; of the true one where the agent
        fits none.
    reached_only : bool
        Leave out states that the policy does not come to.

    Returns
    -------
    PolicyTable
    """
    agent = getattr(agent, "agent", agent)
    having(agent, "agent", ("policy",), "an Agent")
    if names is not None:
        instance(names, "names", Names, needed="an opo_fast.Names, or None,")
    fitted = hasattr(agent, "model") and hasattr(agent, "fits") and not as_bool(true_model, "true_model")
    if not fitted and not hasattr(env, "mdp"):
        raise OpoError("env: an environment with mdp(context) is needed, as the agent fits no model (or true_model is True)")
    mdp = agent.model(agent.fits, context) if fitted else env.mdp(context)
    known = names or (Names.of(env) if env is not None else Names.of(agent))
    label = str(env.label(context)) if hasattr(env, "label") else str(context)
    return PolicyTable(
        mdp, agent.policy(context), names=known, label=label, model="fitted" if fitted else "true", reached_only=reached_only
    )
