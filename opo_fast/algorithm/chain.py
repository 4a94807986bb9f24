"""The common part of the two forms of a chain: it runs the steps of a history of fits, with lazy sums of visits.

*Lazy visits.* N^k sums the occupancies of all past policies under P^k. For each dynamics, a chain keeps one sum and the number of
policies in it. When a step needs a sum, the occupancies of the missing policies, which are in the store of past policies, are added.
So each occupancy is computed at most once, and only if a step needs it.

*A store within a byte budget.* When it is full, the sums that may be needed again are brought up to date, and the stored policies
are dropped. If an unexpected dynamics appears later, the chain starts again from step 0, now with a sum for that dynamics and with
the whole budget; until such a surprise, the store is small.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.fields import Fields, as_fit
from ..kernels._simd import LANES
from ..kernels.weights import count_saturated
from ..model.layout import aligned_parts
from ..model.transitions import Transitions
from .hedge import HedgeSums
from .history import Fits, History
from .plausible import PlausibleModels
from .policies import PolicyStore, VisitSum, VisitSums
from .rules import Bonus

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["Chain"]

Array = npt.NDArray[Any]

SMALL_STORE = 1 << 18
"""Bytes of past policies that a chain stores at first. So small a store stays in the cache; a larger one would be written to memory,
but not read unless a new dynamics appears."""
AT_ONCE = 1 << 26
"""Transitions of the steps that one kernel call computes, over all its contexts: Ctrl-C has to wait until the call returns."""
RECENT = 64
"""When stored policies are dropped, the dynamics of so many last steps keep their sums of visits."""


class Chain:
    """The chain of some contexts of an engine, one context per SIMD lane.

    Attributes
    ----------
    steps : int
        Number of steps that are done; after k steps, the policy is the paper's pi^{k+1}.
    planned : int
        Number of steps run so far, summed over all contexts.
    """

    lanes = 1

    def __init__(self, engine: ChainEngine, contexts: list[Any]) -> None:
        self.engine, self.contexts = engine, contexts
        self.width = engine.n_rows * self.lanes
        self.sum_q, self.v = aligned_parts([self.width, engine.layout.n_states * self.lanes])
        self.policies = PolicyStore(engine.start if self.lanes == 1 else engine.pack_start)
        self.visits: VisitSums = {}
        self.kept: set[Hashable] = set()
        self.surprised = False
        self.last: Array | None = None
        self.models: dict[Hashable, Any] = {}
        self.loss_rows: dict[Hashable, Array] = {}
        self.hedge = HedgeSums(engine, self.lanes) if engine.rule.hedged else None
        self.sets = PlausibleModels(self)
        self.steps, self.planned = 0, 0
        self.measured, self.held = 0, len(contexts)

    def _restart(self) -> None:
        self.steps = 0
        self.sum_q[:] = 0.0
        if self.hedge is not None:
            self.hedge.restart()
        self.policies.restart()
        self.visits = {fit: VisitSum.empty(self.width) for fit in self.kept}

    @property
    def nbytes(self) -> int:
        """Bytes held, models included."""
        vectors = self.sum_q.nbytes + self.policies.nbytes + self.width * 8 * (len(self.visits) + len(self.loss_rows))
        vectors += self.sets.nbytes + (0 if self.hedge is None else self.hedge.nbytes)
        return vectors + self._models_bytes()

    def _models_bytes(self) -> int:
        return sum(self._model_bytes(model) for model in self.models.values())

    def advance(self, history: History, n: int) -> None:
        """Bring the chain to `n` steps."""
        rule = self.engine.rule
        keep = self.surprised or (n > 0 and rule.bonus(n - 1).needed)
        while self.steps < n:
            fits, bonus = history[self.steps], rule.bonus(self.steps)
            length = min(history.equal_steps(self.steps, n), bonus.end - self.steps)
            entry = None
            if keep:
                length = min(length, self._most_steps(history, n))
            else:
                self.policies.drop_before(self.steps)
            if bonus.needed:
                # E-UC3RL and RM-UCDD keep one sum, which all models share.
                key = fits.dynamics if rule.visits == "latest" else None
                entry = self._caught_up(key, fits.dynamics, history)
                if entry is None:
                    self.kept.add(key)
                    self.surprised = keep = True
                    self._restart()
                    continue
            self._run(fits, bonus, None if entry is None else entry.counts, length, keep)
            if keep:
                self.policies.note_steps(self.steps, length)
            else:
                self.policies.first = self.steps + length
            self.steps += length
            self.planned += length * len(self.contexts)
            if entry is not None:
                entry.counted = self.steps - 1
            self.last = None if entry is None else entry.counts
            self._forget(history, n)

    def prepare(self, history: History, n: int) -> None:
        """Build the models of the next steps in this thread, since Python code in two threads does not run in parallel."""
        for fits in history.between(self.steps, n)[:RECENT]:
            self.losses(fits.loss)
            self.model(fits.dynamics)
            self.sets.prepare(self, fits)

    def _caught_up(self, key: Hashable, fit: Hashable, history: History) -> VisitSum | None:
        """The visits under `fit` of all policies before this step, or None if policies that it lacks have been dropped."""
        entry = self.visits.get(key)
        if entry is None:
            entry = VisitSum.empty(self.width)
            if self.policies.first > 0:
                return None
            self.visits[key] = entry
        if entry.counted < self.policies.first:
            return None
        self._catch_up(entry, fit, history)
        return entry

    def _catch_up(self, entry: VisitSum, fit: Hashable, history: History) -> None:
        rule = self.engine.rule.visits
        while entry.counted < self.steps:
            count = self.steps - entry.counted
            k = self.policies.line(entry.counted)
            if rule == "actions":
                for line in range(k, k + count):
                    entry.counts += self.policies.lines[line]
            else:
                if rule == "contemporaneous":
                    fit = history[entry.counted].dynamics
                    count = min(count, history.equal_steps(entry.counted, self.steps))
                self._visit(self.model(fit), entry.counts, k, count)
            entry.counted += count

    def _most_steps(self, history: History, n: int) -> int:
        """Number of steps for which the store has lines; it grows within the budget, or else past policies are dropped."""
        if not self.policies.free(self.steps):
            many = self.surprised or len(history.dynamics(self.steps, n)) > LANES
            budget = self.engine.store_bytes if many else min(SMALL_STORE, self.engine.store_bytes)
            if not self.policies.grow(self.steps, n - self.steps, budget):
                self._drop_policies(history, n)
                if len(self.visits) == 1 and self.hedge is None:
                    # No other sum needs the policies of the steps under these fits, so the kernel may overwrite them.
                    return max(self.policies.free(self.steps), AT_ONCE // max(1, self.engine.packed_size * self.lanes))
        return self.policies.free(self.steps)

    def _drop_policies(self, history: History, n: int) -> None:
        rule = self.engine.rule
        if rule.visits == "latest":
            wanted = history.dynamics(self.steps, n) | history.dynamics(max(0, self.steps - RECENT), self.steps) | self.kept
        else:
            wanted = {None}
        for fit in list(self.visits):
            if fit not in wanted:
                del self.visits[fit]
        for fit in wanted:
            if fit not in self.visits and self.policies.first == 0:
                self.visits[fit] = VisitSum.empty(self.width)
            entry = self.visits.get(fit)
            if entry is not None and entry.counted >= self.policies.first:
                self._catch_up(entry, fit, history)
        self.policies.drop_before(self.steps)

    def _forget(self, history: History, n: int) -> None:
        """Drop models that no nearby step uses; they are requested again if needed."""
        self.sets.forget(self, history, self.steps, n)
        if len(self.models) > 2 * RECENT:
            recent = history.dynamics(max(0, self.steps - RECENT), min(n, self.steps + RECENT)) | self.sets.fits
            self.models = {fit: model for fit, model in self.models.items() if fit in recent}
            if self.engine.rule.visits == "latest":
                self.visits = {fit: entry for fit, entry in self.visits.items() if fit in recent or fit in self.kept}
        if len(self.loss_rows) > 2 * RECENT:
            self.loss_rows.clear()

    def model(self, fit: Hashable) -> Any:
        """The dynamics of a fit at the contexts, as the kernels of this form take it."""
        found = self.models.get(fit)
        if found is None:
            found = self.models[fit] = self._model(fit)
        return found

    def _model(self, fit: Hashable) -> Any:
        return self._prepare([self.engine.source.transitions(fit, context) for context in self.contexts])

    def losses(self, fit: Hashable) -> Array:
        """The losses of a fit at the contexts, as the kernels of this form take them."""
        found = self.loss_rows.get(fit)
        if found is None:
            found = self.loss_rows[fit] = self._losses(fit)
        return found

    def _losses(self, fit: Hashable) -> Array:
        return self.interleave([self.engine.source.losses(fit, context) for context in self.contexts])

    def lower(self, version: Hashable) -> Array:
        """The least plausible losses of a version at the contexts, as the kernels of this form take them."""
        return self.interleave([self.engine.source.lower(version, context) for context in self.contexts])

    def policy(self, lane: int) -> Array:
        """The current policy of one context, one number per row."""
        line: Array = self.policies.lines[self.policies.line(self.steps) - (1 if self.engine.rule.greedy and self.steps else 0)]
        return line[lane :: self.lanes]

    def saturation(self, lane: int) -> float:
        """Share of the rows whose bonus was at its cap in the last step; 1 before the first. A term with beta 0 is ignored."""
        if self.last is None:
            return 1.0
        engine, bonus = self.engine, self.engine.rule.bonus(self.steps - 1)
        halves = bonus.beta_loss / 2, bonus.beta_dynamics / 2
        count = count_saturated(self.last, lane, self.lanes, engine.layout.offsets, engine.rows, *halves)
        return count / engine.n_rows  # type: ignore[no-any-return]

    def value(self, lane: int) -> float:
        """The optimistic value of the start state in the last step."""
        return float(self.v[lane])

    def state(self) -> dict[str, Any]:
        """Everything that the source cannot provide again: sums, visits and stored policies."""
        lines = self.policies.line(self.steps) + (0 if self.engine.rule.greedy else 1)
        return {
            "contexts": list(self.contexts),
            "steps": self.steps,
            "first": self.policies.first,
            "planned": self.planned,
            "kept": list(self.kept),
            "surprised": self.surprised,
            "sum_q": self.sum_q.copy(),
            "store": self.policies.lines[:lines].copy(),
            "fits": list(self.visits),
            "counted": [entry.counted for entry in self.visits.values()],
            "visits": [entry.counts.copy() for entry in self.visits.values()],
            "last": None if self.last is None else self.last.copy(),
            "v": self.v.copy(),
            "hedge": None if self.hedge is None else self.hedge.state(),
        }

    def restore(self, fields: Fields, history: History, n: int) -> None:
        """Take over the `state` of a chain with the same engine, history and contexts, which has at most `n` steps."""
        greedy, latest = self.engine.rule.greedy, self.engine.rule.visits == "latest"
        steps = fields.integer("steps", most=n)
        # A greedy chain has no policy of the coming step yet.
        first = fields.integer("first", most=max(0, steps - 1) if greedy else steps)
        store = fields.numbers("store", (steps - first + (0 if greedy else 1), self.width), least=0.0, most=1.0 + 1e-9)
        fields.check("store", self._are_policies(store), "holds probabilities that do not sum to 1")
        known = history.dynamics(0, n) if latest else {None}
        fits, kept = ([as_fit(fit) for fit in fields.listed(name)] for name in ("fits", "kept"))
        for name, named in (("fits", fits), ("kept", kept)):
            fields.check(name, set(named) <= known and len(set(named)) == len(named), "names other dynamics than those of the history")
        counted = fields.positions("counted", (len(fits),), most=steps)
        visits = fields.numbers("visits", (len(fits), self.width), least=0.0)
        within = bool((visits <= counted[:, None] * (1 + 1e-9)).all())
        fields.check("visits", within, "holds more visits than policies were counted")
        last = None if fields.value("last") is None else fields.numbers("last", (self.width,), least=0.0)
        fields.check("last", last is None or steps > 0, "does not belong to a chain of 0 steps")
        sum_q, v = fields.numbers("sum_q", (self.width,)), fields.numbers("v", self.v.shape)
        if self.hedge is not None:
            self.hedge.restore(fields.inner("hedge"))
        self.planned, self.surprised = fields.integer("planned"), fields.flag("surprised")
        self.steps, self.kept, self.sum_q, self.v, self.last = steps, set(kept), sum_q, v, last
        self.policies.take_over(store, first)
        self.visits = {fit: VisitSum(own, int(count)) for fit, own, count in zip(fits, map(np.array, visits), counted, strict=True)}

    def _are_policies(self, lines: Array) -> bool:
        sums = np.add.reduceat(lines.reshape(len(lines), self.engine.n_rows, self.lanes), self.engine.rows[:-1], axis=1)
        return bool((np.abs(sums - 1) <= 1e-9).all())

    # Implemented by the two forms.

    def table(self, models: list[Any], fits: tuple[Hashable, ...] = ()) -> Array:
        """The addresses of models of this form, those of `fits`, for the kernels."""
        raise NotImplementedError

    def alike(self, models: list[Any]) -> list[Any]:
        """The models in one dtype, since kernels read all models of a table in the dtype of the fit's dynamics."""
        return models

    def _prepare(self, transitions: list[Transitions]) -> Any:
        raise NotImplementedError

    def interleave(self, rows: list[Array]) -> Array:
        raise NotImplementedError

    def _model_bytes(self, model: Any) -> int:
        raise NotImplementedError

    def _visit(self, model: Any, counts: Array, k: int, count: int) -> None:
        raise NotImplementedError

    def _run(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> None:
        raise NotImplementedError
