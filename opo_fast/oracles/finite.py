"""Oracles of finite classes: least squares and log loss with one running sum per candidate."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import FLOAT64, as_delta, as_integer, as_list, as_real, frozen
from .._support.fields import Fields
from .._support.lru import LRU, Caching
from ..errors import OpoError, Place
from ..kernels.ingest import check_unit
from ..model.blocks import is_plain, layer_list
from ..model.contextual import Trajectory, check_trajectory, context_key
from ..model.layout import Layout
from ..model.sparse import as_csr
from ..model.transitions import Transitions
from .answers import DynamicsAnswer, Lines
from .fingerprint import Fingerprint
from .log import TrajectoryLog
from .plausible import NestedSet, kept_delta, late_delta, missing_delta

__all__ = ["FiniteDynamicsOracle", "FiniteLossOracle"]

Array = npt.NDArray[Any]
CACHE_BYTES = 1 << 28
LINES_BYTES = 1 << 20
"""Size up to which the dynamics candidates at a context are stored as rows of one array."""
LOWER_BYTES = 1 << 26
"""Bytes of lower bounds that an oracle caches for contexts and versions that occur again."""


class _FiniteOracle(Caching):
    """One running score per candidate; `_gains` returns what one trajectory adds to the scores.

    Attributes
    ----------
    scores : ndarray, shape (class size,)
    delta : float or None
        Failure probability of the plausible set, if one is kept.
    """

    delta: float | None = None
    _set: NestedSet | None = None
    _score_range = 0.0, float(np.finfo(np.float64).max)

    def __init__(self, function_class: Any, layout: Layout) -> None:
        self.function_class, self.layout = function_class, layout
        self.scores = np.zeros(len(function_class))
        self._answers: LRU[Any] = LRU(CACHE_BYTES)
        self._checked: tuple[Trajectory, Array] | None = None
        self._fingerprint = Fingerprint(self._functions, function_class.names)

    def _caches(self) -> tuple[Any, ...]:
        return (self._answers,)

    def check(self, trajectory: Trajectory) -> None:
        """Raise what `observe` would raise; nothing is added."""
        self._checked = (trajectory, self._gains(check_trajectory(self.layout, None, trajectory)))

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode: O(class size x H), independent of the data so far."""
        if self._checked is None or self._checked[0] is not trajectory:
            self.check(trajectory)
        assert self._checked is not None
        self.scores += self._checked[1]
        self._checked = None
        self._fingerprint.see(trajectory.context)
        if self._set is not None:
            costs = self._costs()
            best = int(costs.argmin())
            self._set.reduce(costs <= costs[best] + self._radius(), best)

    def observe_many(self, trajectories: Sequence[Trajectory]) -> None:
        """Add a log or a sequence of trajectories, all or none; same bits as one at a time in that order."""
        log, before = TrajectoryLog.of(self.layout, trajectories), self.scores.copy()
        before_set = None if self._set is None else self._set.copy()
        try:
            for trajectory in log:
                self.observe(trajectory)
        except OpoError:
            self.scores, self._set = before, before_set
            raise

    def _gains_once(self, trajectory: Trajectory) -> Array:
        """The gains of a trajectory; computed once if it was just checked."""
        return self._checked[1] if self._checked is not None and self._checked[0] is trajectory else self._gains(trajectory)

    def gain(self, fit: Hashable) -> float:
        """How much lower the sum of losses on all data is for the best candidate than for candidate `fit`."""
        return abs(float(self.scores[fit] - self.scores[self.fit()]))  # type: ignore[call-overload]

    def fit(self) -> int:
        """Index of the best candidate; the lowest index in a tie."""
        return int(self._costs().argmin())

    def _costs(self) -> Array:
        """What `fit` minimises."""
        raise NotImplementedError

    # -- the plausible set ---------------------------------------------------------------------------------------------

    def keep_plausible(self, delta: float) -> None:
        """From now on keep the set of candidates that are plausible given the data, at failure probability `delta`.

        After each episode it keeps the candidates whose cost on all data is within the radius (see the oracle) of the least
        cost in the whole class, or only the best one if none is. Excluded candidates stay excluded.
        """
        delta = as_delta(delta)
        if self.delta is not None or self.scores.any():
            raise late_delta()
        self.delta, self._set = delta, NestedSet(len(self.scores))

    def plausible(self) -> tuple[int, int]:
        """The best candidate of the plausible set (the lowest index in a tie), and the set's version."""
        nested = self._kept()
        return int(nested.members[self._costs()[nested.members].argmin()]), nested.version

    def plausible_count(self, version: Hashable) -> float:
        """Number of candidates in the plausible set of a version."""
        return float(self._kept().at(version).size)

    def candidates(self, version: Hashable) -> tuple[int, ...]:
        """The candidates in the plausible set of a version, in ascending order."""
        return tuple(self._kept().at(version).tolist())

    def _kept(self) -> NestedSet:
        if self._set is None:
            raise missing_delta()
        return self._set

    def _radius(self) -> float:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What `restore` needs: the scores, a fingerprint of the candidates, and the plausible set if one is kept."""
        kept = {} if self._set is None else {"plausible.delta": self.delta, **self._set.state()}
        return {"scores": self.scores.copy(), **self._fingerprint.state(), **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the scores, and the plausible set, of another oracle of the same class."""
        fields = Fields(state, "the result of an oracle's state()")
        scores = fields.numbers("scores", (None,), finite=False)
        if scores.shape != self.scores.shape:
            raise OpoError(f"state holds {scores.size} scores: one for each of the {self.scores.size} candidates is needed")
        least, most = self._score_range
        fields.check("scores", bool(((scores >= least) & (scores <= most)).all()), f"holds a score outside {least:g} to {most:g}")
        fields.check("scores", bool(np.isfinite(scores).any()), "excludes every candidate")
        kept = kept_delta(fields, self.delta)
        nested = None if kept is None else NestedSet.restored(scores.size, fields)
        self._fingerprint.restore(fields)
        self.scores, self.delta, self._set, self._checked = scores, kept, nested, None

    def check_fit(self, fit: Hashable) -> None:
        """Raise unless `fit` is the index of a candidate."""
        as_integer(fit, "fit", least=0, most=self.scores.size - 1)

    def _functions(self, context: Any) -> Sequence[Any]:
        """The candidates' functions at a context, one by one."""
        answers: Sequence[Any] = self._answer(context)
        return answers

    def _answer(self, context: Any) -> Any:
        """The candidates' functions at a context, computed once while they stay in the cache."""
        key = context_key(context)
        found = self._answers.get(key)
        if found is None:
            found, size = self._ask(context)
            self._answers.put(key, found, size)
        return found

    def _ask(self, context: Any) -> tuple[Any, int]:
        raise NotImplementedError

    def _gains(self, trajectory: Trajectory) -> Array:
        raise NotImplementedError


