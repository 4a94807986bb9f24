"""The chain engine: policy chains (Algorithm 1, inner loop) of many contexts, each pair of policy and dynamics once.

Three ideas.

*Lazy visits.* N^k sums the occupancies of all past policies under P^k. A chain keeps one sum for each dynamics and how
many policies it counts; when a step needs it, the policies that are missing are pushed through that dynamics, eight at
a time, from the store of past policies. So an occupancy is computed at most once, and only if a step needs it.

*A store within a byte budget.* When it is full, the sums that may be needed again are brought up to date and the stored
policies are dropped. A dynamics that turns up later all the same makes the chain start anew, this time with a sum for it
and with the whole budget; before such a surprise the store is small.

*Forms by shape.* Small layouts are packed, eight contexts to a vector; larger ones take one context at a time, each on
a thread of its own; the largest use several threads inside a layer. The form depends on the layout alone and every sum
has a fixed order, so neither neighbours nor threads nor budgets change a bit.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from . import reference
from .cmdp import context_key
from .errors import OpoError
from .kernels import chain as kernels
from .kernels import packed as packed_kernels
from .kernels._simd import LANES
from .kernels.batch import BATCH, visit_batch_csr, visit_batch_dense
from .kernels.ingest import pack_lane
from .kernels.weights import count_saturated
from .layers import LayeredMDP
from .layout import Layout, aligned, as_mask
from .operations import Backend, Scratch, check_backend, chunk_of, visit_once
from .rules import ChainRule, opo_rule
from .threads import get_threads, run_all, run_together
from .transitions import DENSE, Transitions

__all__ = ["ChainEngine", "History", "ModelSource", "policy_chain"]

Array = npt.NDArray[Any]

PACKED_MOST = 4096
"""Largest number of transitions of a layout whose chains are packed: eight such models stay in the second-level cache."""
SMALL_STORE = 1 << 18
"""Bytes of past policies that a chain keeps at first: they stay in the cache, where a longer store would be a stream of
writes that nobody reads as long as no new dynamics turns up."""
WORTH_THREADS = 1 << 18
"""Transitions of a chain's steps from which threads gain more than they cost."""
BATCH_BYTES = 1 << 27
"""Most bytes of what many policies at once need, above which past policies go through a dynamics one by one."""
RECENT = 64
"""A dynamics used in so many last steps keeps its visits when the store of policies is emptied."""


class History:
    """The fits of steps k = 0, 1, ... as runs of equal pairs (loss fit, dynamics fit)."""

    def __init__(self) -> None:
        self.runs: list[tuple[Hashable, Hashable]] = []
        self.starts: list[int] = []
        self.length = 0

    def append(self, loss_fit: Hashable, dynamics_fit: Hashable) -> None:
        """Add the fits of the next step."""
        for name, fit in (("losses", loss_fit), ("dynamics", dynamics_fit)):
            try:
                hash(fit)
            except TypeError:
                raise OpoError(f"fit() of the {name} oracle gave a {type(fit).__name__}: something hashable is needed") from None
        if not self.runs or self.runs[-1] != (loss_fit, dynamics_fit):
            self.runs.append((loss_fit, dynamics_fit))
            self.starts.append(self.length)
        self.length += 1

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: int) -> tuple[Hashable, Hashable]:
        return self.runs[self._run(k)]

    def _run(self, k: int) -> int:
        return bisect_right(self.starts, k) - 1

    def stretch(self, k: int, n: int) -> int:
        """Number of steps from k on, before step n, that have the fits of step k."""
        run = self._run(k) + 1
        end = self.starts[run] if run < len(self.starts) else self.length
        return min(end, n) - k

    def dynamics(self, k: int, n: int) -> set[Hashable]:
        """The dynamics fits of steps k..n-1."""
        return {fit for _, fit in self.pairs(k, n)}

    def pairs(self, k: int, n: int) -> list[tuple[Hashable, Hashable]]:
        """The pairs of fits of the runs that steps k..n-1 lie in."""
        return self.runs[self._run(k) : self._run(n - 1) + 1] if k < n else []


