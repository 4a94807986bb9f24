"""The forms of a chain: one context, or up to eight contexts of a small layout, one per SIMD lane.

In larger layouts each context is a chain that runs on one thread; the largest use several threads within a layer. The order of every
sum depends on the layout alone (a context of a small layout that never has others beside it takes a form of its own, with the sums
of a pack), so neither the other contexts nor the threads change a bit of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.cached import cached_property
from .._support.threads import get_threads, run_together
from ..kernels import chain as kernels
from ..kernels import packed as packed_kernels
from ..kernels._simd import LANES
from ..kernels.batch import BATCH, SUMS, visit_batch_csr, visit_batch_dense
from ..kernels.ingest import pack_lane
from ..kernels.one_lane import lay_out_lane, one_lane_steps, one_lane_visits
from ..kernels.packed_self_tuning import packed_self_tuning_steps
from ..kernels.plausible import TABLE
from ..kernels.self_tuning import self_tuning_steps
from ..model.layout import address, aligned, aligned_parts
from ..model.operations import visit_once
from ..model.scratch import Scratch, chunk_of
from ..model.transitions import CSR, DENSE, Transitions
from .chain import Chain
from .history import Fits, History
from .packed_classes import PackedClasses
from .rules import Bonus

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["OneLaneChain", "PackedChain", "SingleChain"]

Array = npt.NDArray[Any]

NO_ROWS = np.empty(0)
BATCH_BYTES = 1 << 27
"""Maximum size of the work arrays for several policies at once. Beyond it, the occupancies of past policies are computed one by one."""


def _place(array: Array) -> tuple[int, int]:
    """Address and number of entries of an array."""
    return address(array), array.size


def _forward_work(model: Transitions, scratch: Scratch, passes: int) -> tuple[Any, ...]:
    """The arguments `slices`, `d`, `w` and `private` of a chain kernel, for `passes` forward passes."""
    slices = model.transposed_slices.arrays(model, passes)
    return slices, scratch.d, scratch.layer if slices[0].size else scratch.w, scratch.private


def _step_arguments(model: Transitions, scratch: Scratch, steps: int, passes: int) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The model arguments of `chain_steps` for this many steps and forward passes, and its `slices`, `d`, `w` and `private`."""
    work = _forward_work(model, scratch, passes)
    # A forward pass that does not gather from the transposed copy reads CSR rows.
    gathers = work[0][0].size > 0
    if model.kind == CSR and (gathers or not passes) and model.row_slices.note(model, steps):
        return model.row_slices.arguments, work
    return model.arguments, work


