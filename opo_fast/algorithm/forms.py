"""The two forms of a chain: one context, and up to eight contexts of a small layout, one per SIMD lane.

Larger layouts take one context at a time, each on a thread of its own; the largest use several threads inside a layer.
The form depends on the layout alone and every sum has a fixed order, so neither neighbours nor threads change a bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .._support.threads import get_threads, run_together
from ..kernels import chain as kernels
from ..kernels import packed as packed_kernels
from ..kernels._simd import LANES
from ..kernels.batch import BATCH, visit_batch_csr, visit_batch_dense
from ..kernels.ingest import pack_lane
from ..model.layout import aligned
from ..model.operations import Scratch, chunk_of, visit_once
from ..model.transitions import DENSE, Transitions
from .chain import Chain

if TYPE_CHECKING:
    from .engine import ChainEngine

__all__ = ["PackedChain", "SingleChain"]

Array = npt.NDArray[Any]

BATCH_BYTES = 1 << 27
"""Most bytes of what many policies at once need, above which past policies go through a dynamics one by one."""


class SingleChain(Chain):
    """One context."""

    def _prepare(self, transitions: list[Transitions]) -> Transitions:
        return transitions[0]

    def _interleave(self, rows: list[Array]) -> Array:
        return rows[0]

    def _model_bytes(self, model: Transitions) -> int:
        return model.nbytes

    def _visit(self, model: Transitions, counts: Array, k: int, count: int) -> None:
        past = self.policies.lines
        dense, most = model.kind == DENSE, max(model.layout.layer_sizes)
        threads = min(get_threads(), model.threads_for(LANES))
        shared = count <= LANES
        if dense and not shared:
            threads = min(threads, -(-count // LANES))
        lanes = BATCH if dense and count > BATCH // 2 * threads else LANES
        # Dense: what a thread works on is its own; CSR: threads share each layer, with sums of their own for each part.
        copies, parts = (threads, 0) if dense else (1, model.parts)
        sizes = [lanes * size for size in (2 * most * copies, model.most_rows * copies, most * parts)]
        if count == 1 or 8 * sum(sizes) > BATCH_BYTES:
            scratch = Scratch(model)
            for i in range(k, k + count):
                visit_once(model, past, i, counts, scratch)
            return
        d, w, private = map(aligned, sizes)
        sums = aligned(1024 * threads if lanes == BATCH else 0)
        for i in range(k, k + count, lanes * copies):
            n = min(lanes * copies, k + count - i)
            work = n * model.n_transitions
            if dense:
                run_together(
                    visit_batch_dense, model.arguments, (int(shared), lanes, self.policies.lines, i, n, d, w, counts, sums), threads
                )
            else:
                run_together(visit_batch_csr, model.arguments, (parts, self.policies.lines, i, n, d, w, counts, private), threads, work)

    def _run(self, model: Transitions, losses: Array, counts: Array, length: int) -> None:
        rule, scratch = self.engine.rule, Scratch(model)
        chunk = chunk_of(model)
        most = min(get_threads(), model.threads)
        lines = np.empty((2 * most, min(chunk, max(self.engine.layout.layer_sizes)) * self.engine.layout.n_actions))
        after = (
            model.parts, length, self.policies.line(self.steps), chunk, model.width, int(rule.greedy),
            int(rule.visits == "actions"), losses, counts, self.policies.lines, self.sum_q, self.v, scratch.d, scratch.w,
            scratch.private, rule.beta_loss / 2, rule.beta_dynamics / 2, rule.weight, rule.eta, lines,
        )  # fmt: skip
        run_together(kernels.chain_steps, model.arguments, after, most, length * model.n_transitions)


class PackedChain(Chain):
    """Up to eight contexts of a small layout in lockstep."""

    lanes = LANES

    def __init__(self, engine: ChainEngine, contexts: list[Any]) -> None:
        super().__init__(engine, contexts)
        layout = engine.layout
        self.d = aligned(layout.n_states * self.lanes)
        self.w = aligned(max(engine.layer_rows) * self.lanes)

    def _prepare(self, transitions: list[Transitions]) -> Array:
        packed = aligned(self.engine.packed_size * self.lanes, zero=True)
        for lane, t in enumerate(transitions):
            pack_lane(*t.arguments, self.engine.packed_block, packed, lane)
        return packed

    def _interleave(self, rows: list[Array]) -> Array:
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

    def _run(self, model: Array, losses: Array, counts: Array, length: int) -> None:
        engine, rule = self.engine, self.engine.rule
        packed_kernels.packed_steps(
            engine.packed_block, engine.layout.offsets, engine.rows, length, self.policies.line(self.steps), int(rule.greedy),
            int(rule.visits == "actions"), model, losses, counts, self.policies.lines, self.sum_q, self.v, self.d, self.w,
            rule.beta_loss / 2, rule.beta_dynamics / 2, rule.weight, rule.eta,
        )  # fmt: skip
