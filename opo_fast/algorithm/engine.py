"""The chain engine: policy chains (Algorithm 1, inner loop) of all contexts of an agent, kept within a byte budget."""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, shown
from .._support.fields import Fields
from .._support.threads import get_threads, run_all
from ..kernels._simd import LANES
from ..model.contextual import context_key
from ..model.layout import Layout, as_mask, row_starts
from ..model.transitions import Transitions
from .chain import Chain
from .forms import OneLaneChain, PackedChain, SingleChain
from .history import History
from .rules import ChainRule

__all__ = ["ChainEngine", "ModelSource"]

Array = npt.NDArray[Any]
Advance = Callable[[Chain, History, int], None]

PACKED_MOST = 4096
"""Layouts with at most so many transitions have packed chains: eight such models fit into the second-level cache."""
WORTH_THREADS = 1 << 18
"""Transitions in the steps of a chain that make threads worth their cost."""


class ModelSource(Protocol):
    """Where the engine gets the models of a fit at a context; called once per distinct fit and context."""

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of the rows (allowed state-action pairs), read-only float64."""
        ...

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        """The validated transitions."""
        ...

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least losses of the rows in a version of the plausible losses, read-only float64 (self-tuning chains)."""
        ...

    def candidates(self, version: Hashable) -> tuple[Hashable, ...] | None:
        """The fits in a version of the plausible dynamics, or None if they cannot be listed (self-tuning chains)."""
        ...

    def radius(self, version: Hashable, context: Any) -> Array:
        """Total variation radius of each row in a version that cannot be listed, read-only float64 (self-tuning chains)."""
        ...

    # A source of finite classes may also have ``candidates_at(context)`` and ``loss_candidates(version)``; see `packed_classes`. If it
    # caches what it returns, ``cached_bytes`` says how many bytes that takes.