class SingleChain(Chain):
    """One context."""

    def _prepare(self, transitions: list[Transitions]) -> Transitions:
        return transitions[0]

    def interleave(self, rows: list[Array]) -> Array:
        return rows[0]

    def _model_bytes(self, model: Transitions) -> int:
        return model.nbytes + model.transposed_slices.nbytes + model.row_slices.nbytes

    def _visit(self, model: Transitions, counts: Array, k: int, count: int) -> None:
        past = self.policies.lines
        dense, most = model.kind == DENSE, max(model.layout.layer_sizes)
        threads = min(get_threads(), model.threads_for(LANES))
        shared = count <= LANES
        if dense and not shared:
            threads = min(threads, -(-count // LANES))
        lanes = BATCH if dense and count > BATCH // 2 * threads else LANES
        # Dense: each thread has separate work arrays. CSR: the threads share each layer, and each part of it has separate sums.
        copies, parts = (threads, 0) if dense else (1, model.parts)
        sizes = [lanes * size for size in (2 * most * copies, model.most_rows * copies, most * parts)]
        if count == 1 or 8 * sum(sizes) > BATCH_BYTES:
            scratch = Scratch(model)
            for i in range(k, k + count):
                visit_once(model, past, i, counts, scratch)
            return
        d, w, private = map(aligned, sizes)
        sums = aligned(SUMS * lanes * threads if dense else 0)
        for i in range(k, k + count, lanes * copies):
            n = min(lanes * copies, k + count - i)
            work = n * model.n_transitions
            if dense:
                run_together(
                    visit_batch_dense, model.arguments, (int(shared), lanes, self.policies.lines, i, n, d, w, counts, sums), threads
                )
            else:
                run_together(visit_batch_csr, model.arguments, (parts, self.policies.lines, i, n, d, w, counts, private), threads, work)

    def alike(self, models: list[Transitions]) -> list[Transitions]:
        return models if len({t.dtype for t in models}) < 2 else [t.as_float64() for t in models]

    def table(self, models: list[Transitions], fits: tuple[Hashable, ...] = ()) -> Array:
        entries = [[t.kind, *_place(t.data), *_place(t.indptr), *_place(t.indices), _place(t.block)[0]] for t in models]
        return np.array(entries, np.int64).reshape(-1, TABLE)

    def _run(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> None:
        if self.hedge is not None:
            self._run_hedged(fits, bonus, counts, length, keep)
            return
        model, losses = self.model(fits.dynamics), self.losses(fits.loss)
        rule, scratch = self.engine.rule, Scratch(model)
        chunk = chunk_of(model)
        most = min(get_threads(), model.threads)
        buffers = np.empty((2 * most, min(chunk, max(self.engine.layout.layer_sizes)) * self.engine.layout.n_actions))
        count_actions = rule.visits == "actions"
        passes = 0 if count_actions else length - 1
        arguments, work = _step_arguments(model, scratch, length, passes)
        after = (
            model.parts, length, self.policies.line(self.steps), chunk, model.width, int(rule.greedy),
            int(count_actions), losses, counts, self.policies.lines, self.sum_q, self.v,
            *work, (bonus.beta_loss / 2, bonus.beta_dynamics / 2, rule.weight), rule.eta, buffers,
        )  # fmt: skip
        run_together(kernels.chain_steps, arguments, after, most, length * model.n_transitions)

    def one_by_one(self, fit: Hashable, bonus: Bonus, counts: Array) -> Callable[[Array, int], None]:
        """A function of losses and a line of the store: the occupancy of the policy before it, and then a step of Algorithm 1 from it."""
        model, rule, layout = self.model(fit), self.engine.rule, self.engine.layout
        scratch, chunk, lines = Scratch(model), chunk_of(model), self.policies.lines
        most = min(get_threads(), model.threads)
        buffers = np.empty((2 * most, min(chunk, max(layout.layer_sizes)) * layout.n_actions))
        before = (chunk, model.width, 0, 0)
        after = ((bonus.beta_loss / 2, bonus.beta_dynamics / 2, rule.weight), rule.eta, buffers)

        def step(losses: Array, line: int) -> None:
            visit_once(model, lines, line - 1, counts, scratch)
            arguments, work = _step_arguments(model, scratch, 1, 0)
            now = (model.parts, 1, line, *before, losses, counts, lines, self.sum_q, self.v, *work, *after)
            run_together(kernels.chain_steps, arguments, now, most, model.n_transitions)

        return step

    def _run_hedged(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> None:
        assert self.hedge is not None
        hedge, layout = self.hedge, self.engine.layout
        lower, found, model = self.sets.prepare(self, fits)
        losses = self.losses(fits.loss)
        scratch, chunk = Scratch(model), chunk_of(model)
        most = min(get_threads(), model.threads)
        buffers = np.empty((3 * most, min(chunk, max(layout.layer_sizes)) * layout.n_actions))
        order = np.empty((most, max(layout.layer_sizes) if found.radius.size else 0), np.int64)
        after = (
            model.parts, length, self.policies.line(self.steps), int(keep), chunk, model.width, int(bonus.needed), losses,
            NO_ROWS if counts is None else counts, (bonus.beta_loss / 2, bonus.beta_dynamics / 2, self.engine.rule.weight),
            (lower, found.table, found.radius, order), self.policies.lines,
            (self.sum_q, self.v, hedge.gap, hedge.total, hedge.log_actions, hedge.excess), NO_ROWS,
            *_forward_work(model, scratch, length - 1 if bonus.needed else 0), buffers,
        )  # fmt: skip
        run_together(self_tuning_steps, model.arguments, after, most, length * model.n_transitions)


class PackedChain(Chain):
    """Up to eight contexts of a small layout in lockstep."""

    lanes = LANES

    def __init__(self, engine: ChainEngine, contexts: list[Any]) -> None:
        super().__init__(engine, contexts)
        layout = engine.layout
        self.d, self.w = aligned_parts([layout.n_states * self.lanes, engine.most_rows * self.lanes])

    @cached_property
    def classes(self) -> PackedClasses | None:
        """The candidates at the contexts, if the oracles' finite classes can be evaluated at once; else None."""
        return PackedClasses.of(self.engine, self.contexts)

    def _model(self, fit: Hashable) -> Array:
        classes = self.classes
        return super()._model(fit) if classes is None or not classes.has(fit) else np.asarray(classes.dynamics[fit])  # type: ignore[call-overload]

    def _losses(self, fit: Hashable) -> Array:
        return super()._losses(fit) if self.classes is None else np.asarray(self.classes.losses[fit])  # type: ignore[call-overload]

    def lower(self, version: Hashable) -> Array:
        if self.classes is None:
            return super().lower(version)
        return self.classes.least(self.engine.source.loss_candidates(version))  # type: ignore[attr-defined]

    def _models_bytes(self) -> int:
        classes = vars(self).get("classes")
        return 8 * self.lanes * self.engine.packed_size * len(self.models) if classes is None else classes.nbytes

    def prepare(self, history: History, n: int) -> None:
        if self.classes is None:
            super().prepare(history, n)

    def _prepare(self, transitions: list[Transitions]) -> Array:
        packed = aligned(self.engine.packed_size * self.lanes, zero=True)
        for lane, t in enumerate(transitions):
            pack_lane(*t.arguments, self.engine.packed_block, packed, lane)
        return packed

    def interleave(self, rows: list[Array]) -> Array:
        packed = aligned(self.engine.n_rows * self.lanes, zero=True).reshape(self.engine.n_rows, self.lanes)
        for lane, values in enumerate(rows):
            packed[:, lane] = values
        return packed.reshape(-1)

    def _model_bytes(self, model: Array) -> int:
        return model.nbytes

    def _visit(self, model: Array, counts: Array, k: int, count: int) -> None:
        engine = self.engine
        packed_kernels.packed_visits(
            engine.packed_block, engine.layout.offsets, engine.rows, model, self.policies.lines, k, count, self.d, self.w, counts
        )

    def table(self, models: list[Array], fits: tuple[Hashable, ...] = ()) -> Array:
        if not models:
            return np.empty((0, 2), np.int64)
        if fits and self.classes is not None and all(map(self.classes.has, fits)):
            return self.classes.table(fits)
        return np.array([_place(model) for model in models], np.int64).reshape(-1, 2)

    def _run(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> None:
        kernel, arguments = self.call(fits, bonus, counts, length, keep)
        kernel(*arguments)

    def call(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> tuple[Any, tuple[Any, ...]]:
        """The kernel of the next `length` steps and its arguments: the fourth is `length`, the fifth the first step's line in the store."""
        engine, rule = self.engine, self.engine.rule
        model, losses = self.model(fits.dynamics), self.losses(fits.loss)
        layout = (engine.packed_block, engine.layout.offsets, engine.rows)
        betas = (bonus.beta_loss / 2, bonus.beta_dynamics / 2, rule.weight)
        if self.hedge is None:
            return packed_kernels.packed_steps, (
                *layout, length, self.policies.line(self.steps), int(rule.greedy), int(rule.visits == "actions"), model, losses,
                counts, self.policies.lines, self.sum_q, self.v, self.d, self.w, *betas, rule.eta,
            )  # fmt: skip
        hedge = self.hedge
        lower, found, _ = self.sets.prepare(self, fits)
        order = np.empty(max(engine.layout.layer_sizes) * self.lanes if found.radius.size else 0, np.int64)
        return packed_self_tuning_steps, (
            *layout, length, self.policies.line(self.steps), int(keep), int(bonus.needed), model, losses,
            NO_ROWS if counts is None else counts, *betas, lower, found.table, found.radius, order, self.policies.lines, self.sum_q,
            self.v, hedge.gap, hedge.total, hedge.log_actions, hedge.excess, NO_ROWS, self.d, self.w,
        )  # fmt: skip


class _Lane(NamedTuple):
    """Transitions as `kernels.one_lane` takes them; `width` is the number of actions if rows of whole states fill a vector, else 0."""

    lines: Array
    columns: Array
    width: int

    @property
    def nbytes(self) -> int:
        return self.lines.nbytes + self.columns.nbytes


class OneLaneChain(Chain):
    """One context of a small layout under a rule with learning rate and occupancies: bit for bit a lane of a `PackedChain`."""

    def __init__(self, engine: ChainEngine, contexts: list[Any]) -> None:
        super().__init__(engine, contexts)
        most = engine.most_rows
        self._work = aligned_parts([size + LANES for size in (engine.layout.n_states, most, most, most)])

    def _prepare(self, transitions: list[Transitions]) -> _Lane:
        engine, t = self.engine, transitions[0]
        lines, columns = aligned_parts([engine.packed_size + LANES] * 2)
        lay_out_lane(*t.arguments, engine.packed_block, lines, columns)
        return _Lane(lines, columns, t.width)

    def interleave(self, rows: list[Array]) -> Array:
        return rows[0]

    def _model_bytes(self, model: _Lane) -> int:
        return model.nbytes

    def table(self, models: list[_Lane], fits: tuple[Hashable, ...] = ()) -> Array:
        return np.empty((0, 2), np.int64)

    def _visit(self, model: _Lane, counts: Array, k: int, count: int) -> None:
        engine = self.engine
        layout = engine.packed_block, engine.layout.offsets, engine.rows
        one_lane_visits(*layout, model.lines, model.width, self.policies.lines, k, count, *self._work[:2], counts)

    def _run(self, fits: Fits, bonus: Bonus, counts: Array | None, length: int, keep: bool) -> None:
        assert counts is not None
        one_lane_steps(*self._arguments(fits.dynamics, bonus, counts, length, 0, self.policies.line(self.steps), self.losses(fits.loss)))

    def one_by_one(self, fit: Hashable, bonus: Bonus, counts: Array) -> Callable[[Array, int], None]:
        """See `SingleChain.one_by_one`."""
        arguments = self._arguments(fit, bonus, counts, 1, 1, 0, NO_ROWS)

        def step(losses: Array, line: int) -> None:
            arguments[4], arguments[9] = line, losses
            one_lane_steps(*arguments)

        return step

    def _arguments(self, fit: Hashable, bonus: Bonus, counts: Array, length: int, late: int, line: int, losses: Array) -> list[Any]:
        engine, rule = self.engine, self.engine.rule
        return [
            engine.packed_block, engine.layout.offsets, engine.rows, length, line, late, *self.model(fit), losses, counts,
            self.policies.lines, self.sum_q, self.v, *self._work, bonus.beta_loss / 2, bonus.beta_dynamics / 2, rule.weight, rule.eta,
        ]  # fmt: skip