class FiniteLossOracle(_FiniteOracle):
    """Least squares over a finite class; `scores` holds the sums of squared errors L.

    Radius of the plausible set: (1/2) log(|F| / delta). For losses in [0, 1] with the mean f*, exp(2 (L(f*) - L(f))) is a
    nonnegative supermartingale for every f, since E exp(4 d (l - f*)) <= exp(2 d^2), d = f - f* (W. Hoeffding, JASA 58,
    1963, inequality 4.16). By Ville's inequality and a union bound over F, the truth is in all sets with probability at
    least 1 - delta.
    """

    def __init__(self, function_class: Any, layout: Layout) -> None:
        super().__init__(function_class, layout)
        self._lowest: LRU[Array] = LRU(LOWER_BYTES)

    def _caches(self) -> tuple[Any, ...]:
        return self._answers, self._lowest

    def _costs(self) -> Array:
        return self.scores

    def _radius(self) -> float:
        assert self.delta is not None
        return 0.5 * math.log(self.scores.size / self.delta)

    def upper(self, version: Hashable, context: Any) -> Array:
        """The greatest loss of each state-action pair over the plausible set of a version, shape (n_states, A)."""
        return np.asarray(self._answer(context)[self._kept().at(version)].max(axis=0))

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least loss of each state-action pair over the plausible set of a version, shape (n_states, A)."""
        key = version, context_key(context)
        found = self._lowest.get(key)
        if found is None:
            members = self._kept().at(version)
            found = frozen(np.asarray(self._answer(context)[members].min(axis=0)))
            self._lowest.put(key, found, found.nbytes)
        return found

    def candidates_at(self, context: Any) -> Array:
        """Losses of all candidates, shape (n, n_states, A)."""
        return self._answer(context)  # type: ignore[no-any-return]

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of candidate `fit`, shape (n_states, A)."""
        self.check_fit(fit)
        return self._answer(context)[fit]  # type: ignore[no-any-return]

    def lower_bound(self, context: Any, radius: float) -> Array:
        """The least loss of each pair over the candidates whose squared error is within `radius` of the least, (n_states, A)."""
        return np.asarray(self._answer(context)[self.scores <= self.scores.min() + radius].min(axis=0))

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of the squared errors of candidate `fit` along a trajectory."""
        return float(self._gains_once(trajectory)[fit])  # type: ignore[call-overload]

    def _ask(self, context: Any) -> tuple[Array, int]:
        if self.function_class.together is not None:
            stack = np.array(self.together_at(context), np.float64, order="C")
            self.check_stack(stack, context)
            return frozen(stack), stack.nbytes
        stack = np.empty((len(self.function_class), *self.layout.shape))
        for i, model in enumerate(self.function_class.models):
            array = model(context)
            if type(array) is not np.ndarray or array.dtype != FLOAT64:
                array = as_real(array, Place("loss candidate {} at context {!r}", i, context))
            if array.shape != self.layout.shape:
                raise OpoError(
                    f"loss candidate {i} at context {context!r} has shape {array.shape}: "
                    f"(n_states, n_actions) = {self.layout.shape} is needed"
                )
            stack[i] = array
        self.check_stack(stack, context)
        return frozen(stack), stack.nbytes

    def together_at(self, context: Any) -> Array:
        """What one function gives for all candidates, of the right shape, its entries still to be checked."""
        given = self.function_class.together(context)
        shape = (self.scores.size, *self.layout.shape)
        if type(given) is np.ndarray and given.dtype == FLOAT64 and given.shape == shape:
            return given
        array = as_real(given, Place("loss candidates at context {!r}", context))
        if array.shape != shape:
            raise OpoError(f"loss candidates at context {context!r} have shape {array.shape}: (n, n_states, n_actions) = {shape} is needed")
        return array

    def check_stack(self, stack: Array, context: Any) -> None:
        """Raise where a candidate gives a loss outside [0, 1]."""
        if check_unit(stack.reshape(-1), np.empty(1, np.int64)):
            i, s, a = (int(x) for x in np.argwhere(~((stack >= 0) & (stack <= 1)))[0])
            raise OpoError(
                f"loss candidate {i} at context {context!r}: state {s}, action {a}: the loss is {float(stack[i, s, a])!r}; "
                "a number in [0, 1] is needed"
            )

    def _gains(self, trajectory: Trajectory) -> Array:
        errors = self._answer(trajectory.context)[:, trajectory.states[:-1], trajectory.actions] - trajectory.losses
        return np.asarray(np.add.reduce(np.square(errors), axis=1))


class FiniteDynamicsOracle(_FiniteOracle):
    """Log loss over a finite class; `scores` holds the log-likelihoods, -inf if the data are impossible.

    Radius of the plausible set: log(|P| / delta). The likelihood ratio of a candidate to the truth is a nonnegative
    supermartingale; by Ville's inequality and a union bound over P, the truth is in all sets with probability at least
    1 - delta.
    """

    # A probability may exceed 1 within the tolerance for row sums.
    _score_range = -np.inf, float(np.finfo(np.float64).max)

    def _costs(self) -> Array:
        return -self.scores

    def _radius(self) -> float:
        assert self.delta is not None
        return math.log(self.scores.size / self.delta)

    def candidates_at(self, context: Any) -> Array | None:
        """All candidates, shape (m, transitions), flat; None unless they are dense float64 arrays and few."""
        return self._answer(context).lines  # type: ignore[no-any-return]

    def _functions(self, context: Any) -> Sequence[Any]:
        return self._answer(context).models  # type: ignore[no-any-return]

    def transitions(self, fit: Hashable, context: Any) -> Any:
        """Transitions of candidate `fit`."""
        self.check_fit(fit)
        return self._answer(context).models[fit]

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P of candidate `fit` along a trajectory; infinite if the candidate excludes it."""
        return abs(float(self._gains_once(trajectory)[fit]))  # type: ignore[call-overload]

    def _ask(self, context: Any) -> tuple[DynamicsAnswer, int]:
        if self.function_class.together is not None:
            return self._ask_together(context)
        answers, all_plain, size, plain = [], True, 0, 8 * int(self.layout.dense_block[-1])
        for i, model in enumerate(self.function_class.models):
            answer = model(context)
            if is_plain(answer, self.layout):
                size += plain
            else:
                all_plain = False
                answer = self._checked_answer(answer, Place("dynamics candidate {} at context {!r}", i, context))
                size += answer.nbytes if isinstance(answer, Transitions) else sum(map(_bytes, answer))
            answers.append(answer)
        if all_plain and size <= LINES_BYTES:
            lines = np.concatenate([array for answer in answers for array in answer], axis=None).reshape(len(answers), -1)
            return self.in_lines(lines)
        return DynamicsAnswer(answers, all_plain), size

    def in_lines(self, lines: Array) -> tuple[DynamicsAnswer, int]:
        """The answer whose candidates are the lines of an array, and its bytes."""
        return DynamicsAnswer(Lines(frozen(lines), self.layout), True, None, lines), lines.nbytes

    def _ask_together(self, context: Any) -> tuple[DynamicsAnswer, int]:
        stacks, n = self.together_at(context), self.scores.size
        if stacks and 8 * n * int(self.layout.dense_block[-1]) <= LINES_BYTES:
            return self.in_lines(np.concatenate([stack.reshape(n, -1) for stack in stacks], axis=1))
        answers = [list(arrays) for arrays in zip(*stacks, strict=True)] if stacks else [[] for _ in range(n)]
        return DynamicsAnswer(answers, True, stacks), sum(stack.nbytes for stack in stacks)

    def together_at(self, context: Any) -> list[Array]:
        """What one function gives for all candidates, layer by layer, of the right shapes, the entries still to be checked."""
        n, given = self.scores.size, self.function_class.together(context)
        if is_plain(given, self.layout, n):
            return given  # type: ignore[no-any-return]
        where = Place("dynamics candidates at context {!r}", context)
        stacks = layer_list(given, self.layout, where)
        for h, shape in enumerate(self.layout.dense_shapes):
            if type(stacks[h]) is not np.ndarray or stacks[h].dtype != FLOAT64:
                stacks[h] = np.asarray(as_real(stacks[h], Place("{}, layer {}", where, h)), FLOAT64)
            if stacks[h].shape != (n, *shape):
                raise OpoError(f"{where}, layer {h} have shape {stacks[h].shape}: (n, S_h, A, S_h+1) = {(n, *shape)} is needed")
        return stacks

    def _checked_answer(self, answer: Any, where: Any) -> Any:
        """The answer as arrays of the right shapes; their entries are checked when they are used."""
        layout = self.layout
        if isinstance(answer, Transitions):
            if answer.layout != layout:
                raise OpoError(f"{where} belongs to {answer.layout!r}: {layout!r} is needed")
            return answer
        arrays, made = None if sp.issparse(answer) else as_list(answer), dict[int, Any]()
        if arrays is None:
            raise OpoError(f"{where} is a {type(answer).__name__}: H - 1 = {layout.horizon - 1} arrays are needed")
        if len(arrays) != layout.horizon - 1:
            raise OpoError(f"{where} has {len(arrays)} arrays: H - 1 = {layout.horizon - 1} are needed")
        for h, array in enumerate(arrays):
            n, n_next = layout.layer_sizes[h : h + 2]
            shape: tuple[int, ...] = (n * layout.n_actions, n_next)
            if not sp.issparse(array):
                shape = (n, layout.n_actions, n_next)
                if type(array) is not np.ndarray or array.dtype.kind not in "fiub":
                    array = arrays[h] = as_real(array, f"{where}, layer {h}")
            if array.shape != shape:
                raise OpoError(f"{where}, layer {h} has shape {array.shape}: {shape} is needed")
            if sp.issparse(array):
                # An array that occurs in several layers is converted once, so that its block is stored once.
                if id(array) not in made:
                    made[id(array)] = as_csr(array, f"{where}, layer {h}")
                arrays[h] = made[id(array)]
        return arrays

    def _gains(self, trajectory: Trajectory) -> Array:
        p = self._along(trajectory)
        with np.errstate(divide="ignore"):
            gains: Array = np.add.reduce(np.log(p), axis=1)
        if (self.scores + gains).max() == -np.inf:
            raise self._impossible(trajectory, p)
        return gains

    def _along(self, trajectory: Trajectory) -> Array:
        """P(s_{h+1} | s_h, a_h) of each candidate (rows) for h = 1..H-1 (columns)."""
        answers, all_plain, stacks, lines = self._answer(trajectory.context)
        if lines is not None:
            states = trajectory.states
            places = self.layout.row_places[states[:-2] * self.layout.n_actions + trajectory.actions[:-1]]
            p: Array = lines.take(places + (states - self.layout.offsets)[1:-1], axis=1)
        elif stacks is not None:
            local, actions = (trajectory.states - self.layout.offsets).tolist(), trajectory.actions.tolist()
            p = np.empty((len(answers), len(stacks)))
            for h, stack in enumerate(stacks):
                p[:, h] = stack[:, local[h], actions[h], local[h + 1]]
        elif all_plain:
            local, actions = (trajectory.states - self.layout.offsets).tolist(), trajectory.actions.tolist()
            steps = list(zip(local[:-2], actions, local[1:-1], strict=False))
            p = np.array([[array.item(step) for array, step in zip(answer, steps, strict=True)] for answer in answers], dtype=np.float64)
        else:
            p = np.array([along(answer, trajectory, self.layout) for answer in answers])
        if p.size and not (np.minimum.reduce(p, axis=None) >= 0.0 and np.maximum.reduce(p, axis=None) <= 1.0 + 1e-6):
            bad = np.argwhere(~((p >= 0.0) & (p <= 1.0 + 1e-6)))
            i, h = (int(x) for x in bad[0])
            s, a, following = (int(x) for x in (trajectory.states[h], trajectory.actions[h], trajectory.states[h + 1]))
            raise OpoError(
                f"dynamics candidate {i} at context {trajectory.context!r}: layer {h}, state {s}, action {a}: "
                f"the probability of next state {following} is {float(p[i, h])!r}; a number in [0, 1] is needed"
            )
        return np.asarray(p)

    def _impossible(self, trajectory: Trajectory, p: Array) -> OpoError:
        alive = np.isfinite(self.scores)
        h = int(np.flatnonzero((p[alive] == 0).any(axis=0))[0])
        s, a, following = (int(x) for x in (trajectory.states[h], trajectory.actions[h], trajectory.states[h + 1]))
        return OpoError(
            f"the dynamics class cannot explain the data: at context {trajectory.context!r} the transition of layer {h} from state {s} "
            f"under action {a} to state {following} has probability 0 under a candidate that explained all earlier data, and no other "
            "candidate is left (the class does not contain the truth)"
        )


def _bytes(array: Any) -> int:
    return int(array.nbytes) if type(array) is np.ndarray else int(array.data.nbytes)


def along(transitions: Any, trajectory: Trajectory, layout: Layout) -> Array:
    """P(s_{h+1} | s_h, a_h) for h = 1..H-1 from transitions of any form, of which only the visited pairs are read."""
    if isinstance(transitions, Transitions):
        return transitions.along(trajectory.states, trajectory.actions)
    local = (trajectory.states - layout.offsets).tolist()
    p = np.empty(layout.horizon - 1)
    for h, (array, action) in enumerate(zip(transitions, trajectory.actions.tolist(), strict=False)):
        if not sp.issparse(array):
            p[h] = array[local[h], action, local[h + 1]]
            continue
        csr = array if array.format == "csr" else array.tocsr()
        row = local[h] * layout.n_actions + action
        part = slice(csr.indptr[row], csr.indptr[row + 1])
        p[h] = csr.data[part][csr.indices[part] == local[h + 1]].sum()
    return p
