"""Refit schedules: when an oracle fits again. The paper fits after every episode; the others keep the number of distinct fits small."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from .._support.checks import as_integer, as_number, having, shown
from .._support.fields import Fields, agrees, as_fit
from ..errors import OpoError
from ..model.contextual import Trajectory
from ..model.layout import Layout

__all__ = ["Refit", "ScheduledOracle", "scheduled"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Refit:
    """When to fit again.

    Parameters
    ----------
    kind : {"every", "doubling", "interval", "gain"}
        "every": whenever there are new data (the paper). "doubling": when the data have doubled since the last fit.
        "interval": after `amount` new episodes. "gain": when a new fit would lower the sum of losses on all data (squared
        errors, or negative log-likelihood) by more than `amount`.
    amount : float
    """

    kind: str = "every"
    amount: float = 0.0

    @classmethod
    def parse(cls, value: Any) -> Refit:
        """From "every", "doubling", a number of episodes, ("gain", threshold), or a `Refit`."""
        if isinstance(value, Refit):
            return value
        if isinstance(value, str) and value in ("every", "doubling"):
            return cls(value)
        if isinstance(value, tuple) and len(value) == 2 and value[0] == "gain":
            return cls("gain", as_number(value[1], "refit[1], the threshold,"))
        try:
            return cls("interval", as_integer(value, "refit", least=1))
        except OpoError:
            raise OpoError(
                f"refit is {shown(value)}: 'every', 'doubling', a number of episodes of at least 1 or ('gain', threshold) is needed"
            ) from None

    def due(self, episodes: int, fitted: int) -> bool:
        """Whether to fit again after `episodes` episodes, of which the last fit saw `fitted` ("gain": whether to check the gain)."""
        new = episodes - fitted
        if new == 0:
            return False
        if self.kind == "doubling":
            return episodes >= 2 * fitted
        return new >= self.amount if self.kind == "interval" else True

    def __str__(self) -> str:
        if self.kind == "interval":
            return f"every {int(self.amount)} episodes"
        return f"gain above {self.amount:g}" if self.kind == "gain" else self.kind


class ScheduledOracle:
    """An oracle whose `fit` changes only when its schedule says so; otherwise it is the inner oracle.

    The same holds for `plausible`: it returns an earlier pair, whose set contains the truth like every other.

    Attributes
    ----------
    oracle : the inner oracle
    refit : Refit
    """

    def __init__(self, oracle: Any, refit: Refit) -> None:
        if refit.kind == "gain" and not hasattr(oracle, "gain"):
            raise OpoError(f"refit is a gain, which a {type(oracle).__name__} cannot compute: it has no gain(fit); use another schedule")
        self.oracle, self.refit = oracle, refit
        self.episodes = self.fitted = 0
        self._fit: Hashable = oracle.fit()
        self._plausible: tuple[Hashable, Hashable] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "oracle":  # looked up before __init__, by copy and pickle
            raise AttributeError(name)
        return getattr(self.oracle, name)

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode."""
        self.oracle.observe(trajectory)
        self.episodes += 1

    def observe_many(self, trajectories: Sequence[Trajectory]) -> None:
        """Add many episodes, all or none."""
        add_all(self.oracle, trajectories)
        self.episodes += len(trajectories)

    def fit(self) -> Hashable:
        """The last fit that the schedule allowed."""
        if self.refit.due(self.episodes, self.fitted) and (
            self.refit.kind != "gain" or self.fitted == 0 or self.oracle.gain(self._fit) > self.refit.amount
        ):
            self._fit = self.oracle.fit()
            if self._plausible is not None:
                self._plausible = self.oracle.plausible()
            self.fitted = self.episodes
        return self._fit

    @property
    def keep_plausible(self) -> Any:
        """The oracle's method, if it has one."""
        inner = self.oracle.keep_plausible

        def keep(delta: float) -> None:
            inner(delta)
            self._plausible = self.oracle.plausible()

        return keep

    @property
    def plausible(self) -> Any:
        """A method, if the oracle has one: the last pair that the schedule allowed."""
        inner = self.oracle.plausible

        def held() -> Any:
            self.fit()
            return inner() if self._plausible is None else self._plausible

        return held

    @property
    def state(self) -> Any:
        """A method, if the oracle has one: the oracle's state, and the position of the schedule."""
        inner = self.oracle.state
        kept = [] if self._plausible is None else [self._plausible]
        return lambda: {**inner(), "refit": [str(self.refit), self.episodes, self.fitted, self._fit, *kept]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the `state` of an oracle with the same schedule."""
        fields = Fields(state, "the result of an oracle's state()")
        stored = fields.listed("refit") if "refit" in state else ["every"]
        if not stored or not agrees(stored[0], str(self.refit)):
            raise OpoError(f"state belongs to an oracle that refits {stored[0] if stored else None}: {self.refit} is needed")
        fields.check("refit", len(stored) in (4, 5), f"has {len(stored)} entries: 4 or 5 are needed")
        episodes = as_integer(stored[1], "state['refit'][1]", least=0)
        fitted = as_integer(stored[2], "state['refit'][2]", least=0, most=episodes)
        fit, *kept = map(as_fit, stored[3:])
        fields.check("refit", all(isinstance(pair, tuple) and len(pair) == 2 for pair in kept), "holds no pair of fit and version")
        before = self.oracle.state()
        self.oracle.restore({key: value for key, value in state.items() if key != "refit"})
        try:
            if getattr(self.oracle, "episodes", episodes) != episodes:
                raise OpoError(f"state['refit'][1] is {episodes}: {self.oracle.episodes} episodes, as in the oracle's state, are needed")
            if hasattr(self.oracle, "check_fit"):
                self.oracle.check_fit(fit)
                if kept:
                    self.oracle.check_fit(kept[0][0])
                    self.oracle.plausible_count(kept[0][1])
        except OpoError:
            self.oracle.restore(before)
            raise
        self.episodes, self.fitted, self._fit = episodes, fitted, fit
        self._plausible = kept[0] if kept else None


class _ScheduledClass:
    def __init__(self, function_class: Any, refit: Refit) -> None:
        self.function_class, self.refit = function_class, refit
        self.size = float(getattr(function_class, "size", 1.0))

    def oracle(self, layout: Layout, action_mask: Array | None) -> Any:
        """A new oracle of the class, with the schedule."""
        return ScheduledOracle(self.function_class.oracle(layout, action_mask), self.refit)


def scheduled(source: Any, refit: Any) -> Any:
    """A function class, or an oracle, with a refit schedule.

    Parameters
    ----------
    source : function class or oracle
    refit : "every", "doubling", int, ("gain", threshold) or Refit
        "every" is the paper. "doubling" limits the number of distinct fits to log2(T), and with it the cost of an episode, since
        a chain keeps a sum of occupancies for each distinct dynamics.

    Examples
    --------
    >>> agent = OPO(layout, scheduled(F, "doubling"), scheduled(P, ("gain", 2.0)), episodes=T)  # doctest: +SKIP
    """
    schedule = Refit.parse(refit)
    if not hasattr(source, "oracle"):
        having(source, "source", ("fit",), "a function class with oracle(...), or an oracle,")
    if isinstance(source, type):
        raise OpoError(f"source is the class {source.__name__} itself: an object of it, {source.__name__}(...), is needed")
    if schedule.kind == "every":
        return source
    return (
        _ScheduledClass(source, schedule) if hasattr(source, "oracle") and not hasattr(source, "fit") else ScheduledOracle(source, schedule)
    )


def add_all(oracle: Any, trajectories: Sequence[Trajectory]) -> None:
    """Add many episodes to any oracle, by its `observe_many` or, after all are checked, one at a time."""
    if hasattr(oracle, "observe_many"):
        oracle.observe_many(trajectories)
        return
    if hasattr(oracle, "check"):
        for trajectory in trajectories:
            oracle.check(trajectory)
    for trajectory in trajectories:
        oracle.observe(trajectory)
