"""Large sparse models, written directly into their final arrays: stock of several items, and a network of queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import MANY, as_array, as_integer, as_items, as_number, frozen
from .._support.threads import get_threads, run_all
from ..errors import OpoError
from ..kernels import generate as kernels
from ..model.layout import Layout
from ..model.transitions import Transitions
from .environment import Environment
from .rewards import RewardMap

__all__ = ["inventory", "queue_network"]

Array = npt.NDArray[Any]


class _Regimes:
    """The models of a few regimes, each built when it is first needed."""

    costs_differ = True

    def __init__(self, layout: Layout, start: int) -> None:
        self.layout, self.start = layout, start
        self._transitions: dict[int, Transitions] = {}
        self._losses: dict[int, Array] = {}

    def transitions(self, regime: int) -> Transitions:
        if regime not in self._transitions:
            self._transitions[regime] = self._build(regime)
        return self._transitions[regime]

    def losses(self, regime: int) -> Array:
        if regime not in self._losses:
            cost = self.costs(regime)
            n, layout = cost.shape[0], self.layout
            full = np.empty(layout.shape)
            full[0] = cost[self.start]
            for h in range(1, layout.horizon):
                full[layout.layer(h)] = cost
            assert layout.horizon == 1 or n == layout.layer_sizes[1]
            self._losses[regime] = frozen(full)
        return self._losses[regime]

    def costs(self, regime: int) -> Array:
        """Losses (S, A) of one step."""
        raise NotImplementedError

    def count(self, regime: int, states: Array, counts: Array) -> None:
        """Number of next states of each pair of `states`."""
        raise NotImplementedError

    def fill(self, regime: int, states: Array, pointer: Array, data: Array, indices: Array) -> None:
        """Write the rows of `states`."""
        raise NotImplementedError

    def _build(self, regime: int) -> Transitions:
        layout = self.layout
        a, horizon = layout.n_actions, layout.horizon
        if horizon == 1:
            return Transitions(layout, [])
        n = layout.layer_sizes[1]
        groups = [np.array([self.start])] + ([np.arange(n)] if horizon > 2 else [])
        sizes = [group.size * a for group in groups]
        indptr = np.zeros(sum(sizes) + len(sizes), np.int64)
        begin = total = 0
        for group, size in zip(groups, sizes, strict=True):
            pointer = indptr[begin : begin + size + 1]
            run_all(self.count, [(regime, group[lo:hi], pointer[1 + lo * a : 1 + hi * a]) for lo, hi in _shares(group.size)])
            pointer[0] = total
            np.cumsum(pointer, out=pointer)
            total, begin = int(pointer[-1]), begin + size + 1
        data, indices = np.empty(total), np.empty(total, np.uint32)
        begin = 0
        for group, size in zip(groups, sizes, strict=True):
            pointer = indptr[begin : begin + size + 1]
            run_all(self.fill, [(regime, group[lo:hi], pointer[lo * a : hi * a + 1], data, indices) for lo, hi in _shares(group.size)])
            begin += size + 1
        block = np.full(horizon, a + 1, np.int64)
        block[0] = 0
        return Transitions._from_own(layout, data, indptr, indices, block)


def _shares(n: int) -> list[tuple[int, int]]:
    parts = min(get_threads(), n)
    return [(n * i // parts, n * (i + 1) // parts) for i in range(parts)]


class _Assumes:
    """A candidate that maps each context to a regime."""

    def __init__(self, regimes: _Regimes, kind: str, regime_of: Sequence[int], name: str) -> None:
        self.regimes, self.kind, self.regime_of, self.name = regimes, kind, tuple(regime_of), name

    def __call__(self, context: Any) -> Any:
        return getattr(self.regimes, self.kind)(self.regime_of[as_integer(context, "context", least=0, most=len(self.regime_of) - 1)])


class _Free:
    """The loss candidate under which every step costs nothing."""

    name = "nothing costs"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, context: Any) -> Array:
        return np.zeros(self.layout.shape)


def _environment(regimes: _Regimes, labels: list[str], name: str, scale: RewardMap, source: str) -> Environment:
    n = len(labels)
    guesses = [(f"always {label}", [j] * n) for j, label in enumerate(labels)] if n > 1 else []
    guesses += [("like the next regime", [(c + 1) % n for c in range(n)])] if n > 2 else []
    truth = (len(guesses) + 1) // 2
    guesses.insert(truth, ("truth", list(range(n))))
    losses: list[Any] = [_Free(regimes.layout)]
    own = guesses if regimes.costs_differ else [guesses[truth]]
    losses += [_Assumes(regimes, "losses", regime_of, title) for title, regime_of in own]
    return Environment(
        regimes.layout,
        losses,
        [_Assumes(regimes, "transitions", regime_of, title) for title, regime_of in guesses],
        true_loss=1 + own.index(guesses[truth]),
        true_dynamics=truth,
        contexts=range(n),
        labels=labels,
        reward_map=scale,
        name=name,
        source=source,
    )


class _Inventory(_Regimes):
    def __init__(self, horizon: int, items: int, capacity: int, batch: int, demands: list[float], most: int, prices: tuple[float, ...]):
        n = (capacity + 1) ** items
        super().__init__(Layout([1] + [n] * (horizon - 1), items + 1), n - 1)
        self.n, self.items, self.capacity, self.most = n, items, capacity, most
        self.levels = np.full(items, capacity + 1, np.int64)
        self.orders = np.zeros((items + 1, items), np.int64)
        self.orders[np.arange(1, items + 1), np.arange(items)] = batch
        self.demand = [np.tile(_binomial(most, p), (items, 1)) for p in demands]
        self.excess = [np.ascontiguousarray(d[:, ::-1].cumsum(axis=1)[:, ::-1]) for d in self.demand]
        for excess in self.excess:
            excess[:, 0] = 1.0
        self.holding, self.shortage, self.ordering = prices
        self.scale = RewardMap(-(items * max(self.holding * capacity, self.shortage * most) + self.ordering), 0.0)

    def costs(self, regime: int) -> Array:
        stock = np.arange(self.capacity + 1)[:, None]
        d = np.arange(self.most + 1)
        one: Array = self.demand[regime][0] @ (self.holding * np.maximum(stock - d, 0) + self.shortage * np.maximum(d - stock, 0)).T
        digits = np.stack(np.unravel_index(np.arange(self.n), tuple(self.levels)), axis=1).astype(np.int32)
        plain = one[digits].sum(axis=1)
        cost = np.empty((self.n, self.items + 1))
        cost[:, 0] = plain
        for i in range(self.items):
            after = np.minimum(digits[:, i] + self.orders[i + 1, i], self.capacity)
            cost[:, i + 1] = plain - one[digits[:, i]] + one[after] + self.ordering
        return np.clip(cost / (self.scale.scale or 1.0), 0.0, 1.0)

    def count(self, regime: int, states: Array, counts: Array) -> None:
        kernels.inventory_counts(self.levels, self.orders, self.most, states, counts)

    def fill(self, regime: int, states: Array, pointer: Array, data: Array, indices: Array) -> None:
        kernels.inventory_rows(
            self.levels, self.orders, self.most, self.demand[regime], self.excess[regime], states, pointer, data, indices
        )


def inventory(
    horizon: int = 20,
    *,
    items: int = 2,
    capacity: int = 9,
    batch: int = 4,
    demands: Sequence[float] = (0.2, 0.5, 0.8),
    most: int = 3,
    holding: float = 0.05,
    shortage: float = 1.0,
    ordering: float = 0.5,
) -> Environment:
    """Stock of several items; the context is the demand regime.

    A state is the stock of every item, 0 to `capacity`. Action 0 orders nothing, action i orders a batch of item i, which
    arrives at once. Then each item has an independent demand, binomial with `most` trials; demand that exceeds the stock is
    lost. A step costs holding * (remaining stock) + shortage * (lost demand), summed over items, + ordering if it orders.
    The first state is full stock. There are (capacity + 1) ** items states. Models are built when they are first needed,
    directly as CSR rows, so memory is used only for the regimes in use.

    Parameters
    ----------
    horizon : int
        Steps.
    items, capacity, batch : int
        Number of items; largest stock of each; size of an order.
    demands : sequence of float
        Success probability of the binomial demand, one regime each.
    most : int
        Largest demand of an item in a step.
    holding, shortage, ordering : float
        Costs.
    """
    prices = tuple(as_number(x, name) for x, name in ((holding, "holding"), (shortage, "shortage"), (ordering, "ordering")))
    limits = ((items, "items", 31), (capacity, "capacity", 1 << 31), (batch, "batch", 1 << 31), (most, "most", 10_000))
    sizes = [as_integer(x, name, least=1, most=limit) for x, name, limit in limits]
    chances = [
        as_number(p, f"demands[{i}]", most=1.0, strict=True) for i, p in enumerate(as_items(demands, "demands", "probabilities", some=True))
    ]
    _fits((sizes[1] + 1) ** sizes[0])
    regimes = _Inventory(as_integer(horizon, "horizon", least=1, most=MANY), sizes[0], sizes[1], sizes[2], chances, sizes[3], prices)
    return _environment(regimes, [f"demand {p:g}" for p in chances], "inventory", regimes.scale, "generated; large and sparse")


def _binomial(n: int, p: float) -> Array:
    """Probabilities of 0..n successes, computed by adding one trial at a time."""
    result = np.array([1.0])
    for _ in range(n):
        result = np.append(result * (1.0 - p), 0.0) + np.append(0.0, result * p)
    return result


def _fits(n: int) -> None:
    if n >= 1 << 31:
        raise OpoError(f"{n} states are too many: fewer items or queues, or a smaller capacity, are needed")


class _Queues(_Regimes):
    costs_differ = False

    def __init__(self, horizon: int, queues: int, capacity: int, arrivals: list[Array], service: Array) -> None:
        n = (capacity + 1) ** queues
        super().__init__(Layout([1] + [n] * (horizon - 1), queues), 0)
        self.n, self.capacity = n, capacity
        self.levels = np.full(queues, capacity + 1, np.int64)
        self.arrivals, self.service = arrivals, service
        self.scale = RewardMap(-float(queues * capacity), 0.0)

    def costs(self, regime: int) -> Array:
        waiting = np.zeros(self.n)
        for digit in np.unravel_index(np.arange(self.n), tuple(self.levels)):
            waiting += digit
        return np.repeat((waiting / self.scale.scale)[:, None], self.levels.size, axis=1)

    def _scratch(self) -> tuple[Array, Array]:
        size = (2 << self.levels.size) + self.levels.size
        return np.empty(size, np.int64), np.empty(size)

    def count(self, regime: int, states: Array, counts: Array) -> None:
        kernels.queue_counts(self.levels, self.arrivals[regime], self.service, states, *self._scratch(), counts)

    def fill(self, regime: int, states: Array, pointer: Array, data: Array, indices: Array) -> None:
        kernels.queue_rows(self.levels, self.arrivals[regime], self.service, states, *self._scratch(), pointer, data, indices)


def queue_network(
    horizon: int = 20,
    *,
    queues: int = 2,
    capacity: int = 9,
    arrivals: Sequence[Sequence[float] | float] | None = None,
    service: Sequence[float] | float = 0.8,
) -> Environment:
    """Queues in a row with one server; the context is the set of arrival rates.

    A state is the number of jobs in every queue, 0 to `capacity`. The action is the queue to serve: with that queue's
    service probability one of its jobs is finished and moves on to the next queue (from the last queue it leaves). Then a job
    arrives at each queue with the queue's arrival probability. Jobs that find a full queue are lost. A step costs the number
    of waiting jobs. All queues start empty. There are (capacity + 1) ** queues states, built as in `inventory`.

    Parameters
    ----------
    horizon : int
        Steps.
    queues, capacity : int
    arrivals : sequence of float, or of one float per queue, optional
        Arrival probabilities, one regime each. Default: three regimes: high at every other queue, at the queues between, and at all.
    service : float or sequence of one float per queue
        Service probabilities.
    """
    n = as_integer(queues, "queues", least=1, most=16)
    if arrivals is None:
        arrivals = [[rates[i % 2] for i in range(n)] for rates in ((0.3, 0.1), (0.1, 0.3), (0.4, 0.4))]
    rates = [_per_queue(row, n, f"arrivals[{i}]") for i, row in enumerate(as_items(arrivals, "arrivals", "rates", some=True))]
    limit = as_integer(capacity, "capacity", least=1, most=1 << 31)
    _fits((limit + 1) ** n)
    regimes = _Queues(as_integer(horizon, "horizon", least=1, most=MANY), n, limit, rates, _per_queue(service, n, "service"))
    labels = [f"arrivals {', '.join(f'{x:g}' for x in row)}" for row in rates]
    return _environment(regimes, labels, "queue-network", regimes.scale, "generated; large and sparse")


def _per_queue(values: Any, n: int, name: str) -> Array:
    entries = [values] * n if as_array(values, name).ndim == 0 else as_items(values, name, "numbers")
    if len(entries) != n:
        raise OpoError(f"{name} has {len(entries)} entries: one number, or one for each of the {n} queues, is needed")
    return np.array([as_number(x, name, most=1.0) for x in entries])
