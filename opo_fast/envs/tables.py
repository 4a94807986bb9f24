"""Time-homogeneous decision models with rewards, given as tables, and their conversion to layered models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_array, as_distribution, as_integer, as_items, as_number, as_real, instance, labels_of
from .._support.files import reading
from .._support.state import read_state, write_state
from ..errors import OpoError
from ..model.layered import LayeredMDP
from ..model.layout import as_mask_2d
from ..model.names import unrolled
from ..model.sparse import as_csr
from .environment import Environment, PerContext
from .rewards import rewards_to_losses

__all__ = ["TabularMDP", "expected_rewards"]

Array = npt.NDArray[Any]
_FORMAT = "opo_fast.TabularMDP"


class TabularMDP:
    """A finite, time-homogeneous decision model with rewards: the common form of all adapters. Validated, immutable.

    Parameters
    ----------
    P : array_like (S, A, S) or SciPy sparse array (S * A, S)
        Transition probabilities; row ``s * A + a`` of the sparse form is the pair (s, a). Duplicate entries add up.
    rewards : array_like
        (S, A): expected rewards. (S,): the same for every action. (S, A, S), or sparse (S * A, S): rewards of
        (s, a, s'), which are averaged over s'.
    start : int or array_like, shape (S,)
        A state, or a distribution.
    action_mask : array_like of bool, shape (S, A), optional
        Allowed pairs. Rows and rewards of all others are ignored.
    terminals : sequence of int
        States in which the process stays with reward 0. Their rows may be all zero; exits are an error.
    reward_range : (low, high), optional
        Smallest and largest reward of a step, for the map to losses. Default: that of the expected rewards.
    state_names, action_names : sequence of str, optional
    name, source : str

    Attributes
    ----------
    P : ndarray (S, A, S) or csr_array (S * A, S)
    rewards : ndarray, shape (S, A)
        Expected rewards; 0 at masked pairs.
    start : int or ndarray
    action_mask : ndarray of bool, shape (S, A), or None
    reward_map : RewardMap

    Raises
    ------
    OpoError
        On anything invalid, which is named with state, action and value. Nothing is renormalised.
    """

    def __init__(
        self,
        P: Any,
        rewards: Any,
        start: Any = 0,
        action_mask: npt.ArrayLike | None = None,
        *,
        terminals: Sequence[int] = (),
        reward_range: tuple[float, float] | None = None,
        state_names: Sequence[str] | None = None,
        action_names: Sequence[str] | None = None,
        name: str = "table",
        source: str = "",
    ) -> None:
        sparse = sp.issparse(P)
        array = as_csr(P, "P") if sparse else as_real(P, "P")
        self.n_states, self.n_actions = _sizes(array, sparse)
        self.name, self.source = str(name), str(source)
        shape = (self.n_states, self.n_actions)
        mask = np.ones(shape, bool) if action_mask is None else as_mask_2d(action_mask, shape, "action_mask")
        ends = np.array(
            [as_integer(state, "terminals", least=0, most=self.n_states - 1) for state in as_items(terminals, "terminals", "states")],
            np.int64,
        )
        flat = array if sparse else array.reshape(-1, self.n_states)
        check_rows(flat, mask, ends)
        reduced = np.array(_reduced(rewards, flat, shape), np.float64)
        reduced[~mask] = 0.0
        if ends.size:
            live = np.argwhere(reduced[ends] != 0.0)
            if live.size:
                state, action = int(ends[live[0, 0]]), int(live[0, 1])
                raise OpoError(f"terminals: state {state}, action {action} has reward {float(reduced[state, action])!r}; 0 is needed")
            flat = _closed(flat, ends, self.n_actions)
        table: Any = flat.copy() if sparse else np.array(flat, order="C").reshape(*shape, self.n_states)
        self.P = table
        self.rewards = reduced
        self.action_mask = None if mask.all() else mask
        stored: list[Any] = [table.data, table.indices, table.indptr] if sparse else [table]
        for each in (*stored, reduced, mask):
            each.flags.writeable = False
        self.reward_map = rewards_to_losses(reduced, reward_range, mask).map
        self.start = _start(start, self.n_states)
        self.state_names = _names(state_names, self.n_states, "state_names")
        self.action_names = _names(action_names, self.n_actions, "action_names")

    # -- into the layered form -------------------------------------------------------------------------------------

    @property
    def losses(self) -> Array:
        """Losses (S, A) of the expected rewards; 1 for masked pairs."""
        return rewards_to_losses(self.rewards, (self.reward_map.low, self.reward_map.high), self.action_mask).losses

    def layered(self, horizon: int, *, dtype: npt.DTypeLike = np.float64) -> LayeredMDP:
        """The layered model of `horizon` steps (see `LayeredMDP.stationary`), with an extra layer if `start` is a distribution."""
        return LayeredMDP.stationary(self.P, self.losses, horizon, self.start, self.action_mask, dtype=dtype)

    def reward_value(self, loss_value: npt.ArrayLike, horizon: int) -> Array:
        """A value of `layered(horizon)` (a sum of losses) as a sum of rewards."""
        return self.reward_map.value(loss_value, horizon)

    def environment(self, horizon: int) -> Environment:
        """An environment with one context, whose classes contain only the truth."""
        mdp = self.layered(horizon)
        return Environment(
            mdp.layout,
            [PerContext([mdp.losses], "truth")],
            [PerContext([mdp.transitions], "truth")],
            contexts=[0],
            labels=[self.name],
            action_mask=mdp.action_mask,
            reward_map=self.reward_map,
            steps=horizon,
            state_names=unrolled(self.state_names, mdp.layout, self.start),
            action_names=self.action_names,
            start_layer=mdp.layout.horizon > horizon,
            name=self.name,
            source=self.source,
        )

    def discounted(self, discount: float) -> TabularMDP:
        """The model with an additional last state of reward 0, to which every step leads with probability 1 - discount.

        Its undiscounted values are the discounted values of this model.
        """
        discount = as_number(discount, "discount", most=1.0)
        n, a = self.n_states, self.n_actions
        csr = sp.csr_array(self.P.reshape(n * a, n)) if isinstance(self.P, np.ndarray) else self.P
        out = sp.csr_array(np.full((n * a, 1), 1.0 - discount))
        last = sp.csr_array((np.ones(a), (np.arange(a), np.full(a, n))), shape=(a, n + 1))
        P = sp.csr_array(sp.vstack([sp.hstack([csr * discount, out]), last]))
        mask = None if self.action_mask is None else np.concatenate([self.action_mask, np.ones((1, a), bool)])
        return TabularMDP(
            P.toarray().reshape(n + 1, a, n + 1) if isinstance(self.P, np.ndarray) else P,
            np.concatenate([self.rewards, np.zeros((1, a))]),
            self.start if isinstance(self.start, int) else np.append(self.start, 0.0),
            mask,
            reward_range=(min(0.0, self.reward_map.low), max(0.0, self.reward_map.high)),
            state_names=None if self.state_names is None else [*self.state_names, "end"],
            action_names=self.action_names,
            name=self.name,
            source=self.source,
        )

    def sparse(self) -> TabularMDP:
        """The same model with CSR transitions."""
        return self._with(sp.csr_array(self.P.reshape(-1, self.n_states)) if isinstance(self.P, np.ndarray) else self.P)

    def dense(self) -> TabularMDP:
        """The same model with a dense array of transitions."""
        shape = (self.n_states, self.n_actions, self.n_states)
        return self._with(self.P if isinstance(self.P, np.ndarray) else self.P.toarray().reshape(shape))

    def _with(self, P: Any) -> TabularMDP:
        return TabularMDP(
            P,
            self.rewards,
            self.start,
            self.action_mask,
            reward_range=(self.reward_map.low, self.reward_map.high),
            state_names=self.state_names,
            action_names=self.action_names,
            name=self.name,
            source=self.source,
        )

    @classmethod
    def from_layered(cls, mdp: LayeredMDP, *, name: str = "table", source: str = "") -> TabularMDP:
        """The time-homogeneous model from which a layered one was unrolled, with rewards -loss.

        Raises
        ------
        OpoError
            If there is none: layers after the first differ in size, transitions, losses or mask, or the first layer is
            neither one of the states nor a start distribution of loss 0. At least three layers are needed to tell.
        """
        instance(mdp, "mdp", LayeredMDP)
        layout = mdp.layout
        sizes = layout.layer_sizes
        if layout.horizon < 3:
            raise OpoError(f"mdp has {layout.horizon} layers: at least 3 are needed to tell whether it is stationary")
        n, a = sizes[1], layout.n_actions
        arrays = mdp.transitions.arrays()
        mask = np.ones(layout.shape, bool) if mdp.action_mask is None else mdp.action_mask
        base = layout.layer(1)
        for h in range(1, layout.horizon):
            here = layout.layer(h)
            if sizes[h] != n:
                raise OpoError(f"mdp is not stationary: layer {h} has {sizes[h]} states, but layer 1 has {n}")
            for what, values in (("mask", mask), ("losses", mdp.losses)):
                bad = np.argwhere((values[here] != values[base]) & mask[base])
                if bad.size:
                    raise OpoError(
                        f"mdp is not stationary: the {what} of layer {h} differ at position {int(bad[0, 0])}, action {int(bad[0, 1])}"
                    )
            if h < layout.horizon - 1 and not _equal(arrays[h], arrays[1]):
                raise OpoError(f"mdp is not stationary: the transitions of layer {h} differ from those of layer 1")
        P = arrays[1]
        first = arrays[0].toarray() if sp.issparse(arrays[0]) else arrays[0][0]
        allowed = mask[0]
        rows = first[allowed]
        start: Any = None
        flat = P if sp.issparse(P) else P.reshape(n * a, n)
        same = (mask[base] == allowed).all(axis=1) & ((mdp.losses[base] == mdp.losses[0]) | ~allowed).all(axis=1)
        for s in np.flatnonzero(same):
            block = flat[s * a : (s + 1) * a]
            block = block.toarray() if sp.issparse(block) else block
            if np.array_equal(block[allowed], rows):
                start = int(s)
                break
        if start is None and (rows == rows[0]).all() and (mdp.losses[0][allowed] == 0).all():
            start = rows[0].astype(np.float64)
        if start is None:
            raise OpoError("mdp is not stationary: layer 0 is neither one of the states nor a start distribution of loss 0")
        return cls(P, -mdp.losses[base], start, mask[base], reward_range=(-1.0, 0.0), name=name, source=source)

    # -- files -------------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path` as npz, without pickle."""
        meta = {"format": _FORMAT, "version": 2, "name": self.name, "source": self.source, "n_actions": self.n_actions}
        meta["reward_range"] = [self.reward_map.low, self.reward_map.high]
        arrays: dict[str, Any] = {"rewards": self.rewards, "start": np.asarray(self.start)}
        if isinstance(self.P, np.ndarray):
            arrays["P"] = self.P
        else:
            arrays.update(data=self.P.data, indices=self.P.indices, indptr=self.P.indptr)
        if self.action_mask is not None:
            arrays["action_mask"] = self.action_mask
        for key, values in (("state_names", self.state_names), ("action_names", self.action_names)):
            if values is not None:
                arrays[key] = np.array(values, dtype=np.str_)
        write_state(path, {**meta, **arrays})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TabularMDP:
        """Read a model that `save` wrote; it is validated like any other model."""
        with reading(path, "a model that TabularMDP.save wrote"):
            stored = read_state(path, "a model that TabularMDP.save wrote")
            if (stored["format"], stored["version"]) != (_FORMAT, 2):
                raise ValueError(f"format {stored['format']!r}, version {stored['version']!r}")
            rewards, start = stored["rewards"], stored["start"]
            if "P" in stored:
                P: Any = stored["P"]
            else:
                n = rewards.shape[0]
                P = sp.csr_array((stored["data"], stored["indices"], stored["indptr"]), shape=(n * int(stored["n_actions"]), n))
            low, high = stored["reward_range"]
            return cls(
                P,
                rewards,
                int(start) if start.ndim == 0 else start,
                stored.get("action_mask"),
                reward_range=(low, high),
                state_names=stored["state_names"].tolist() if "state_names" in stored else None,
                action_names=stored["action_names"].tolist() if "action_names" in stored else None,
                name=stored["name"],
                source=stored["source"],
            )

    def __repr__(self) -> str:
        kind = "dense" if isinstance(self.P, np.ndarray) else f"CSR, {self.P.nnz} transitions"
        return f"<TabularMDP {self.name!r}: {self.n_states} states, {self.n_actions} actions, {kind}>"


def expected_rewards(P: Any, rewards: Any) -> Array:
    """Expected rewards E[r | s, a] = sum over s' of P(s' | s, a) r(s, a, s').

    Parameters
    ----------
    P : array_like (S, A, S) or SciPy sparse array (S * A, S)
    rewards : array_like (S, A, S) or SciPy sparse array (S * A, S)
        Rewards of transitions with probability 0 are ignored, even if they are not finite.

    Returns
    -------
    ndarray, shape (S, A)
    """
    sparse = sp.issparse(P)
    array = as_csr(P, "P") if sparse else as_real(P, "P")
    shape = _sizes(array, sparse)
    return _reduced(rewards, array if sparse else array.reshape(-1, shape[0]), shape)


def check_rows(flat: Any, mask: Array, ends: Array | None = None) -> None:
    """Refuse probabilities that are negative or not finite, and rows of allowed pairs that do not sum to 1; the error names the place."""
    n_actions = mask.shape[1]
    sparse = sp.issparse(flat)
    values = flat.data if sparse else flat
    wrong = ~(np.isfinite(values) & (values >= 0))
    if wrong.any():
        for place in np.argwhere(wrong):
            row = int(np.searchsorted(flat.indptr, place[0], side="right")) - 1 if sparse else int(place[0])
            column = int(flat.indices[place[0]]) if sparse else int(place[1])
            state, action = divmod(row, n_actions)
            if mask[state, action]:
                value = float(values[tuple(place)])
                raise OpoError(
                    f"P: state {state}, action {action}: the probability of next state {column} is {value!r}; "
                    "a finite number of at least 0 is needed"
                )
    total = np.asarray(flat.sum(axis=1, dtype=np.float64)).ravel().reshape(mask.shape)
    wrong = ~(np.abs(total - 1.0) <= (1e-6 if flat.dtype == np.float32 else 1e-8)) & mask
    if ends is not None and ends.size:
        wrong[ends] &= total[ends] != 0.0
        for state in ends.tolist():
            for action in np.flatnonzero(mask[state]):
                row = flat[[state * n_actions + int(action)]]
                row = row.toarray().ravel() if sparse else row.ravel()
                exits = np.flatnonzero(row > 0)
                exits = exits[exits != state]
                if exits.size:
                    raise OpoError(
                        f"terminals: state {state}, action {int(action)} leads to state {int(exits[0])} with probability "
                        f"{float(row[exits[0]])!r}; a terminal state must not have exits"
                    )
    if wrong.any():
        state, action = (int(i) for i in np.argwhere(wrong)[0])
        if total[state, action] == 0.0:
            raise OpoError(
                f"P: state {state}, action {action}: the row is all zero; mask the action if it is not available, "
                "or name the state in terminals"
            )
        raise OpoError(
            f"P: state {state}, action {action}: the row sums to {float(total[state, action])!r}; 1 is needed (rows are not renormalised)"
        )


def _sizes(array: Any, sparse: bool) -> tuple[int, int]:
    if sparse:
        rows, n = array.shape
        if n == 0 or rows == 0 or rows % n:
            raise OpoError(f"P has shape {array.shape}: (S * A, S) is needed")
        return n, rows // n
    if array.ndim != 3 or array.shape[0] != array.shape[2] or 0 in array.shape:
        raise OpoError(f"P has shape {array.shape}: (S, A, S) is needed")
    return array.shape[0], array.shape[1]


def _reduced(rewards: Any, flat: Any, shape: tuple[int, int]) -> Array:
    n, a = shape
    if sp.issparse(rewards):
        if rewards.shape != (n * a, n):
            raise OpoError(f"rewards has shape {rewards.shape}: (S * A, S) = {(n * a, n)} is needed")
        matrix = as_csr(rewards, "rewards")
        product = sp.csr_array(flat).multiply(matrix) if not sp.issparse(flat) else flat.multiply(matrix)
        return np.asarray(product.sum(axis=1)).reshape(shape)
    array = as_real(rewards, "rewards")
    if array.shape == (n, a):
        return np.asarray(array, np.float64)
    if array.shape == (n,):
        return np.repeat(np.asarray(array, np.float64)[:, None], a, axis=1)
    if array.shape == (n, a, n):
        table = array.reshape(n * a, n)
        if sp.issparse(flat):
            rows = np.repeat(np.arange(n * a), np.diff(flat.indptr))
            live = flat.data != 0
            return np.bincount(rows[live], flat.data[live] * table[rows, flat.indices][live], n * a).reshape(shape)
        return np.asarray(np.where(flat != 0, flat * np.where(flat != 0, table, 0.0), 0.0).sum(axis=1)).reshape(shape)
    raise OpoError(f"rewards has shape {array.shape}: (S, A) = {shape}, (S,) or (S, A, S) is needed")


def _closed(flat: Any, ends: Array, n_actions: int) -> Any:
    """Transitions in which terminal states lead to themselves."""
    rows = (ends[:, None] * n_actions + np.arange(n_actions)).ravel()
    target = np.repeat(ends, n_actions)
    if sp.issparse(flat):
        keep = np.ones(flat.shape[0])
        keep[rows] = 0.0
        result = sp.csr_array(sp.diags_array(keep) @ flat + sp.csr_array((np.ones(rows.size), (rows, target)), shape=flat.shape))
        result.sort_indices()
        return result
    flat = flat.copy()
    flat[rows] = 0.0
    flat[rows, target] = 1.0
    return flat


def _start(start: Any, n_states: int) -> Any:
    if as_array(start, "start").ndim == 0:
        return as_integer(start, "start", least=0, most=n_states - 1)
    array = np.array(as_real(start, "start"), np.float64)
    as_distribution(array, n_states, "start", "state")
    likely = np.flatnonzero(array)
    if likely.size == 1 and array[likely[0]] == 1.0:
        return int(likely[0])
    array.flags.writeable = False
    return array


def _names(values: Sequence[str] | None, n: int, what: str) -> tuple[str, ...] | None:
    if values is None:
        return None
    return labels_of(values, n, what, what.partition("_")[0] + "s")


def _equal(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if sp.issparse(a):
        return bool(a.shape == b.shape and (a != b).nnz == 0)
    return bool(np.array_equal(a, b))
