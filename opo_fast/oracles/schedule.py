"""Refit schedules: when an oracle fits anew. Every episode is the paper; the rest keeps the number of distinct fits small."""

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
    """When to fit anew.

    Parameters
    ----------
    kind : {"every", "doubling", "interval", "gain"}
        Whenever there are new data (the paper); when the data have doubled since the last fit; after `amount` new
        episodes; when a new fit would lower the sum of losses on all data (squared errors, or negative log-likelihood)
        by more than `amount`.
    amount : float
    """

    kind: str = "every"
    amount: float = 0.0

    @classmethod
    def parse(cls, value: Any) -> Refit:
        """Of "every", "doubling", a number of episodes, ("gain", threshold), or a `Refit`."""
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
        """Whether `episodes` episodes of data, `fitted` of which the last fit saw, call for a new fit ("gain": a look)."""
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
    """An oracle whose `fit` moves on only when its schedule says so; all else is that of the oracle within.

    So does its `plausible`: the pair of an earlier time, whose set holds the truth as every set does.

    Attributes
    ----------
    oracle : the oracle within
    refit : Refit
    """

    def __init__(self, oracle: Any, refit: Refit) -> None:
        if refit.kind == "gain" and not hasattr(oracle, "gain"):
            raise OpoError(f"refit is a score gain, which a {type(oracle).__name__} cannot tell (it has no gain(fit))")
        self.oracle, self.refit = oracle, refit
        self.episodes = self.fitted = 0
        self._fit: Hashable = oracle.fit()
        self._plausible: tuple[Hashable, Hashable] | None = None

    def __getattr__(self, name: str) -> Any:
        if name == "oracle":  # asked for before __init__, by copy and pickle
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
        """The fit that the schedule holds to."""
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
        """A method where the oracle has one."""
        inner = self.oracle.keep_plausible

        def keep(delta: float) -> None:
            inner(delta)
            self._plausible = self.oracle.plausible()

        return keep

    @property
    def plausible(self) -> Any:
        """A method where the oracle has one: the pair that the schedule holds to."""
        inner = self.oracle.plausible

        def held() -> Any:
            self.fit()
            return inner() if self._plausible is None else self._plausible

        return held

    @property
    def state(self) -> Any:
        """A method where the oracle has one: the oracle's state, and where the schedule stands."""
        inner = self.oracle.state
        kept = [] if self._plausible is None else [self._plausible]
        return lambda: {**inner(), "refit": [str(self.refit), self.episodes, self.fitted, self._fit, *kept]}

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a `state` of an oracle with the same schedule."""
        fields = Fields(state, "what an oracle's state() gave")
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
                raise OpoError(f"state['refit'][1] is {episodes}: {self.oracle.episodes} episodes are needed, as the oracle has")
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
        """The class's oracle under the schedule."""
        return ScheduledOracle(self.function_class.oracle(layout, action_mask), self.refit)


def scheduled(source: Any, refit: Any) -> Any:
    """A function class, or an oracle, with a refit schedule.

    Parameters
    ----------
    source : function class or oracle
    refit : "every", "doubling", int, ("gain", threshold) or Refit
        "every" is the paper. "doubling" keeps the number of distinct fits at log2(T), and with it the cost of an episode
        (DESIGN 5.7: each distinct dynamics is one more pass over the chain).

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
    """Add many episodes to any oracle: by its `observe_many`, or one at a time after all were checked."""
    if hasattr(oracle, "observe_many"):
        oracle.observe_many(trajectories)
        return
    if hasattr(oracle, "check"):
        for trajectory in trajectories:
            oracle.check(trajectory)
    for trajectory in trajectories:
        oracle.observe(trajectory)