class ModelSource(Protocol):
    """Where the engine gets the models of a fit at a context; asked once per distinct fit and context."""

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of the rows, one per allowed pair, read-only float64."""
        ...

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        """The validated transitions."""
        ...


def _lines(count: int, width: int) -> Array:
    return aligned(count * width).reshape(count, width)


@dataclass
class _Visits:
    counts: Array
    counted: int = 0
    """Number of policies that `counts` holds."""


@dataclass
class _Chain:
    """What the two forms share: the stretches of a history, the lazy visits and the store of policies."""

    engine: ChainEngine
    contexts: list[Any]
    steps: int = 0
    planned: int = 0
    """Steps that were run, all contexts together."""
    visits: dict[Hashable, _Visits] = field(default_factory=dict)
    lanes = 1

    def __post_init__(self) -> None:
        width = self.engine.n_rows * self.lanes
        self.width = width
        self.sum_q = aligned(width, zero=True)
        self.store = _lines(4, width)
        self.kept: set[Hashable] = set()
        self.surprised = False
        self.measured, self.held = 0, len(self.contexts)
        self.models: dict[Hashable, Any] = {}
        self.loss_rows: dict[Hashable, Array] = {}
        self.last: Array | None = None
        self.v = aligned(self.engine.layout.n_states * self.lanes, zero=True)
        self._begin()

    def _begin(self) -> None:
        self.steps, self.first = 0, 0
        self.sum_q[:] = 0.0
        self.visits = {fit: _Visits(aligned(self.width, zero=True)) for fit in self.kept}
        self.store[0] = self.engine.start if self.lanes == 1 else np.repeat(self.engine.start, self.lanes)

    @property
    def nbytes(self) -> int:
        """Bytes held, models included."""
        vectors = self.sum_q.nbytes + self.store.nbytes + self.width * 8 * (len(self.visits) + len(self.loss_rows))
        return vectors + sum(self._model_bytes(model) for model in self.models.values())

    def advance(self, history: History, n: int) -> None:
        """Bring the chain to `n` steps."""
        rule = self.engine.rule
        while self.steps < n:
            loss_fit, fit = history[self.steps]
            room = self._room(history, n)
            length = min(history.stretch(self.steps, n), room)
            # E-UC3RL and RM-UCDD keep one sum, which all models share.
            key = fit if rule.visits == "latest" else None
            entry = self._caught_up(key, fit, history)
            if entry is None:
                self.kept.add(key)
                self.surprised = True
                self._begin()
                continue
            self._run(self._model(fit), self._losses(loss_fit), entry.counts, length)
            self.steps += length
            self.planned += length * len(self.contexts)
            entry.counted = self.steps - 1
            self.last = entry.counts
            self._forget(history, n)

    def prepare(self, history: History, n: int) -> None:
        """Build the models of the next steps in this thread: two threads of Python only wait for each other."""
        for loss_fit, fit in history.pairs(self.steps, n)[:RECENT]:
            self._losses(loss_fit)
            self._model(fit)

    def _caught_up(self, key: Hashable, fit: Hashable, history: History) -> _Visits | None:
        """The visits under `fit` of all policies before this step's, or None where dropped policies are missing."""
        entry = self.visits.get(key)
        if entry is None:
            entry = _Visits(aligned(self.width, zero=True))
            if self.first > 0:
                return None
            self.visits[key] = entry
        if entry.counted < self.first:
            return None
        self._catch_up(entry, fit, history)
        return entry

    def _catch_up(self, entry: _Visits, fit: Hashable, history: History) -> None:
        rule = self.engine.rule.visits
        while entry.counted < self.steps:
            count = self.steps - entry.counted
            k = entry.counted - self.first
            if rule == "actions":
                for line in range(k, k + count):
                    entry.counts += self.store[line]
            else:
                if rule == "contemporaneous":
                    fit = history[entry.counted][1]
                    count = min(count, history.stretch(entry.counted, self.steps))
                self._visit(self._model(fit), entry.counts, k, count)
            entry.counted += count

    def _room(self, history: History, n: int) -> int:
        """Steps for which the store has room; it grows within the budget, else past policies are dropped."""
        used = self.steps - self.first + 1
        if used + 1 > len(self.store):
            many = self.surprised or len(history.dynamics(self.steps, n)) > LANES
            budget = self.engine.store_bytes if many else min(SMALL_STORE, self.engine.store_bytes)
            most = max(2, budget // (8 * self.width))
            size = min(most, max(2 * len(self.store), min(used + n - self.steps, 1024)))
            if size > len(self.store):
                grown = _lines(size, self.width)
                grown[:used] = self.store[:used]
                self.store = grown
            else:
                self._drop_policies(history, n)
                used = 1
        return len(self.store) - used

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
            if fit not in self.visits and self.first == 0:
                self.visits[fit] = _Visits(aligned(self.width, zero=True))
            entry = self.visits.get(fit)
            if entry is not None and entry.counted >= self.first:
                self._catch_up(entry, fit, history)
        self.store[0] = self.store[self.steps - self.first]
        self.first = self.steps

    def _forget(self, history: History, n: int) -> None:
        """Models that no step nearby uses are asked for again if they return."""
        if len(self.models) > 2 * RECENT:
            recent = history.dynamics(max(0, self.steps - RECENT), min(n, self.steps + RECENT))
            self.models = {fit: model for fit, model in self.models.items() if fit in recent}
            if self.engine.rule.visits == "latest":
                self.visits = {fit: entry for fit, entry in self.visits.items() if fit in recent or fit in self.kept}
        if len(self.loss_rows) > 2 * RECENT:
            self.loss_rows.clear()

    def _model(self, fit: Hashable) -> Any:
        if fit not in self.models:
            self.models[fit] = self._prepare([self.engine.source.transitions(fit, context) for context in self.contexts])
        return self.models[fit]

    def _losses(self, fit: Hashable) -> Array:
        if fit not in self.loss_rows:
            self.loss_rows[fit] = self._interleave([self.engine.source.losses(fit, context) for context in self.contexts])
        return self.loss_rows[fit]

    def policy(self, lane: int) -> Array:
        """The current policy of one context, one number per row."""
        line: Array = self.store[self.steps - self.first - (1 if self.engine.rule.greedy and self.steps else 0)]
        return line[lane :: self.lanes]

    def saturation(self, lane: int) -> float:
        """Share of the rows whose bonus was at its cap in the last step; 1 before the first. A term of beta 0 is not looked at."""
        if self.last is None:
            return 1.0
        engine, rule = self.engine, self.engine.rule
        count = count_saturated(self.last, lane, self.lanes, engine.layout.offsets, engine.rows, rule.half_loss, rule.half_dynamics)
        return count / engine.n_rows  # type: ignore[no-any-return]

    def value(self, lane: int) -> float:
        """The optimistic value of the start state in the last step."""
        return float(self.v[lane])

    def state(self) -> dict[str, Any]:
        """All that cannot be asked for again: sums, visits and stored policies."""
        lines = self.steps - self.first + (0 if self.engine.rule.greedy else 1)
        return {
            "contexts": list(self.contexts),
            "steps": self.steps,
            "first": self.first,
            "planned": self.planned,
            "kept": list(self.kept),
            "surprised": self.surprised,
            "sum_q": self.sum_q.copy(),
            "store": self.store[:lines].copy(),
            "fits": list(self.visits),
            "counted": [entry.counted for entry in self.visits.values()],
            "visits": [entry.counts.copy() for entry in self.visits.values()],
            "last": None if self.last is None else self.last.copy(),
            "v": self.v.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state` of a chain of the same engine and contexts."""
        numbers = {name: np.array(state[name], np.float64) for name in ("store", "sum_q", "v")}
        store, visits = numbers["store"], [np.array(counts, np.float64) for counts in state["visits"]]
        last = None if state["last"] is None else np.array(state["last"], np.float64)
        self.steps, self.first, self.planned = int(state["steps"]), int(state["first"]), int(state["planned"])
        counted = [int(count) for count in state["counted"]]
        lines = self.steps - self.first + (0 if self.engine.rule.greedy else 1)
        vectors = [numbers["sum_q"], *visits, *([] if last is None else [last])]
        fits = (
            0 <= self.first <= self.steps
            and store.shape == (lines, self.width)
            and numbers["v"].shape == self.v.shape
            and all(vector.shape == (self.width,) for vector in vectors)
            and all(0 <= count <= self.steps for count in counted)
            and len(counted) == len(visits) == len(state["fits"])
        )
        if not fits:
            raise OpoError(
                f"chains hold arrays of other sizes than this agent's ({self.width} numbers for each policy), or steps that do not fit them"
            )
        self.kept, self.surprised = set(state["kept"]), bool(state["surprised"])
        self.sum_q, self.v = numbers["sum_q"], numbers["v"]
        self.store = _lines(max(4, len(store) + 1), self.width)
        self.store[: len(store)] = store
        self.visits = {fit: _Visits(counts, count) for fit, counts, count in zip(state["fits"], visits, counted, strict=True)}
        self.last = last

    # What the two forms do differently.

    def _prepare(self, transitions: list[Transitions]) -> Any:
        raise NotImplementedError

    def _interleave(self, rows: list[Array]) -> Array:
        raise NotImplementedError

    def _model_bytes(self, model: Any) -> int:
        raise NotImplementedError

    def _visit(self, model: Any, counts: Array, k: int, count: int) -> None:
        raise NotImplementedError

    def _run(self, model: Any, losses: Array, counts: Array, length: int) -> None:
        raise NotImplementedError


class _Single(_Chain):
    """One context."""

    def _prepare(self, transitions: list[Transitions]) -> Transitions:
        return transitions[0]

    def _interleave(self, rows: list[Array]) -> Array:
        return rows[0]

    def _model_bytes(self, model: Transitions) -> int:
        return model.nbytes

    def _visit(self, model: Transitions, counts: Array, k: int, count: int) -> None:
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
                visit_once(model, self.store, i, counts, scratch)
            return
        d, w, private = map(aligned, sizes)
        sums = aligned(1024 * threads if lanes == BATCH else 0)
        for i in range(k, k + count, lanes * copies):
            n = min(lanes * copies, k + count - i)
            work = n * model.n_transitions
            if dense:
                run_together(visit_batch_dense, model.arguments, (int(shared), lanes, self.store, i, n, d, w, counts, sums), threads, work)
            else:
                run_together(visit_batch_csr, model.arguments, (parts, self.store, i, n, d, w, counts, private), threads, work)

    def _run(self, model: Transitions, losses: Array, counts: Array, length: int) -> None:
        rule, scratch = self.engine.rule, Scratch(model)
        chunk = chunk_of(model)
        most = min(get_threads(), model.threads)
        lines = np.empty((2 * most, min(chunk, max(self.engine.layout.layer_sizes)) * self.engine.layout.n_actions))
        after = (
            model.parts, length, self.steps - self.first, chunk, model.width, int(rule.greedy), int(rule.visits == "actions"), losses,
            counts, self.store, self.sum_q, self.v, scratch.d, scratch.w, scratch.private, rule.half_loss,
            rule.half_dynamics, rule.weight, rule.eta, lines,
        )  # fmt: skip
        run_together(kernels.chain_steps, model.arguments, after, most, length * model.n_transitions)


class _Pack(_Chain):
    """Up to eight contexts of a small layout in lockstep."""

    lanes = LANES

    def __post_init__(self) -> None:
        super().__post_init__()
        layout = self.engine.layout
        self.d = aligned(layout.n_states * self.lanes)
        self.w = aligned(max(self.engine.layer_rows) * self.lanes)

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
            engine.packed_block, engine.layout.offsets, engine.rows, model, self.store, k, count, self.d, self.w, counts
        )

    def _run(self, model: Array, losses: Array, counts: Array, length: int) -> None:
        engine, rule = self.engine, self.engine.rule
        packed_kernels.packed_steps(
            engine.packed_block, engine.layout.offsets, engine.rows, length, self.steps - self.first, int(rule.greedy),
            int(rule.visits == "actions"), model, losses, counts, self.store, self.sum_q, self.v, self.d, self.w,
            rule.half_loss, rule.half_dynamics, rule.weight, rule.eta,
        )  # fmt: skip


_ENGINES: weakref.WeakSet[ChainEngine] = weakref.WeakSet()


def _after_fork() -> None:
    for engine in list(_ENGINES):
        engine._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class ChainEngine:
    """Policy chains of all contexts of one agent.

    Parameters
    ----------
    layout : Layout
    action_mask : ndarray of bool (n_states, A) or None
    rule : ChainRule
    source : ModelSource
    memory : int
        Byte budget of the chains kept for contexts that return, least recently used first to go. Half of it is the
        most that the stored policies of one chain take.

    Attributes
    ----------
    planned : int
        Steps that were run so far, those of all contexts together.
    """

    def __init__(self, layout: Layout, action_mask: Array | None, rule: ChainRule, source: ModelSource, memory: int) -> None:
        self.layout, self.rule, self.source, self.memory = layout, rule, source, memory
        self.action_mask = as_mask(layout, action_mask)
        self.store_bytes = memory // 2
        allowed = np.ones(layout.shape, bool) if self.action_mask is None else self.action_mask
        counts = allowed.sum(axis=1)
        self.rows = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self.n_rows = int(self.rows[-1])
        self.start = np.repeat(1.0 / counts, counts)
        self.layer_rows = np.diff(self.rows[layout.offsets])
        sizes = [int(r) * n for r, n in zip(self.layer_rows[:-1], layout.layer_sizes[1:], strict=True)]
        self.packed_size = sum(sizes)
        self.packed = self.packed_size <= PACKED_MOST
        self.packed_block = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._chains: OrderedDict[Hashable, tuple[_Chain, int]] = OrderedDict()
        self.planned = 0
        self._nbytes = 0
        self._lock = threading.RLock()
        _ENGINES.add(self)

    @property
    def lookahead(self) -> int:
        """How many contexts one call of `prefetch` usefully takes: a pack, or a chain, for each thread."""
        return get_threads() * (LANES if self.packed else 1)

    def prefetch(self, contexts: Sequence[Any], history: History, n: int) -> None:
        """Advance the chains of `contexts` to `n` steps side by side; nothing where the first is ready already."""
        with self._lock:
            self._advance_ahead(contexts, history, n)

    def _advance_ahead(self, contexts: Sequence[Any], history: History, n: int) -> None:
        keys = {context_key(context): context for context in contexts}
        if not keys or next(iter(keys)) in self._chains:
            return
        missing = [(key, context) for key, context in keys.items() if key not in self._chains]
        lanes = LANES if self.packed else 1
        chains = [self._create(missing[i : i + lanes]) for i in range(0, len(missing), lanes)]
        try:
            if n * self.packed_size * lanes < WORTH_THREADS:
                for chain in chains:
                    chain.advance(history, n)
            else:
                for chain in chains:
                    chain.prepare(history, n)
                run_all(_Chain.advance, [(chain, history, n) for chain in chains])
        except BaseException as error:
            for chain in chains:
                self._discard(chain)
            if not isinstance(error, Exception):
                raise
            # A hint fails silently: the context at fault raises when it is asked for, in its own episode.
            return
        self.planned += sum(chain.planned for chain in chains)
        self._shrink(chains)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())
        _ENGINES.add(self)

    def _after_fork(self) -> None:
        """A lock of its own for a child. Chains that another thread was advancing stay behind: they are made anew, the same."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._chains, self._nbytes = OrderedDict(), 0
        self._lock = threading.RLock()

    def state(self) -> dict[str, Any]:
        """All chains, so that `restore` need not build them again: arrays and plain values, contexts and fits as they are."""
        chains = list({id(chain): chain for chain, _ in self._chains.values()}.values())
        position = {id(chain): i for i, chain in enumerate(chains)}
        return {
            "chains": [chain.state() for chain in chains],
            "order": [(position[id(chain)], lane) for chain, lane in self._chains.values()],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over the chains of another engine of the same rule, layout and history."""
        form = _Pack if self.packed else _Single
        try:
            chains = []
            for one in state["chains"]:
                chains.append(form(self, list(one["contexts"])))
                chains[-1].restore(one)
            order = [(int(i), int(lane)) for i, lane in state["order"]]
            if any(not (0 <= i < len(chains) and 0 <= lane < len(chains[i].contexts)) for i, lane in order):
                raise OpoError("chains: order names a chain that is not there")
            self._chains = OrderedDict((context_key(chains[i].contexts[lane]), (chains[i], lane)) for i, lane in order)
        except OpoError:
            raise
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise OpoError(f"chains are not what an agent's chains() gave ({type(error).__name__}: {error})") from None
        self._nbytes = 0
        for i, chain in enumerate(chains):
            chain.held = sum(position == i for position, _ in order)
            chain.measured = chain.nbytes
            self._nbytes += chain.measured

    def _create(self, members: Sequence[tuple[Hashable, Any]]) -> _Chain:
        form = _Pack if self.packed else _Single
        chain = form(self, [context for _, context in members])
        for lane, (key, _) in enumerate(members):
            self._chains[key] = (chain, lane)
        return chain

    def chain(self, context: Any, history: History, n: int) -> tuple[_Chain, int]:
        """The chain of `context` at `n` steps, and its lane."""
        with self._lock:
            return self._advanced(context, history, n)

    def _advanced(self, context: Any, history: History, n: int) -> tuple[_Chain, int]:
        key = context_key(context)
        if key not in self._chains:
            self._create([(key, context)])
        self._chains.move_to_end(key)
        chain, lane = self._chains[key]
        before = chain.planned
        try:
            chain.advance(history, n)
        except BaseException as error:
            # Half a step may have been done.
            self._discard(chain)
            if len(chain.contexts) == 1 or not isinstance(error, Exception):
                raise
            # The fault may be a neighbour's.
            chain, lane, before = self._create([(key, context)]), 0, 0
            try:
                chain.advance(history, n)
            except BaseException:
                self._discard(chain)
                raise
        self.planned += chain.planned - before
        self._shrink([chain])
        return chain, lane

    def _discard(self, chain: _Chain) -> None:
        for key in [key for key, (held, _) in self._chains.items() if held is chain]:
            del self._chains[key]
        self._nbytes -= chain.measured

    def _shrink(self, keep: Sequence[_Chain]) -> None:
        """Count what the chains in use grew by, and drop the least recently used beyond the budget."""
        for chain in keep:
            size = chain.nbytes
            self._nbytes += size - chain.measured
            chain.measured = size
        if self._nbytes <= self.memory:
            return
        kept = {id(chain) for chain in keep}
        for key, (chain, _) in list(self._chains.items()):
            if id(chain) in kept:
                continue
            del self._chains[key]
            chain.held -= 1
            if not chain.held:
                self._nbytes -= chain.measured
                if self._nbytes <= self.memory:
                    return


def policy_chain(
    history: Sequence[LayeredMDP],
    *,
    eta: float,
    beta_loss: float,
    beta_dynamics: float,
    backend: Backend = "numba",
) -> Array:
    """pi^{t+1} at one context from the models of steps k = 1..t (Algorithm 1, inner loop).

    Parameters
    ----------
    history : sequence of LayeredMDP
        The models f^k, P^k evaluated at the context, all of one layout and mask. Dynamics are the same where they are
        the same transitions object (`LayeredMDP.with_losses`), losses where they are the same array object.
    eta, beta_loss, beta_dynamics : float
        Learning rate and exploration parameters, at least 0.

    Returns
    -------
    ndarray, shape (n_states, A)
        The uniform policy's successor after t steps; masked actions have probability exactly 0.
    """
    check_backend(backend)
    if not isinstance(history, Iterable):
        raise OpoError(f"history is a {type(history).__name__}: a sequence of opo_fast.LayeredMDP is needed")
    models = list(history)
    if not models:
        raise OpoError("history is empty: at least one model is needed (before the first, the policy is uniform)")
    for k, model in enumerate(models):
        if not isinstance(model, LayeredMDP):
            raise OpoError(f"history[{k}] is a {type(model).__name__}: an opo_fast.LayeredMDP is needed")
        same_mask = model.action_mask is models[0].action_mask or np.array_equal(_mask_of(model), _mask_of(models[0]))
        if model.layout != models[0].layout or not same_mask:
            raise OpoError(f"history[{k}] has another layout or action mask than history[0]: {model!r}, {models[0]!r}")
    rule = opo_rule(models[0].layout, eta, beta_loss, beta_dynamics)
    if backend == "numpy":
        return reference.policy_chain(models, eta=rule.eta, beta_loss=2 * rule.half_loss, beta_dynamics=2 * float(rule.half_dynamics[0]))
    fits = History()
    for model in models:
        fits.append(id(model.losses), id(model.transitions))
    engine = ChainEngine(models[0].layout, models[0].action_mask, rule, _Given(models), memory=1 << 31)
    chain, lane = engine.chain(None, fits, len(models))
    return models[0].transitions.scatter(chain.policy(lane).copy())


def _mask_of(model: LayeredMDP) -> Array:
    return np.ones(model.layout.shape, bool) if model.action_mask is None else model.action_mask


class _Given:
    """The models of `policy_chain`, found by identity."""

    def __init__(self, models: Sequence[LayeredMDP]) -> None:
        self._losses = {id(model.losses): model for model in models}
        self._transitions = {id(model.transitions): model.transitions for model in models}

    def losses(self, fit: Hashable, context: Any) -> Array:
        return self._losses[fit].row_losses  # type: ignore[index]

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        return self._transitions[fit]  # type: ignore[index]