def _as_it_is(chain: Chain) -> None:
    """Tell a new chain nothing."""


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
        Byte budget of the chains, which are kept for contexts that return; the least recently used are dropped first. The stored
        policies of one chain take at most half of it. What the source caches counts, too, but leaves the chains half of it.
    alone : bool
        Whether there is one context alone; under `opo_rule` only.

    Attributes
    ----------
    planned : int
        Number of steps run so far, summed over all contexts.
    lock : RLock
        Held while chains advance.
    """

    def __init__(
        self, layout: Layout, action_mask: Array | None, rule: ChainRule, source: ModelSource, memory: int, *, alone: bool = False
    ) -> None:
        self.layout, self.rule, self.source, self.memory, self.alone = layout, rule, source, memory, alone
        self.action_mask = as_mask(layout, action_mask)
        self.store_bytes = memory // 2
        allowed = np.ones(layout.shape, bool) if self.action_mask is None else self.action_mask
        counts = allowed.sum(axis=1)
        self.rows = row_starts(counts)
        self.n_rows = int(self.rows[-1])
        self.start = np.repeat(1.0 / counts, counts)
        self.pack_start = np.repeat(self.start, LANES)
        self.layer_rows = np.diff(self.rows[layout.offsets])
        sizes = [int(r) * n for r, n in zip(self.layer_rows[:-1], layout.layer_sizes[1:], strict=True)]
        self.most_rows = int(self.layer_rows.max())
        self.packed_size = sum(sizes)
        self.packed = self.packed_size <= PACKED_MOST
        self.packed_block = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        lengths = np.repeat(np.array([*layout.layer_sizes[1:], 0], np.int64), self.layer_rows)[: self.rows[layout.offsets[-2]]]
        self.row_starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)[:-1]
        self._chains: OrderedDict[Hashable, tuple[Chain, int]] = OrderedDict()
        self.planned = 0
        self._nbytes = 0
        self.lock = threading.RLock()
        _ENGINES.add(self)

    @property
    def lookahead(self) -> int:
        """How many contexts one call of `prefetch` usefully takes: a pack, or a chain, for each thread."""
        return get_threads() * self.together

    def prefetch(
        self,
        contexts: Sequence[Any],
        history: History,
        n: int,
        advance: Advance = Chain.advance,
        begin: Callable[[Chain], None] = _as_it_is,
    ) -> None:
        """Advance the chains of `contexts` to `n` steps in parallel, unless there is already a chain of the first context.

        `advance` may be a faster equivalent of `Chain.advance`; `begin` is called with each new chain, and may tell it what it would ask.
        """
        with self.lock:
            self._advance_ahead(contexts, history, n, advance, begin)

    def _advance_ahead(self, contexts: Sequence[Any], history: History, n: int, advance: Advance, begin: Callable[[Chain], None]) -> None:
        keys = {context_key(context): context for context in contexts}
        if not keys or next(iter(keys)) in self._chains:
            return
        missing = [(key, context) for key, context in keys.items() if key not in self._chains]
        lanes = self.together
        chains = [self._create(missing[i : i + lanes]) for i in range(0, len(missing), lanes)]
        try:
            for chain in chains:
                begin(chain)
            if len(chains) == 1 or n * self.packed_size * lanes < WORTH_THREADS or get_threads() == 1:
                for chain in chains:
                    advance(chain, history, n)
            else:
                for chain in chains:
                    chain.prepare(history, n)
                run_all(advance, [(chain, history, n) for chain in chains])
        except BaseException as error:
            for chain in chains:
                self.discard(chain)
            if not isinstance(error, Exception):
                raise
            # Prefetching fails silently: the error is raised again in the episode of the context that causes it.
            return
        self.planned += sum(chain.planned for chain in chains)
        self._shrink(chains)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, lock=threading.RLock())
        _ENGINES.add(self)

    def _after_fork(self) -> None:
        """Give a child process a new lock. If another thread was advancing chains, they are dropped, and recomputed when needed."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
        else:
            self._chains, self._nbytes = OrderedDict(), 0
        self.lock = threading.RLock()

    def state(self) -> dict[str, Any]:
        """All chains, for `restore`: arrays and plain values; contexts and fits are stored unchanged."""
        chains = list({id(chain): chain for chain, _ in self._chains.values()}.values())
        position = {id(chain): i for i, chain in enumerate(chains)}
        return {
            "chains": [chain.state() for chain in chains],
            "order": [(position[id(chain)], lane) for chain, lane in self._chains.values()],
        }

    def restore(self, state: dict[str, Any], history: History, n: int) -> None:
        """Take over the chains of another engine with the same rule, layout and history, which have at most `n` steps."""
        fields = Fields(state, "what an agent's chains() gave", "chains")
        lanes = self.together
        chains = []
        for i, one in enumerate(fields.listed("chains")):
            inner = Fields(one, fields.source, f"chains['chains'][{i}]")
            contexts = inner.listed("contexts")
            inner.check("contexts", 1 <= len(contexts) <= lanes, f"holds {len(contexts)} contexts: 1 to {lanes} are needed")
            chains.append(self.new_chain(contexts))
            chains[-1].restore(inner, history, n)
        held: OrderedDict[Hashable, tuple[Chain, int]] = OrderedDict()
        order = fields.listed("order")
        for pair in order:
            fields.check("order", isinstance(pair, (list, tuple)) and len(pair) == 2, f"holds {shown(pair)}: chain and lane are needed")
            chain = chains[as_integer(pair[0], fields.place("order"), least=0, most=len(chains) - 1)]
            lane = as_integer(pair[1], fields.place("order"), least=0, most=len(chain.contexts) - 1)
            held[context_key(chain.contexts[lane])] = chain, lane
        fields.check("order", len(held) == len(order), "names a context twice")
        self._chains = held
        self._nbytes = 0
        for chain in chains:
            chain.held = sum(kept is chain for kept, _ in held.values())
            chain.measured = chain.nbytes
            self._nbytes += chain.measured

    @property
    def together(self) -> int:
        """Number of contexts of a chain."""
        return LANES if self.packed and not self.alone else 1

    def new_chain(self, contexts: Sequence[Any]) -> Chain:
        """A new chain of at most `together` contexts, which the engine does not keep."""
        form = SingleChain if not self.packed else OneLaneChain if self.alone else PackedChain
        return form(self, list(contexts))

    def _create(self, members: Sequence[tuple[Hashable, Any]]) -> Chain:
        chain = self.new_chain([context for _, context in members])
        for lane, (key, _) in enumerate(members):
            self._chains[key] = (chain, lane)
        return chain

    def held(self, key: Hashable) -> tuple[Chain, int] | None:
        """The chain of a context, which becomes the most recently used, and its lane; None if there is none."""
        found = self._chains.get(key)
        if found is not None:
            self._chains.move_to_end(key)
        return found

    def chain(self, context: Any, history: History, n: int) -> tuple[Chain, int]:
        """The chain of `context`, advanced to `n` steps, and its lane."""
        with self.lock:
            return self._advanced(context, history, n)

    def _advanced(self, context: Any, history: History, n: int) -> tuple[Chain, int]:
        key = context_key(context)
        if key not in self._chains:
            self._create([(key, context)])
        self._chains.move_to_end(key)
        chain, lane = self._chains[key]
        if chain.steps == n > 0:
            return chain, lane
        before = chain.planned
        try:
            chain.advance(history, n)
        except BaseException as error:
            # The last step may be half done.
            self.discard(chain)
            if len(chain.contexts) == 1 or not isinstance(error, Exception):
                raise
            # Another context of the pack may have caused the error: try again with this one alone.
            chain, lane, before = self._create([(key, context)]), 0, 0
            try:
                chain.advance(history, n)
            except BaseException:
                self.discard(chain)
                raise
        self.planned += chain.planned - before
        self._shrink([chain])
        return chain, lane

    def discard(self, chain: Chain) -> None:
        """Forget a chain."""
        for key in [key for key, (held, _) in self._chains.items() if held is chain]:
            del self._chains[key]
        self._nbytes -= chain.measured

    def _shrink(self, keep: Sequence[Chain]) -> None:
        """Count by how much the chains in use grew, and drop the least recently used ones beyond the budget."""
        for chain in keep:
            size = chain.nbytes
            self._nbytes += size - chain.measured
            chain.measured = size
        budget = self.store_bytes
        if self._nbytes > budget:
            # The source is asked only where its answer matters.
            budget = max(budget, self.memory - getattr(self.source, "cached_bytes", 0))
        if self._nbytes <= budget:
            return
        kept = {id(chain) for chain in keep}
        spared = []
        while self._nbytes > budget and self._chains:
            key, (chain, lane) = self._chains.popitem(last=False)
            if id(chain) in kept:
                spared.append((key, (chain, lane)))
                continue
            chain.held -= 1
            if not chain.held:
                self._nbytes -= chain.measured
        for key, found in reversed(spared):
            self._chains[key] = found
            self._chains.move_to_end(key, last=False)
