"""Common parts of the parametric oracles: checked batches, numbered fits, feature maps, and sizes of covers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .._support.checks import as_number, as_real, frozen, instance, shown
from .._support.fields import Fields, agrees
from .._support.lru import LRU, Caching
from ..errors import OpoError
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.layout import Layout
from .log import TrajectoryLog

__all__ = ["Batch", "FeatureMap", "ParametricOracle", "cover_size", "grouped"]

Array = npt.NDArray[Any]
CACHE_BYTES = 1 << 28


class Batch(NamedTuple):
    """Checked trajectories in columns."""

    contexts: Sequence[Any]
    states: Array
    actions: Array
    losses: Array
    pairs: Array
    """Row state * A + action of every step, shape (n, H)."""


class ParametricOracle(Caching):
    """An oracle with numbered fits: 0 is the fit without data, and each fit with other parameters gets the next number.

    A subclass has ``_prepare(batch)``, which raises on data that it cannot use and changes nothing, ``_add(prepared)``,
    which cannot fail, and ``_solve(number)``, which fits and returns whether the parameters changed.

    Attributes
    ----------
    episodes : int
        Number of trajectories in the data.
    """

    function_class: Any

    def __init__(self, layout: Layout, action_mask: Array | None) -> None:
        instance(layout, "layout", Layout)
        self.layout, self.action_mask = layout, action_mask
        self.episodes = 0
        self._number = 0
        self._stale = False
        self._checked: tuple[Trajectory, Any] | None = None

    def check(self, trajectory: Trajectory) -> None:
        """Raise what `observe` would raise; nothing is added."""
        self._checked = (trajectory, self._prepare(self._single(trajectory)))

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode; a bad one raises and changes nothing."""
        if self._checked is None or self._checked[0] is not trajectory:
            self.check(trajectory)
        assert self._checked is not None
        prepared, self._checked = self._checked[1], None
        self._add(prepared)
        self.episodes += 1
        self._stale = True

    def observe_many(self, trajectories: Sequence[Trajectory]) -> None:
        """Add a log or a sequence of trajectories, all or none; the same data as one at a time in that order."""
        log = TrajectoryLog.of(self.layout, trajectories, self.action_mask)
        self._add(self._prepare(Batch(log.contexts, log.states, log.actions, log.losses, log.pairs)))
        self.episodes += len(log)
        self._stale = True

    def fit(self) -> int:
        """Number of the fit on all data so far."""
        if self._stale:
            self._number += int(self._solve(self._number + 1))
            self._stale = False
        return self._number

    def _single(self, trajectory: Trajectory) -> Batch:
        t = check_trajectory(self.layout, self.action_mask, trajectory)
        states, actions = t.states[None], t.actions[None]
        return Batch([t.context], states, actions, t.losses[None], states[:, :-1] * self.layout.n_actions + actions)

    def check_fit(self, fit: Hashable) -> None:
        """Raise unless `fit` is a number that `fit()` returned."""
        self._known(fit)

    def _known(self, fit: Hashable) -> int:
        if isinstance(fit, (int, np.integer)) and 0 <= fit <= self._number:
            return int(fit)
        raise OpoError(f"fit is {shown(fit)}: a number returned by fit(), 0 to {self._number}, is needed")

    def _prepare(self, batch: Batch) -> Any:
        raise NotImplementedError

    def _add(self, prepared: Any) -> None:
        raise NotImplementedError

    def _solve(self, number: int) -> bool:
        raise NotImplementedError

    # -- saving --------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Data and fits, as arrays and JSON values. An oracle that restores them continues with the same bits."""
        counts = {"episodes": self.episodes, "number": self._number, "stale": self._stale}
        return {"oracle": self._settings(), **counts, **self._state(), **self._kept_state()}

    def _settings(self) -> dict[str, Any]:
        """Settings that must agree between the oracle that wrote a state and the one that restores it."""
        options = vars(self.function_class).items()
        numbers = {name: value for name, value in options if name != "size" and isinstance(value, (bool, int, float))}
        return {"kind": type(self).__name__, "layer_sizes": list(self.layout.layer_sizes), "n_actions": self.layout.n_actions, **numbers}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the `state` of an oracle of the same class and layout; an invalid one raises and changes nothing."""
        fields = Fields(state, "the result of an oracle's state()")
        theirs = fields.inner("oracle").state if "oracle" in state else {}
        for name, value in self._settings().items():
            if not agrees(theirs.get(name), value):
                raise OpoError(f"state belongs to an oracle whose {name} is {theirs.get(name)!r}: {value!r} is needed")
        # Each new fit needs new data, so there are at most as many fits as episodes.
        episodes, stale = fields.integer("episodes"), fields.flag("stale")
        number = fields.integer("number", most=episodes)
        commit = {**self._restored(fields, number, episodes), **self._kept_restored(fields)}
        for name, value in commit.items():
            setattr(self, name, value)
        self.episodes, self._number, self._stale, self._checked = episodes, number, stale, None

    def _state(self) -> dict[str, Any]:
        raise NotImplementedError

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        """The attributes that a state with these numbers of fits and episodes describes."""
        raise NotImplementedError

    def _kept_state(self) -> dict[str, Any]:
        """State that is kept besides data and fits."""
        return {}

    def _kept_restored(self, fields: Fields) -> dict[str, Any]:
        """Undo `_kept_state`."""
        return {}


class FeatureMap:
    """A user's features: checked, read-only, and computed once per context while they stay in the cache.

    Parameters
    ----------
    function : callable
        ``function(context)`` returns an array of `shape`.
    shape : tuple of int
        If the last entry is -1, it is taken from the first array returned.
    name : str
        The name in error messages.
    """

    def __init__(self, function: Callable[[Any], Any], shape: tuple[int, ...], name: str = "features") -> None:
        if not callable(function):
            raise OpoError(f"{name} is a {type(function).__name__}: a callable {name}(context) is needed")
        self.function, self.shape, self.name = function, shape, name
        self._found: LRU[Array] = LRU(CACHE_BYTES)

    @property
    def nbytes(self) -> int:
        """Bytes of the cached features."""
        return self._found.nbytes

    def __call__(self, context: Any) -> Array:
        key = context_key(context)
        found = self._found.get(key)
        if found is None:
            array = as_real(self.function(context), f"{self.name} at context {context!r}")
            wanted = (*self.shape[:-1], array.shape[-1]) if self.shape[-1] == -1 and array.ndim else self.shape
            if array.shape != wanted:
                raise OpoError(f"{self.name} at context {context!r} have shape {array.shape}: {wanted} is needed")
            if not np.isfinite(array).all():
                place = tuple(int(x) for x in np.argwhere(~np.isfinite(array))[0])
                raise OpoError(f"{self.name} at context {context!r}: entry {place} is {float(array[place])!r}; a finite number is needed")
            found = frozen(np.array(array, np.float64, order="C"))
            self.shape = wanted
            self._found.put(key, found, found.nbytes)
        return found


def grouped(contexts: Sequence[Any]) -> Iterator[tuple[Any, Array]]:
    """The distinct contexts in order of first appearance, each with its positions."""
    places: dict[Hashable, tuple[Any, list[int]]] = {}
    for i, context in enumerate(contexts):
        places.setdefault(context_key(context), (context, []))[1].append(i)
    for context, where in places.values():
        yield context, np.array(where, np.int64)


def cover_size(n_parameters: int, size: float | None) -> float:
    """|F| of a parametric class for the theory's parameters: `size`, or that of a cover of radius 0.01, (1 + 2/0.01)^d, at most 1e150."""
    if size is not None:
        return as_number(size, "size", least=1.0)
    return float(min(201.0 ** min(n_parameters, 65), 1e150))
