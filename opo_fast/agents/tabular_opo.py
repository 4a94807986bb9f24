"""Optimistic policy optimization with counts (Shani, Efroni, Rosenberg and Mannor, ICML 2020): OPO-CMDP's tabular ancestor."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_bool, as_delta, as_integer, as_number
from .._support.fields import Fields
from .._support.state import decode, encode
from ..errors import OpoError
from ..kernels.counts import tabular_step
from ..model.contextual import Trajectory, context_key
from ..model.layout import Layout, row_starts
from .base import SOURCE, BaseAgent, State

__all__ = ["TabularOPO"]

Array = npt.NDArray[Any]
LARGEST = 1 << 28
"""Largest number of transitions that one context's table may have."""


class _Table:
    """Statistics of one context: counts, mean losses, frequencies of next states, and the policy."""

    def __init__(self, agent: TabularOPO) -> None:
        n_rows = agent.start.size
        self.n, self.loss_sum = np.zeros(n_rows), np.zeros(n_rows)
        self.seen, self.frequencies = np.zeros(agent.size), np.zeros(agent.size)
        self.sum_q = np.zeros(n_rows)
        self.policy = agent.start.copy()
        self.v = 0.0
        self.saturation = 1.0


class TabularOPO(BaseAgent):
    """Optimistic policy optimization in the stochastic setting, with tables of counts instead of oracles.

    After each episode at a context, with the statistics of the earlier episodes:

        Q_h = max{0, mean loss - b + sum_{s'} frequency(s') V_{h+1}(s')},  V_h = <pi, Q_h>,  pi <- pi exp(-eta Q), normalised

    with eta = sqrt(2 log|A| / (H^2 K)) and b = b_loss + b_dynamics,

        b_loss = sqrt(2 log(2 |S||A| K H / delta') / max(n, 1)),  delta' = delta / 3
        b_dynamics = H sqrt(4 |S_{h+1}| log(3 |S||A| K H / delta') / max(n, 1)).

    The loop, the clip at 0 and the step size are those of the paper. The constants of b are quoted from memory; they are
    valid by the inequalities of Hoeffding and Weissman. In a layered model the next state is one of |S_{h+1}|, and after the
    last layer it is known, so b_dynamics is 0 there (our reading).

    Parameters
    ----------
    layout : Layout
    episodes : int
        K, the number of episodes of the whole run.
    delta : float
        Failure probability, for each context.
    bonus_scale, eta_scale : float
        Factors on b and eta.
    per_context : bool
        True: one table for each of finitely many contexts; nothing is shared between contexts.
        False: one table for all, as if there were no contexts.
    action_mask : array_like of bool (n_states, A), optional
    """

    name = "tabular OPO"

    def __init__(
        self,
        layout: Layout,
        *,
        episodes: int,
        delta: float = 0.05,
        bonus_scale: float = 1.0,
        eta_scale: float = 1.0,
        per_context: bool = True,
        action_mask: npt.ArrayLike | None = None,
    ) -> None:
        super().__init__(layout, action_mask=action_mask)
        self.planned, h = as_integer(episodes, "episodes", least=1), layout.horizon
        k = self.planned
        delta = as_delta(delta)
        self.bonus_scale, self.per_context = as_number(bonus_scale, "bonus_scale"), as_bool(per_context, "per_context")
        self.eta = as_number(eta_scale, "eta_scale") * math.sqrt(2 * math.log(layout.n_actions) / (h**2 * k))
        allowed = np.ones(layout.shape, bool) if self.action_mask is None else self.action_mask
        counts = allowed.sum(axis=1)
        self.allowed, self.start = allowed, np.repeat(1.0 / counts, counts)
        self.rows = row_starts(counts)
        layer_rows = np.diff(self.rows[layout.offsets])
        following = np.array([*layout.layer_sizes[1:], 0])
        self.block = np.concatenate([[0], np.cumsum(layer_rows * following)[:-1]]).astype(np.int64)
        self.size = int((layer_rows * following).sum())
        if self.size > LARGEST:
            raise OpoError(f"layout has {self.size} transitions: at most {LARGEST}, which a table can hold, are needed")
        pairs = layout.n_states * layout.n_actions
        loss_term = math.sqrt(2 * math.log(2 * pairs * k * h * 3 / delta))
        dynamics_term = h * np.sqrt(4 * following * math.log(3 * pairs * k * h * 3 / delta))
        self.unit_bonus = self.bonus_scale * np.repeat(loss_term + dynamics_term, layer_rows)
        self.to_go = np.repeat(np.arange(h, 0, -1.0), layer_rows)
        self.tables: dict[Hashable, _Table] = {}
        self.contexts: list[Any] = []

    def policy(self, context: Any) -> Array:
        """The policy of this context's table; uniform before its first episode."""
        table = self.tables.get(self._key(context))
        if table is None:
            return self.uniform()
        full = np.zeros(self.layout.shape)
        full[self.allowed] = table.policy
        return full

    def _key(self, context: Any) -> Hashable:
        return context_key(context) if self.per_context else None

    def _learn(self, trajectory: Trajectory) -> None:
        key = self._key(trajectory.context)
        if key not in self.tables:
            self.tables[key] = _Table(self)
            self.contexts.append(trajectory.context if self.per_context else None)
        table = self.tables[key]
        self._improve(table)
        self._count(table, trajectory)

    def _improve(self, table: _Table) -> None:
        """One evaluation and one policy step, with the bonus subtracted from the losses."""
        n = np.maximum(table.n, 1.0)
        b, v = self.unit_bonus / np.sqrt(n), np.empty(self.layout.n_states)
        losses = table.loss_sum / n - b
        tabular_step(self.block, self.layout.offsets, self.rows, table.frequencies, losses, table.policy, table.sum_q, v, self.eta)
        table.v, table.saturation = float(v[0]), float(np.mean(b >= self.to_go))
        self.planning_calls += 1

    def _count(self, table: _Table, trajectory: Trajectory) -> None:
        layout, offsets = self.layout, self.layout.offsets
        for h, (s, a) in enumerate(zip(trajectory.states[:-1].tolist(), trajectory.actions.tolist(), strict=True)):
            row = int(self.rows[s]) + int(self.allowed[s, :a].sum())
            table.n[row] += 1.0
            table.loss_sum[row] += trajectory.losses[h]
            if h < layout.horizon - 1:
                n_next, first = layout.layer_sizes[h + 1], int(self.rows[offsets[h]])
                start = int(self.block[h]) + (row - first) * n_next
                where = slice(start, start + n_next)
                table.seen[where][trajectory.states[h + 1] - offsets[h + 1]] += 1.0
                table.frequencies[where] = table.seen[where] / table.n[row]

    def saturation(self, context: Any) -> float:
        """Share of the pairs whose bonus is at least the greatest possible remaining loss; 1 for a context that was never seen."""
        table = self.tables.get(self._key(context))
        return 1.0 if table is None else table.saturation

    def value(self, context: Any) -> float:
        """The optimistic estimate of V(s_1) of the policy before the last step at `context`; 0 before the first step."""
        table = self.tables.get(self._key(context))
        return 0.0 if table is None else table.v

    # -- saving ------------------------------------------------------------------------------------------------------

    _COLUMNS = ("n", "loss_sum", "seen", "frequencies", "sum_q", "policy")

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        return {**super().settings(), "eta": self.eta, "unit_bonus": float(self.unit_bonus.sum()), "per_context": self.per_context}

    def _state(self) -> State:
        tables = list(self.tables.values())
        stacks = {name: np.array([getattr(table, name) for table in tables]) for name in self._COLUMNS}
        values = np.array([(table.v, table.saturation) for table in tables])
        return {"contexts": [encode(context) for context in self.contexts], "values": values, **stacks}

    def _restore(self, state: State) -> None:
        fields = Fields(state, SOURCE)
        contexts = [decode(context, fields.place("contexts")) for context in fields.listed("contexts")]
        keys = [self._key(context) for context in contexts]
        fields.check("contexts", len(set(keys)) == len(keys) and (self.per_context or set(contexts) <= {None}), "names a table twice")
        k, n_rows = len(contexts), self.start.size
        sizes = {name: self.size if name in ("seen", "frequencies") else n_rows for name in self._COLUMNS}
        most = {"frequencies": 1.0, "policy": 1.0}
        stacks = {name: fields.numbers(name, (k, size), least=0.0, most=most.get(name, np.inf)) for name, size in sizes.items()}
        values = fields.numbers("values", (k, 2), least=0.0)
        fields.check("values", bool((values[:, 1] <= 1).all()), "holds a share above 1")
        self._check_tables(fields, stacks)
        tables = []
        for i in range(k):
            table = _Table(self)
            for name, stack in stacks.items():
                setattr(table, name, stack[i].copy())
            table.v, table.saturation = (float(x) for x in values[i])
            tables.append(table)
        self.contexts, self.tables = contexts, dict(zip(keys, tables, strict=True))

    def _check_tables(self, fields: Fields, stacks: dict[str, Array]) -> None:
        """Refuse tables that cannot result from any sequence of episodes."""
        n, seen, frequencies, layout = stacks["n"], stacks["seen"], stacks["frequencies"], self.layout
        fields.check("loss_sum", bool((stacks["loss_sum"] <= n).all()), "holds a sum of losses above the number of visits")
        whole_counts = bool((n == np.floor(n)).all() and (seen == np.floor(seen)).all())
        fields.check("n", whole_counts, "and seen hold numbers of visits that are not integers")
        start_visits = int(n[:, : self.rows[1]].sum())
        fields.check(
            "n", start_visits == fields.integer("episode"), f"counts {start_visits} episodes: {fields.integer('episode')} are needed"
        )
        sums = np.add.reduceat(stacks["policy"], self.rows[:-1], axis=1)
        fields.check("policy", bool((np.abs(sums - 1) <= 1e-9).all()), "holds probabilities that do not sum to 1")
        for h in range(layout.horizon - 1):
            rows = n[:, self.rows[layout.offsets[h]] : self.rows[layout.offsets[h + 1]], None]
            part = slice(int(self.block[h]), int(self.block[h]) + rows.shape[1] * layout.layer_sizes[h + 1])
            counts = seen[:, part].reshape(*rows.shape[:2], layout.layer_sizes[h + 1])
            fields.check("seen", bool((counts.sum(axis=2) == rows[:, :, 0]).all()), "holds numbers of visits that do not sum to n")
            same = frequencies[:, part].reshape(counts.shape) == counts / np.maximum(rows, 1)
            fields.check("frequencies", bool(same.all()), "holds other frequencies than seen and n give")
