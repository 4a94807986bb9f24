"""A test of oracles against the protocol, which users can run on their own oracles."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_items, as_number
from .._support.numbers import log_loss
from ..errors import OpoError
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.conversion import as_transitions
from ..model.layout import Layout, as_losses, as_mask
from .log import TrajectoryLog
from .plausible_checks import SetChecker, hand_over
from .schedule import ScheduledOracle, add_all

__all__ = ["check_oracle"]

Array = npt.NDArray[Any]


def check_oracle(
    source: Any,
    layout: Layout,
    trajectories: Any,
    *,
    contexts: Sequence[Any] = (),
    action_mask: npt.ArrayLike | None = None,
    tolerance: float = 1e-6,
) -> list[str]:
    """Test an oracle against the protocol on which agents rely (see `LossOracle` and `DynamicsOracle`).

    - *shape and range*: losses are (n_states, A) in [0, 1], transitions are distributions over the next layer, with and
      without data;
    - *purity*: the same fit and context give the same bits, later data do not change an earlier fit, and neither contexts
      nor trajectories are written to; without new data `fit` returns the same value;
    - *equal fits are equal functions*;
    - *determinism*: two new oracles with the same data give the same bits;
    - *incremental = batch*: a fit after each episode and one fit after all of them give the same numbers up to `tolerance`,
      and so does ``observe_many``;
    - *refusals*: a trajectory that the oracle refuses changes nothing;
    - *error*, *gain*: if the oracle has them, they agree with its predictions and are not negative;
    - *plausible sets*: if the oracle keeps them, every fit is in its set and not below the least losses, radii are in [0, 1],
      equal versions are equal sets that later data do not change, and sets are saved and loaded with the oracle;
    - *save and load*: an oracle restored from a file with the ``state`` of another continues with the same bits.

    Parameters
    ----------
    source : function class or callable
        An object with ``oracle(layout, action_mask)``, or a callable without arguments, that makes a new oracle each time.
        If it has a refit schedule, the inner oracle is tested.
    layout : Layout
    trajectories : TrajectoryLog or sequence of Trajectory
        At least four, with positive probability under the class.
    contexts : sequence, optional
        Additional contexts to test; those of the trajectories are tested anyway (the first eight).
    action_mask : array_like of bool (n_states, A), optional
    tolerance : float

    Returns
    -------
    list of str
        What was tested, one line for each; optional parts that the oracle does not have (no ``state``, say) are listed too.

    Raises
    ------
    OpoError
        With one line for each violation.
    """
    contexts = as_items(contexts, "contexts", "contexts")
    log = TrajectoryLog.of(layout, trajectories, action_mask)
    if len(log) < 4:
        raise OpoError(f"trajectories has {len(log)} entries: at least 4 are needed for the checks")
    return _Checker(source, layout, log, contexts, as_mask(layout, action_mask), as_number(tolerance, "tolerance")).run()


class _Checker:
    def __init__(
        self, source: Any, layout: Layout, log: TrajectoryLog, contexts: Sequence[Any], action_mask: Array | None, tolerance: float
    ) -> None:
        self.layout, self.action_mask, self.tolerance = layout, action_mask, tolerance
        self.data = [check_trajectory(layout, action_mask, t) for t in log]
        self.make: Callable[[], Any]
        if hasattr(source, "oracle") and not isinstance(source, ScheduledOracle):
            self.make = lambda: source.oracle(layout, action_mask)
        elif callable(source):
            self.make = source
        else:
            raise OpoError(f"source is a {type(source).__name__}: a function class, or a callable that makes an oracle, is needed")
        # Writable copies, to see whether the oracle writes to them.
        asked = [*contexts, *(t.context for t in self.data)]
        distinct = {context_key(c): np.array(c) if isinstance(c, np.ndarray) else c for c in asked}
        self.contexts = list(distinct.values())[: max(8, len(contexts))]
        self.faults: list[str] = []
        self.kinds: dict[str, str] = {}
        self.repeated: dict[str, int] = {}  # how many more faults of the same kind each one stands for
        self.passed: list[str] = []

    def fresh(self) -> Any:
        oracle = self.make()
        while isinstance(oracle, ScheduledOracle):
            oracle = oracle.oracle
        missing = [name for name in ("observe", "fit") if not callable(getattr(oracle, name, None))]
        missing += [] if callable(getattr(oracle, "losses", None) or getattr(oracle, "transitions", None)) else ["losses or transitions"]
        if missing:
            raise OpoError(f"the oracle is a {type(oracle).__name__} without {', '.join(missing)}")
        as_integer(getattr(oracle, "cached_bytes", 0), "cached_bytes", least=0)
        return oracle

    def answer(self, oracle: Any, fit: Hashable, context: Any) -> Array:
        """The validated function of a fit at a context, as a flat array."""
        if hasattr(oracle, "losses"):
            return as_losses(self.layout, oracle.losses(fit, context), f"losses({fit!r}, {context!r})").ravel()
        where = f"transitions({fit!r}, {context!r})"
        return as_transitions(self.layout, oracle.transitions(fit, context), self.action_mask, where=where, own_mask=True).data

    def answers(self, oracle: Any, fit: Hashable) -> list[Array]:
        return [self.answer(oracle, fit, context) for context in self.contexts]

    @contextlib.contextmanager
    def checking(self, what: str) -> Iterator[None]:
        """Record a fault or a pass; an exception in the oracle is a fault too."""
        before = len(self.faults)
        try:
            yield
        except Exception as error:
            self.faults.append(f"{what}: {type(error).__name__}: {error}")
        if len(self.faults) == before:
            self.passed.append(what)

    def fault(self, text: str, kind: str = "") -> None:
        """Record a fault; of several of one `kind`, only the first is reported, with their number."""
        first = self.kinds.setdefault(kind, text) if kind else text
        if first is text:
            self.faults.append(text)
        else:
            self.repeated[first] = self.repeated.get(first, 0) + 1

    def line(self, fault: str) -> str:
        """A fault as a line of the report."""
        more = self.repeated.get(fault, 0)
        return f"- {fault}" + (f", and {more} more like it" if more else "")

    def run(self) -> list[str]:
        self.fresh()
        with self.checking("shape and range without data"):
            empty = self.fresh()
            hash(empty.fit())
            self.answers(empty, empty.fit())
        with self.checking("purity, shape and range with data, equal fits are equal functions"):
            self.check_history()
        with self.checking("determinism"):
            self.check_same("determinism: two new oracles with the same data differ", *(self.one_at_a_time(self.data) for _ in range(2)))
        with self.checking("incremental = batch"):
            self.check_batches()
        with self.checking("refusals change nothing"):
            self.check_refusals()
        oracle = self.fresh()
        offered = [name for name in ("error", "gain") if hasattr(oracle, name)]
        if offered:
            with self.checking(" and ".join(offered)):
                self.check_error_and_gain()
        if "error" not in offered:
            self.passed.append("error: not offered (no error(fit, trajectory)), so agents compute it from the whole function")
        if "gain" not in offered:
            self.passed.append('gain: not offered (no gain(fit)), so the schedule ("gain", threshold) cannot be used')
        if hasattr(oracle, "keep_plausible"):
            with self.checking("plausible sets"):
                SetChecker(self).run()
        else:
            self.passed.append("plausible sets: not offered (no keep_plausible(delta)), so OPO has no guarantee where exploration is hard")
        if hasattr(oracle, "state") and hasattr(oracle, "restore"):
            with self.checking("save and load"):
                self.check_state()
        else:
            self.passed.append("save and load: not offered (no state() and restore(state)), so agents with this oracle cannot be saved")
        if self.faults:
            raise OpoError("the oracle violates the protocol:\n" + "\n".join(map(self.line, self.faults)))
        return self.passed

    def one_at_a_time(self, data: Sequence[Trajectory]) -> Any:
        oracle = self.fresh()
        for trajectory in data:
            oracle.observe(trajectory)
            oracle.fit()
        return oracle

    def check_same(self, what: str, first: Any, second: Any, tolerance: float = 0.0) -> None:
        for context, a, b in zip(self.contexts, self.answers(first, first.fit()), self.answers(second, second.fit()), strict=True):
            gap = float(np.abs(a - b).max(initial=0.0)) if a.shape == b.shape else np.inf
            if gap > tolerance or (tolerance == 0 and a.tobytes() != b.tobytes()):
                self.fault(f"{what} (by {gap:.3g} at context {context!r})")
                return

    def check_history(self) -> None:
        oracle = self.fresh()
        contexts = [(c, np.array(c, copy=True)) for c in self.contexts if isinstance(c, np.ndarray)]
        copies = [(t, t.states.copy(), t.actions.copy(), t.losses.copy()) for t in self.data]
        known: list[tuple[Hashable, list[Array]]] = []
        steps = sorted({0, 1, 2, len(self.data) // 2, len(self.data)})
        for n, trajectory in enumerate([None, *self.data]):
            if trajectory is not None:
                oracle.observe(trajectory)
            fit = oracle.fit()
            if oracle.fit() != fit:
                self.fault("purity: fit() called twice without new data returns different values")
            if n in steps:
                known.append((fit, self.answers(oracle, fit)))
        for fit, before in known:
            if any(a.tobytes() != b.tobytes() for a, b in zip(before, self.answers(oracle, fit), strict=True)):
                self.fault(f"purity: the function of fit {fit!r} changed after more data (earlier fits must stay valid)")
                break
        for i, (fit, answers) in enumerate(known):
            for other, others in known[:i]:
                if fit == other and any(a.tobytes() != b.tobytes() for a, b in zip(answers, others, strict=True)):
                    self.fault(f"equal fits: fit() returned {fit!r} twice, for different functions")
        if any(not np.array_equal(c, copy) for c, copy in contexts):
            self.fault("purity: a context was written to")
        for t, states, actions, losses in copies:
            if not (np.array_equal(t.states, states) and np.array_equal(t.actions, actions) and np.array_equal(t.losses, losses)):
                self.fault("purity: a trajectory was written to")
                break

    def check_batches(self) -> None:
        first = self.one_at_a_time(self.data)
        second = self.fresh()
        for trajectory in self.data:
            second.observe(trajectory)
        self.check_same("incremental = batch: a fit after each episode and one fit at the end differ", first, second, self.tolerance)
        if hasattr(second, "observe_many"):
            third, middle = self.fresh(), len(self.data) // 2
            third.observe_many(self.data[:middle])
            third.observe_many(self.data[middle:])
            self.check_same("incremental = batch: observe_many and observe differ", first, third, self.tolerance)

    def check_refusals(self) -> None:
        oracle = self.one_at_a_time(self.data)
        fit, before = oracle.fit(), self.answers(oracle, oracle.fit())
        good = self.data[0]
        states, losses = good.states.copy(), np.full(good.losses.shape, np.nan)
        states[-2] = self.layout.n_states + 5
        for bad in (
            Trajectory(good.context, good.states, good.actions, losses),
            Trajectory(good.context, states, good.actions, good.losses),
        ):
            try:
                if hasattr(oracle, "check"):
                    oracle.check(bad)
                else:
                    continue  # Agents check trajectories before they pass them on.
            except Exception:
                pass
            else:
                continue
            after = oracle.fit()
            if after != fit or any(a.tobytes() != b.tobytes() for a, b in zip(before, self.answers(oracle, after), strict=True)):
                self.fault("refusals: a trajectory that was refused changed the fit")

    def check_error_and_gain(self) -> None:
        oracle = self.one_at_a_time(self.data)
        fit = oracle.fit()
        if hasattr(oracle, "error"):
            for t in self.data[:8]:
                if hasattr(oracle, "losses"):
                    f = np.asarray(oracle.losses(fit, t.context))[t.states[:-1], t.actions]
                    wanted = float(np.square(f - t.losses).sum())
                else:
                    p = as_transitions(self.layout, oracle.transitions(fit, t.context), self.action_mask, own_mask=True)
                    wanted = log_loss(p.along(t.states, t.actions))
                found = oracle.error(fit, t)
                if not np.isclose(found, wanted, rtol=1e-6, atol=1e-9):
                    self.fault(f"error: error({fit!r}, trajectory) is {found!r}, but its predictions give {wanted!r}")
                    break
        if hasattr(oracle, "gain"):
            for one in (fit, self.fresh().fit()):
                with np.errstate(all="ignore"):
                    gain = float(oracle.gain(one))
                if not gain >= -1e-6 * len(self.data):
                    self.fault(f"gain: gain({one!r}) is {gain!r}; at least 0 is needed")

    def check_state(self) -> None:
        middle = len(self.data) // 2
        first, second = self.one_at_a_time(self.data[:middle]), self.fresh()
        hand_over(first, second)
        if first.fit() != second.fit():
            self.fault(f"save and load: fit() is {first.fit()!r}, but {second.fit()!r} after loading")
        self.check_same("save and load: a loaded oracle differs", first, second)
        for oracle in (first, second):
            add_all(oracle, self.data[middle:])
        self.check_same("save and load: a loaded oracle continues differently", first, second)
