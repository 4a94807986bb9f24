"""The chain engine: policy chains (Algorithm 1, inner loop) of all contexts of an agent, kept within a byte budget."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .._support.threads import get_threads, run_all
from ..errors import OpoError
from ..kernels._simd import LANES
from ..model.contextual import context_key
from ..model.layered import LayeredMDP
from ..model.layout import Layout, as_mask
from ..model.operations import Backend, check_backend
from ..model.transitions import Transitions
from . import algorithm1
from .chain import Chain
from .forms import PackedChain, SingleChain
from .history import Fits, History
from .rules import ChainRule, opo_rule

__all__ = ["ChainEngine", "ModelSource", "policy_chain"]

Array = npt.NDArray[Any]

PACKED_MOST = 4096
"""Largest number of transitions of a layout whose chains are packed: eight such models stay in the second-level cache."""
WORTH_THREADS = 1 << 18
"""Transitions of a chain's steps from which threads gain more than they cost."""


class ModelSource(Protocol):
    """Where the engine gets the models of a fit at a context; asked once per distinct fit and context."""

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of the rows, one per allowed pair, read-only float64."""
        ...

    def transitions(self, fit: Hashable, context: Any) -> Transitions:
        """The validated transitions."""
        ...

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least losses of the rows over a version of the plausible losses, read-only float64 (self-tuning chains)."""
        ...

    def candidates(self, version: Hashable) -> tuple[Hashable, ...] | None:
        """The fits in a version of the plausible dynamics, or None where they cannot be listed (self-tuning chains)."""
        ...

    def radius(self, version: Hashable, context: Any) -> Array:
        """Total variation of the rows in a version that cannot be listed, read-only float64 (self-tuning chains)."""
        ...


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
        self._chains: OrderedDict[Hashable, tuple[Chain, int]] = OrderedDict()
        self.planned = 0
        self._nbytes = 0
        self._lock = threading.RLock()

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
                run_all(Chain.advance, [(chain, history, n) for chain in chains])
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
        form = PackedChain if self.packed else SingleChain
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

    def _create(self, members: Sequence[tuple[Hashable, Any]]) -> Chain:
        form = PackedChain if self.packed else SingleChain
        chain = form(self, [context for _, context in members])
        for lane, (key, _) in enumerate(members):
            self._chains[key] = (chain, lane)
        return chain

    def chain(self, context: Any, history: History, n: int) -> tuple[Chain, int]:
        """The chain of `context` at `n` steps, and its lane."""
        with self._lock:
            return self._advanced(context, history, n)

    def _advanced(self, context: Any, history: History, n: int) -> tuple[Chain, int]:
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

    def _discard(self, chain: Chain) -> None:
        for key in [key for key, (held, _) in self._chains.items() if held is chain]:
            del self._chains[key]
        self._nbytes -= chain.measured

    def _shrink(self, keep: Sequence[Chain]) -> None:
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
        return algorithm1.policy_chain(models, eta=rule.eta, beta_loss=rule.beta_loss, beta_dynamics=float(rule.beta_dynamics[0]))
    fits = History()
    for model in models:
        fits.append(Fits(id(model.losses), id(model.transitions)))
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

    def lower(self, version: Hashable, context: Any) -> Array:
        raise NotImplementedError

    def candidates(self, version: Hashable) -> tuple[Hashable, ...] | None:
        raise NotImplementedError

    def radius(self, version: Hashable, context: Any) -> Array:
        raise NotImplementedError
