"""A policy as a table: one row per reached state and action, with their names, occupancy, value and Q."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, as_integer, having, instance
from .._support.files import writing
from .._support.text import figure, html_table, plain, printable
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.names import Names
from ..model.operations import check_policy, evaluate, occupancy
from .labels import label_of

__all__ = ["PolicyRow", "PolicyTable", "ShownTable", "policy_table"]

Array = npt.NDArray[Any]
SHOWN = 40
"""At most so many rows are printed."""
DRAWN_STATES = 100
"""At most so many states are plotted."""
ONLY = "only: the state (an absorbing one, say) allows a single action, whose name has no meaning there"
DRAWN = "stage 0 draws the first state and decides nothing: stage h is step h of an episode, counted from 1"


class PolicyRow(NamedTuple):
    """One state-action pair of a policy.

    ``stage`` is the layer and ``state`` the number of the state within it; both begin at 0. ``reached`` is the probability that an episode
    visits the state, and ``occupancy`` that it also takes the action. ``value`` (V) and ``q`` (Q) are expected sums of losses from here to
    the end.
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


class ShownTable(NamedTuple):
    """The texts of a printed policy table: title, headings, rows, the number of states that are left out, and notes."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    more: int
    notes: list[str]

    @property
    def below(self) -> list[str]:
        """The lines below the table."""
        return [*([f"... {self.more} more states"] if self.more else []), *self.notes]


class PolicyTable:
    """A policy in a model at one context.

    Parameters
    ----------
    mdp : LayeredMDP
        The model, fitted or true, in which occupancy, value and Q are computed.
    policy : array_like, shape (n_states, A)
    names : Names, optional
    label : str
        The label of the context.
    model : str
        What the heading calls the model.
    reached_only : bool
        Leave out states that the policy does not reach.

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
        mask = self.mdp.action_mask
        for s in self.states.tolist():
            for a in range(self.mdp.layout.n_actions) if mask is None else np.flatnonzero(mask[s]).tolist():
                yield self._row(s, a)

    def _row(self, s: int, a: int) -> PolicyRow:
        layout = self.mdp.layout
        numbers = (self.policy[s, a], self.reached[s], self.occupancy[s, a], self.losses[s, a], self.q[s, a], self.value[s])
        return PolicyRow(*layout.local(s), self.names.state(layout, s), a, self.names.action(a), *map(float, numbers))

    def best(self) -> list[PolicyRow]:
        """The likeliest action of each state; the lowest number if several are equally likely."""
        return [self._row(s, self._likeliest(s)) for s in self.states.tolist()]

    def _likeliest(self, s: int) -> int:
        mask = self.mdp.action_mask
        return int(self.policy[s].argmax()) if mask is None else int(np.where(mask[s], self.policy[s], -1.0).argmax())

    def _kind(self, s: int) -> str:
        """Why a state has no choice: "drawn" in a layer that draws the first state, "only" with one allowed action; else ""."""
        mask = self.mdp.action_mask
        if s == 0 and self.names.start_layer:
            return "drawn"
        return "only" if mask is not None and self.mdp.layout.n_actions > 1 and mask[s].sum() == 1 else ""

    @property
    def title(self) -> str:
        """Context, model and value of the policy."""
        named = self.label if self.label.startswith("context") else f"context {self.label}"
        context = f"{named}, " if self.label else ""
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
        """Write the rows as CSV with a heading line; floats are written exactly."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(PolicyRow._fields)
        writer.writerows(self)
        with writing(path) as file:
            file.write(text.getvalue().encode())

    def shown(self, most: int = SHOWN) -> ShownTable:
        """The printed table: the likeliest action of each state, with the likeliest states first within a stage.

        Parameters
        ----------
        most : int
            The largest number of states to show, at least 1.
        """
        most = as_integer(most, "most", least=1)
        layout = self.mdp.layout
        stages = np.searchsorted(layout.offsets, self.states, side="right")
        order = self.states[np.lexsort((self.states, -self.reached[self.states], stages))][:most].tolist()
        rows, kinds = [], set()
        for s in order:
            r, kind = self._row(s, self._likeliest(s)), self._kind(s)
            kinds.add(kind)
            reached, probability, q, value = (figure(x, ".3f") for x in (r.reached, r.probability, r.q, r.value))
            action, chance = ("-", "-") if kind == "drawn" else (printable(r.action_name), kind or probability)
            rows.append([str(r.stage), printable(r.state_name), reached, action, chance, q, value])
        notes = [note for kind, note in (("drawn", DRAWN), ("only", ONLY)) if kind in kinds]
        return ShownTable(self.title, ["stage", "state", "reached", "action", "prob.", "Q", "V"], rows, len(self.states) - len(rows), notes)

    def __str__(self) -> str:
        shown = self.shown()
        widths = [max(map(len, column)) for column in zip(shown.heads, *shown.rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(w) if i in (1, 3) else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True)))
            for row in (shown.heads, *shown.rows)
        ]
        return "\n".join([printable(shown.title), *(line.rstrip() for line in lines), *shown.below])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        shown = self.shown()
        return html_table(shown.title, shown.heads, shown.rows, *shown.below)

    def plot(self, path: str | os.PathLike[str] | None = None, *, stage: int | None = None) -> Any:
        """A heat map of the probabilities of actions in the reached states (extra `plot`); returns the matplotlib Axes.

        If there are more than 100 states, only the likeliest are drawn, and the title says so.

        Parameters
        ----------
        path : path, optional
            Write the plot to this file; its ending determines the format.
        stage : int, optional
            Only the states of this layer.
        """
        from .plots import new_figure, save_figure, show_in_notebook

        layout = self.mdp.layout
        states = [s for s in self.states.tolist() if stage is None or layout.local(s)[0] == stage]
        if not states:
            raise OpoError(f"stage is {stage!r}: a layer with a reached state, 0 to {layout.horizon - 1}, is needed")
        title = self.title
        if len(states) > DRAWN_STATES:
            title += f"\nthe {DRAWN_STATES} likeliest of {len(states):,} states"
            states = sorted(sorted(states, key=lambda s: (-self.reached[s], s))[:DRAWN_STATES])
        height = 1.6 + 0.22 * len(states)
        axes = new_figure(7.0, height).add_subplot()
        shade = axes.imshow(self.policy[states], vmin=0, vmax=1, cmap="Blues", aspect="auto", interpolation="nearest")
        names = [f"{layout.local(s)[0]}: {plain(self.names.state(layout, s))}" for s in states]
        axes.set_yticks(range(len(names)), names, fontsize=8)
        turned = layout.n_actions > 8
        axes.set_xticks(
            range(layout.n_actions), [plain(self.names.action(a)) for a in range(layout.n_actions)], rotation=90 if turned else 0
        )
        axes.set_xlabel("action")
        axes.set_ylabel("stage: state")
        axes.set_title("\n".join(map(plain, title.split("\n"))), fontsize=10)
        axes.figure.colorbar(
            shade, ax=axes, label="probability", location="top", shrink=0.5, aspect=30, fraction=0.4 / height, pad=0.1 / height
        )
        show_in_notebook(axes)
        if path is not None:
            save_figure(axes.figure, path)
        return axes


def policy_table(
    agent: Any, context: Any, env: Any = None, *, names: Names | None = None, true_model: bool = False, reached_only: bool = True
) -> PolicyTable:
    """The policy that an agent would play at a context, as a table.

    Parameters
    ----------
    agent : Agent or LearnedPolicy
    context : hashable or ndarray
    env : Environment, optional
        Gives the names of contexts, states and actions, and the true model.
    names : Names, optional
        Default: the names of the environment, or of the agent if the environment has none.
    true_model : bool
        Compute occupancy, value and Q in the true model of `env`. Default: in the agent's fitted model, or in the true one if the agent
        fits none.
    reached_only : bool
        Leave out states that the policy does not reach.

    Returns
    -------
    PolicyTable

    Raises
    ------
    OpoError
        The environment lists its contexts, and `context` is not one of them.

    Warns
    -----
    UserWarning
        The agent never observed the context. Contexts that are numbers or vectors are not checked.
    """
    agent = getattr(agent, "agent", agent)
    having(agent, "agent", ("policy",), "an Agent")
    if names is not None:
        instance(names, "names", Names, needed="an opo_fast.Names, or None,")
    fitted = hasattr(agent, "model") and hasattr(agent, "fits") and not as_bool(true_model, "true_model")
    if not fitted and not hasattr(env, "mdp"):
        raise OpoError("env: an environment with mdp(context) is needed, as the agent fits no model (or true_model is True)")
    if env is not None:
        Names.of(env).check_context(context)
    if hasattr(agent, "check_context"):
        agent.check_context(context)
    mdp = agent.model(agent.fits, context) if fitted else env.mdp(context)
    known = names or _known(agent, env)
    label, model = label_of(env, context), "fitted" if fitted else "true"
    return PolicyTable(mdp, agent.policy(context), names=known, label=label, model=model, reached_only=reached_only)


def _known(agent: Any, env: Any) -> Names:
    """The names of the environment; states or actions that it does not name have the agent's names."""
    mine = Names.of(agent)
    if env is None:
        return mine
    theirs = Names.of(env)
    if (theirs.states or mine.states is None) and (theirs.actions or mine.actions is None):
        return theirs
    labels, start = theirs.labels or None, theirs.start_layer or mine.start_layer
    return Names(theirs.states or mine.states, theirs.actions or mine.actions, contexts=theirs.contexts, labels=labels, start_layer=start)
