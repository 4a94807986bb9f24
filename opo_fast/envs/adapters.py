"""Adapters: tables of other libraries as a `TabularMDP`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_array, as_integer, as_items, as_real, pair_of, shown
from ..errors import OpoError, install
from ..model.sparse import as_csr
from .tables import TabularMDP, expected_rewards

__all__ = ["from_gymnasium", "from_mdptoolbox", "from_pairs", "from_quantecon"]

Array = npt.NDArray[Any]


def from_gymnasium(
    env: Any, *, start: Any = None, reward_range: tuple[float, float] | None = None, name: str | None = None, **options: Any
) -> TabularMDP:
    """A Gymnasium toy-text environment, or its table, as a `TabularMDP`.

    Transitions marked `terminated` lead to an added last state of reward 0, whatever the table says about the state that
    they name: that state may have outgoing moves that no episode ever takes. Outcomes with the same next state are
    added; outcomes of probability 0 are dropped.

    Parameters
    ----------
    env : str, gymnasium environment, or mapping
        An id such as "FrozenLake-v1"; an environment with ``P`` and ``initial_state_distrib``; or a table
        ``P[state][action] = [(probability, next_state, reward, terminated), ...]``.
    start : int or array_like, shape (S,), optional
        Start state or distribution. Default: that of the environment, or state 0 for a table.
    reward_range : (low, high), optional
        Default: smallest and largest reward of the table, including 0 if episodes can end.
    name : str, optional
    **options
        Options of `gymnasium.make`, for an id.

    Returns
    -------
    TabularMDP
        States as in the table and, if an outcome is terminated, an additional state "end".

    Raises
    ------
    OpoError
        On a missing state or action, an outcome that is not such a tuple, a next state that does not exist, or a row that
        does not sum to 1; the error names state and action.
    """
    if isinstance(env, str):
        name = env if name is None else name
        env = _made(env, options)
    elif options:
        raise OpoError(f"options {', '.join(options)} are only for an environment given by its id: leave them out")
    table, source = env, "table"
    if not isinstance(env, (Mapping, Sequence)):
        bare = getattr(env, "unwrapped", env)
        table, source = getattr(bare, "P", None), "Gymnasium"
        if table is None:
            raise OpoError(f"env is a {type(bare).__name__} without a table P: a toy-text environment is needed")
        if start is None:
            start = getattr(bare, "initial_state_distrib", None)
    rows = _rows(table, "P")
    n_actions = len(_rows(rows[0], "P: state 0"))
    n = len(rows)
    outcomes: list[tuple[int, float, int, float, bool]] = []
    for s, actions in enumerate(rows):
        for a, row in enumerate(_actions(actions, s, n_actions)):
            outcomes.extend((s * n_actions + a, *outcome) for outcome in _outcomes(row, s, a, n))
    pair, p, target, reward, done = (np.array(column) for column in zip(*outcomes, strict=True))
    total = np.bincount(pair, p, n * n_actions)
    bad = np.flatnonzero(~(np.abs(total - 1.0) <= 1e-8))
    if bad.size:
        s, a = divmod(int(bad[0]), n_actions)
        raise OpoError(f"P: state {s}, action {a}: the probabilities sum to {float(total[bad[0]])!r}; 1 is needed")
    expected = np.bincount(pair, p * reward, n * n_actions).reshape(n, n_actions)
    live = p > 0
    ends = bool((done & live).any())
    m = n + ends
    columns = np.where(done, n, target)
    if ends:
        loops = np.arange(n_actions) + n * n_actions
        pair, columns, p = np.append(pair, loops), np.append(columns, np.full(n_actions, n)), np.append(p, np.ones(n_actions))
        live = np.append(live, np.ones(n_actions, bool))
        expected = np.concatenate([expected, np.zeros((1, n_actions))])
    P = sp.csr_array((p[live], (pair[live], columns[live])), shape=(m * n_actions, m))
    if reward_range is None:
        seen = [*reward[p[: reward.size] > 0].tolist(), *([0.0] if ends else [])]
        reward_range = (min(seen), max(seen))
    if start is None:
        start = 0
    elif ends and as_array(start, "start").shape == (n,):
        start = np.append(as_real(start, "start"), 0.0)
    names = [str(s) for s in range(n)] + (["end"] if ends else [])
    return TabularMDP(
        P,
        expected,
        start,
        reward_range=_spanning(reward_range, expected),
        state_names=names,
        name=source if name is None else name,
        source=source,
    )


def _made(env: str, options: dict[str, Any]) -> Any:
    """The environment of a Gymnasium id."""
    try:
        import gymnasium
    except ImportError:
        raise OpoError(f"Gymnasium environments need the package gymnasium: {install('gym')}") from None
    try:
        return gymnasium.make(env, **options)
    except (gymnasium.error.Error, TypeError, KeyError, ValueError, AssertionError) as error:
        raise OpoError(f"env is {shown(env)}: Gymnasium cannot make it ({error})") from None


def _spanning(reward_range: tuple[float, float], expected: Array) -> tuple[float, float]:
    """The range, widened by no more than the rounding of expected rewards."""
    low, high = pair_of(reward_range, "reward_range", "(low, high)")
    slack = 1e-12 * max(1.0, abs(low), abs(high))
    least, most = float(expected.min()), float(expected.max())
    return (least if low - slack <= least < low else low, most if high < most <= high + slack else high)


def _rows(table: Any, where: str) -> list[Any]:
    """The entries 0..n-1 of a mapping or sequence."""
    if isinstance(table, Mapping):
        missing = [key for key in range(len(table)) if key not in table]
        if missing:
            raise OpoError(f"{where}: entry {missing[0]} is missing; entries 0 to {len(table) - 1} are needed")
        result = [table[key] for key in range(len(table))]
    elif isinstance(table, Sequence) and not isinstance(table, (str, bytes)):
        result = list(table)
    else:
        raise OpoError(f"{where} is a {type(table).__name__}: a mapping or a sequence is needed")
    if not result:
        raise OpoError(f"{where} is empty: at least one entry is needed")
    return result


def _actions(actions: Any, state: int, n_actions: int) -> list[Any]:
    if isinstance(actions, Mapping):
        for a in range(n_actions):
            if a not in actions:
                raise OpoError(f"P: state {state}, action {a} is missing; every state needs the {n_actions} actions of state 0")
    result = _rows(actions, f"P: state {state}")
    if len(result) != n_actions:
        raise OpoError(f"P: state {state} has {len(result)} actions; every state needs the {n_actions} actions of state 0")
    return result


def _outcomes(row: Any, state: int, action: int, n_states: int) -> list[tuple[float, int, float, bool]]:
    where = f"P: state {state}, action {action}"
    if not isinstance(row, Sequence) or isinstance(row, (str, bytes)) or not row:
        raise OpoError(f"{where} is {row!r}: a list of (probability, next_state, reward, terminated) is needed")
    result = []
    for outcome in row:
        try:
            p, target, reward, done = outcome
            p, reward, done = float(p), float(reward), bool(done)
        except (TypeError, ValueError):
            raise OpoError(f"{where}: {outcome!r} is not (probability, next_state, reward, terminated)") from None
        if not 0.0 <= p < np.inf:
            raise OpoError(f"{where}: the probability of next state {target} is {p!r}; a finite number of at least 0 is needed")
        if not np.isfinite(reward):
            raise OpoError(f"{where}: the reward of next state {target} is {reward!r}; a finite number is needed")
        result.append((p, as_integer(target, f"{where}: next state", least=0, most=n_states - 1), reward, done))
    return result


def from_mdptoolbox(
    P: Any, R: Any, *, start: Any = 0, reward_range: tuple[float, float] | None = None, name: str = "mdptoolbox", source: str = "mdptoolbox"
) -> TabularMDP:
    """The formats of pymdptoolbox as a `TabularMDP`.

    Parameters
    ----------
    P : array_like (A, S, S), or sequence of A arrays or SciPy sparse matrices (S, S)
        Transition probabilities; sparse ones stay sparse.
    R : array_like (S,), (S, A) or (A, S, S), or sequence of A vectors (S,), arrays or sparse matrices (S, S)
        Rewards.
    start : int or array_like, shape (S,)
    reward_range, name, source
        See `TabularMDP`. For a discount, use `TabularMDP.discounted`.

    Returns
    -------
    TabularMDP

    Raises
    ------
    OpoError
        On wrong shapes, and on whatever `TabularMDP` refuses.
    """
    blocks = _stack(P, "P")
    n_actions, n = len(blocks), blocks[0].shape[0]
    flat = _interleaved(blocks)
    rewards: Any
    if sp.issparse(R):
        raise OpoError("R is a single sparse matrix: one per action is needed")
    listed = not isinstance(R, np.ndarray) or R.dtype == object
    if listed:
        R = as_items(R, "R", "rewards")
    if listed and any(sp.issparse(entry) or as_array(entry, "R").ndim == 2 for entry in R):
        rewards = expected_rewards(flat, _interleaved(_matching(_stack(R, "R"), n_actions, n)))
    else:
        array = as_real(R, "R")
        if listed and array.shape == (n_actions, n) and n_actions == n:
            raise OpoError(
                f"R is a list of {n} vectors of {n} numbers, one for each action or one for each state: "
                "give an array of shape (S, A) (np.array(R).T for vectors per action)"
            )
        if array.ndim == 3:
            rewards = expected_rewards(flat, _interleaved(_matching(list(array), n_actions, n)))
        elif array.shape in ((n,), (n, n_actions)):
            rewards = array
        elif listed and array.shape == (n_actions, n):
            rewards = array.T
        else:
            raise OpoError(
                f"R has shape {array.shape}: (S,) = {(n,)}, (S, A) = {(n, n_actions)} or (A, S, S) = {(n_actions, n, n)} is needed"
            )
    return TabularMDP(flat, rewards, start, reward_range=reward_range, name=name, source=source)


def _stack(P: Any, name: str) -> list[Any]:
    if sp.issparse(P):
        raise OpoError(f"{name} is a single sparse matrix: one per action is needed")
    blocks = as_items(P, name, "matrices")
    if not blocks:
        raise OpoError(f"{name} is empty: one matrix per action is needed")
    blocks = [as_csr(block, f"{name}[{a}]") if sp.issparse(block) else as_real(block, f"{name}[{a}]") for a, block in enumerate(blocks)]
    for a, block in enumerate(blocks):
        if block.ndim != 2 or block.shape[0] != block.shape[1] or block.shape != blocks[0].shape or 0 in block.shape:
            raise OpoError(f"{name}[{a}] has shape {block.shape}: (S, S), the same for all actions, is needed")
    return blocks


def _matching(blocks: list[Any], n_actions: int, n: int) -> list[Any]:
    if len(blocks) != n_actions or blocks[0].shape != (n, n):
        shape = (len(blocks), *blocks[0].shape)
        raise OpoError(f"R has shape {shape}: (A, S, S) = {(n_actions, n, n)} is needed")
    return blocks


def _interleaved(blocks: list[Any]) -> Any:
    """Matrices (S, S), one per action, as one table: dense (S, A, S), or CSR (S * A, S)."""
    if not any(sp.issparse(block) for block in blocks):
        return np.stack(blocks, axis=1)
    n, a = blocks[0].shape[0], len(blocks)
    order = (np.arange(n * a) % a) * n + np.arange(n * a) // a
    return sp.csr_array(sp.vstack([sp.csr_array(block) for block in blocks]).tocsr()[order])


MOST_PAIRS, PAIRS_PER_ENTRY = 1 << 24, 1000
"""Limits on S * A of the table: a constant, and a multiple of the number of listed pairs."""


def from_pairs(
    R: npt.ArrayLike,
    Q: Any,
    s_indices: npt.ArrayLike,
    a_indices: npt.ArrayLike,
    *,
    start: Any = 0,
    reward_range: tuple[float, float] | None = None,
    name: str = "pairs",
    source: str = "",
) -> TabularMDP:
    """A list of state-action pairs as a `TabularMDP`; pairs that are not listed are masked.

    Parameters
    ----------
    R : array_like, shape (L,)
        Rewards.
    Q : array_like or SciPy sparse array, shape (L, S)
        Transition probabilities.
    s_indices, a_indices : array_like of int, shape (L,)
        State and action of each pair, in any order, each pair once.
    start, reward_range, name, source
        See `TabularMDP`.

    Raises
    ------
    OpoError
        On a pair that is listed twice, an index out of range, a state without a pair, or wrong shapes.
    """
    states, actions = (_indices(values, what) for values, what in ((s_indices, "s_indices"), (a_indices, "a_indices")))
    r = as_real(R, "R")
    count = states.size
    sparse = sp.issparse(Q)
    matrix = as_csr(Q, "Q") if sparse else as_real(Q, "Q")
    if r.shape != (count,) or actions.shape != (count,) or matrix.ndim != 2 or matrix.shape[0] != count or not matrix.size:
        raise OpoError(
            f"R, Q, s_indices, a_indices have shapes {r.shape}, {matrix.shape}, {states.shape}, {actions.shape}: "
            "(L,), (L, S), (L,), (L,) are needed"
        )
    n, a = matrix.shape[1], int(actions.max()) + 1
    wrong = np.flatnonzero((states < 0) | (states >= n) | (actions < 0))
    if wrong.size:
        i = int(wrong[0])
        raise OpoError(
            f"pair {i} is state {int(states[i])}, action {int(actions[i])}: a state from 0 to {n - 1} and an action from 0 are needed"
        )
    if n * a > max(MOST_PAIRS, PAIRS_PER_ENTRY * count):
        raise OpoError(f"{count} pairs name {n} states and {a} actions: states and actions numbered from 0 without large gaps are needed")
    pair = states * a + actions
    order = np.argsort(pair, kind="stable")
    twice = np.flatnonzero(np.diff(pair[order]) == 0)
    if twice.size:
        i, j = (int(x) for x in order[twice[0] : twice[0] + 2])
        raise OpoError(f"state {int(states[i])}, action {int(actions[i])} is listed twice, as pairs {i} and {j}; once is needed")
    mask = np.zeros((n, a), bool)
    mask[states, actions] = True
    empty = np.flatnonzero(~mask.any(axis=1))
    if empty.size:
        first_ten = ", ".join(map(str, empty[:10]))
        raise OpoError(f"states without an action: {first_ten}{', ...' if empty.size > 10 else ''}; each needs at least one")
    rewards = np.zeros((n, a))
    rewards[states, actions] = r
    P: Any
    if sparse:
        place = sp.csr_array((np.ones(count), (pair, np.arange(count))), shape=(n * a, count))
        P = sp.csr_array(place @ matrix)
    else:
        P = np.zeros((n, a, n))
        P[states, actions] = matrix
    return TabularMDP(P, rewards, start, mask, reward_range=reward_range, name=name, source=source)


def _indices(values: npt.ArrayLike, name: str) -> Array:
    array = as_array(values, name)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise OpoError(f"{name} has shape {array.shape} and dtype {array.dtype}: a vector of whole numbers is needed")
    return array.astype(np.int64)


def from_quantecon(ddp: Any, *, start: Any = 0, reward_range: tuple[float, float] | None = None, name: str = "quantecon") -> TabularMDP:
    """A `quantecon.markov.DiscreteDP` as a `TabularMDP`.

    A reward of -inf in the product form means that the action is not available. A discount factor below 1 becomes a transition
    to an added state of reward 0 (`TabularMDP.discounted`).

    Parameters
    ----------
    ddp : quantecon.markov.DiscreteDP
        In product form (R (S, A), Q (S, A, S)) or in the form of state-action pairs.
    start : int or array_like, shape (S,)
    reward_range, name
        See `TabularMDP`.
    """
    for attribute in ("R", "Q", "beta"):
        if not hasattr(ddp, attribute):
            raise OpoError(f"ddp is a {type(ddp).__name__} without {attribute}: a quantecon DiscreteDP is needed")
    source = "quantecon DiscreteDP"
    if getattr(ddp, "s_indices", None) is not None:
        table = from_pairs(ddp.R, ddp.Q, ddp.s_indices, ddp.a_indices, start=start, reward_range=reward_range, name=name, source=source)
    else:
        r = as_real(ddp.R, "R")
        mask = ~np.isneginf(r)
        table = TabularMDP(ddp.Q, np.where(mask, r, 0.0), start, mask, reward_range=reward_range, name=name, source=source)
    return table if ddp.beta == 1.0 else table.discounted(float(ddp.beta))
