"""Mixtures of known dynamics with unknown weights: convex log loss by Newton's method on simplices, with a certified gap."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy
import scipy.sparse as sp

from .._support.checks import MANY, as_distribution, as_integer, as_items, as_number, as_real, frozen
from .._support.fields import Fields
from .._support.lru import LRU
from .._support.numbers import log_loss
from ..errors import OpoError
from ..model.contextual import Trajectory, context_key
from ..model.conversion import as_transitions
from ..model.layered import LayeredMDP
from ..model.layout import Layout
from ..model.transitions import Transitions
from .parametric import CACHE_BYTES, Batch, cover_size, grouped
from .plausible import QuadraticSets
from .support import Support

__all__ = ["MixtureDynamicsClass", "MixtureDynamicsOracle", "mixture_weights"]

Array = npt.NDArray[Any]


class MixtureDynamicsClass:
    """P_c = sum_j w_j(c) P_j with known dynamics P_j and unknown weights on the simplex, linear in the context.

    w(c) = sum_i m_i(c) W_i, where m(c) is a known distribution over groups and each row W_i of the unknown matrix W lies
    on the simplex. With one group all contexts have the same weights; with a group for each context they are free.

    Parameters
    ----------
    bases : sequence
        The dynamics P_j: transitions as `opo_fast.LayeredMDP` takes them, a `Transitions` or `LayeredMDP`, or a callable
        ``base(context)`` that returns one of these.
    groups : int
        Number of groups.
    memberships : callable, optional
        ``memberships(context)`` returns m(c), shape (groups,). Default: context i is group i, for contexts 0..groups-1.
    size : float, optional
        |P| in the theory's parameters. Default: that of a cover of radius 0.01, at most 1e150.
    """

    def __init__(
        self, bases: Sequence[Any], groups: int = 1, memberships: Callable[[Any], Any] | None = None, *, size: float | None = None
    ) -> None:
        self.bases = tuple(as_items(bases, "bases", "dynamics", some=True))
        self.groups = as_integer(groups, "groups", least=1, most=MANY)
        if memberships is not None and not callable(memberships):
            raise OpoError(f"memberships is a {type(memberships).__name__}: a callable memberships(context) is needed")
        self.memberships = memberships
        self.size = cover_size(self.groups * (len(self.bases) - 1), size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> MixtureDynamicsOracle:
        """A log-loss oracle without data."""
        return MixtureDynamicsOracle(self, layout, action_mask)


class MixtureDynamicsOracle(QuadraticSets):
    """Log loss over mixture weights. Without data all weights are equal.

    Each fit is certified: `gap(fit)` bounds the difference between its log-likelihood and the maximum. Memory and time
    grow with the number of distinct rows of base probabilities in the data, not with the number of episodes.

    Plausible set: the likelihood-ratio set in its quadratic form (`opo_fast.oracles.plausible.QuadraticSets`) over the
    differences of weights, which sum to 0 in each group, d = groups * (number of bases - 1). If a fit is on the boundary of a
    simplex, the gradient decreases l inside, so leaving it out only makes the set larger. Two weight vectors of a group are
    at most sqrt(2) apart: |W - fit|^2 <= 2 groups is added to the quadratic form and bounds what the data do not determine.
    """

    def __init__(self, function_class: MixtureDynamicsClass, layout: Layout, action_mask: Array | None = None) -> None:
        super().__init__(layout, action_mask)
        self.function_class = function_class
        self.shape = function_class.groups, len(function_class.bases)
        fixed = [base if callable(base) else self._valid(base, j, "") for j, base in enumerate(function_class.bases)]
        self._bases = fixed
        self._all_fixed = not any(callable(base) for base in fixed)
        self.support = Support(layout, self._union(fixed), action_mask)
        self._shared = self._columns(fixed) if self._all_fixed else None
        self._found: LRU[Array] = LRU(CACHE_BYTES)
        self._rows: dict[bytes, int] = {}
        self._z, self._counts = np.empty((64, self.shape[0] * self.shape[1])), np.zeros(64)
        self._fits = [np.full(self.shape, 1.0 / self.shape[1])]
        self._gaps = [0.0]
        self._differences = scipy.linalg.helmert(self.shape[1]).T if self.shape[1] > 1 else np.zeros((1, 0))
        self._best: tuple[Array, float] | None = (self._fits[0], 0.0)

    def _caches(self) -> tuple[Any, ...]:
        return (self._found,)

    def _valid(self, base: Any, j: int, at: str) -> Transitions:
        return as_transitions(self.layout, base, self._mask_of(base), where=f"bases[{j}]{at}")

    def _mask_of(self, base: Any) -> Array | None:
        return None if isinstance(base, (Transitions, LayeredMDP)) else self.action_mask

    def _union(self, fixed: list[Any]) -> Any:
        """The transitions that some base allows; all of them if a base depends on the context."""
        if not self._all_fixed:
            return None
        total: list[Any] = []
        for base in fixed:
            arrays = base.arrays()
            if not sp.issparse(arrays[0] if arrays else None):
                arrays = [array > 0 for array in arrays]
            if not total:
                total = list(arrays)
            elif arrays and sp.issparse(arrays[0]) != sp.issparse(total[0]):
                raise OpoError("bases are dense and sparse: use only dense or only sparse ones")
            else:
                total = [a + b if sp.issparse(a) else a | b for a, b in zip(total, arrays, strict=True)]
        return total

    def _columns(self, bases: Sequence[Transitions]) -> Array:
        return frozen(np.stack([self.support.values(base) for base in bases], axis=1))

    def _probabilities(self, context: Any) -> Array:
        """P_j of every cell, shape (n_cells, J)."""
        if self._shared is not None:
            return self._shared
        key = context_key(context)
        found = self._found.get(key)
        if found is None:
            at = f" at context {context!r}"
            bases = [self._valid(base(context), j, at) if callable(base) else base for j, base in enumerate(self._bases)]
            found = self._columns(bases)
            self._found.put(key, found, found.nbytes)
        return found

    def _membership(self, context: Any) -> Array:
        groups, memberships = self.shape[0], self.function_class.memberships
        if memberships is not None:
            return as_distribution(memberships(context), groups, f"memberships at context {context!r}", "group").astype(np.float64)
        if groups == 1:
            return np.ones(1)
        result = np.zeros(groups)
        result[as_integer(context, "context", least=0, most=groups - 1)] = 1.0
        return result

    def transitions(self, fit: Hashable, context: Any) -> list[Any]:
        """Transitions of a fit, as `opo_fast.LayeredMDP` takes them."""
        weights = np.einsum("i,ij->j", self._membership(context), self.parameters(fit))
        return self.support.arrays(np.einsum("mj,j->m", self._probabilities(context), weights))

    def radius(self, version: Hashable, context: Any) -> Array:
        """Bound on the total-variation distance of plausible rows from the fit's, shape (n_states, A).

        Half the sum over the next states of each one's greatest deviation over the set, but at most the distance of the base
        that is farthest from the fit.
        """
        membership, probabilities, support = self._membership(context), self._probabilities(context), self.support
        groups, bases = self.shape
        root = self._root(version)
        root = np.einsum("i,ide->de", membership, root.reshape(groups, bases - 1, len(root)))
        along = np.einsum("mj,je->me", probabilities, np.einsum("jd,de->je", self._differences, root))
        bounds = 0.5 * support.row_sums(np.sqrt(np.square(along).sum(axis=1)))
        weights = np.einsum("i,ij->j", membership, self.parameters(self._centre(version)))
        fitted = np.einsum("mj,j->m", probabilities, weights)
        farthest = 0.5 * support.row_sums(np.abs(probabilities - fitted[:, None])).max(axis=1)
        result = np.zeros(self.layout.n_states * self.layout.n_actions)
        result[: support.n_rows] = np.minimum(np.minimum(bounds, farthest), 1.0)
        return result.reshape(self.layout.shape)

    def _curvature(self) -> tuple[Array, float]:
        groups, n = self.shape[0], len(self._rows)
        d = groups * self._differences.shape[1]
        z, counts = self._z[:n], self._counts[:n]
        p = np.einsum("rk,k->r", z, self._fits[-1].ravel())
        scaled = np.einsum("rij,jd->rid", z.reshape(n, *self.shape), self._differences).reshape(n, d) * (np.sqrt(counts) / p)[:, None]
        return scaled.T @ scaled + np.eye(d), self._penalty(float(counts.sum()), d) + groups

    def parameters(self, fit: Hashable) -> Array:
        """W of a fit, shape (groups, number of bases)."""
        return self._fits[self._known(fit)]

    def gap(self, fit: Hashable) -> float:
        """Bound on the difference between the fit's log-likelihood and the maximum, on the data of its time."""
        return self._gaps[self._known(fit)]

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P along a trajectory; infinite if the fit excludes it."""
        cells = self.support.cells(trajectory.states[None], trajectory.actions[None])[0]
        if not cells.size:
            return 0.0
        weights = np.einsum("i,ij->j", self._membership(trajectory.context), self.parameters(fit))
        p = np.where(cells >= 0, np.einsum("mj,j->m", self._probabilities(trajectory.context)[cells], weights), 0.0)
        return log_loss(p)

    def gain(self, fit: Hashable) -> float:
        """How much lower the negative log-likelihood of all data is for the best weights."""
        n = len(self._rows)
        z, counts = self._z[:n], self._counts[:n]
        with np.errstate(divide="ignore"):
            old, new = (float(counts @ np.log(np.einsum("rk,k->r", z, w.ravel()))) for w in (self.parameters(fit), self._optimum()[0]))
        return new - old

    def _prepare(self, batch: Batch) -> tuple[Array, Array]:
        n, steps = batch.pairs.shape[0], self.layout.horizon - 1
        groups, bases = self.shape
        cells = self.support.checked_cells(batch.contexts, batch.states, batch.actions)
        z = np.empty((n, steps, groups, bases))
        for context, where in grouped(batch.contexts):
            z[where] = self._membership(context)[:, None] * self._probabilities(context)[cells[where]][:, :, None, :]
        rows = z.reshape(n * steps, groups * bases)
        impossible = np.flatnonzero(~(rows > 0).any(axis=1))
        if impossible.size:
            i, h = divmod(int(impossible[0]), steps)
            raise OpoError(
                f"the mixture cannot explain the data: at context {batch.contexts[i]!r} the transition of layer {h} from state "
                f"{int(batch.states[i, h])} under action {int(batch.actions[i, h])} to state {int(batch.states[i, h + 1])} has "
                "probability 0 under every base"
            )
        return rows, np.empty(0)

    def _add(self, prepared: tuple[Array, Array]) -> None:
        for row in prepared[0]:
            key = row.tobytes()
            at = self._rows.get(key)
            if at is None:
                at = self._rows[key] = len(self._rows)
                if at == len(self._counts):
                    self._z = np.concatenate([self._z, np.empty_like(self._z)])
                    self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
                self._z[at] = row
            self._counts[at] += 1.0
        self._best = None

    def _optimum(self) -> tuple[Array, float]:
        if self._best is None:
            n = len(self._rows)
            self._best = mixture_weights(self._z[:n], self._counts[:n], self._fits[-1]) if n else (self._fits[-1], 0.0)
            if self._best[1] > 1e-6 * self._counts[:n].sum():
                raise OpoError(f"mixture dynamics: no optimum was found (the remaining optimality gap is {self._best[1]:.3g})")
        return self._best

    def _solve(self, number: int) -> bool:
        weights, gap = self._optimum()
        if np.array_equal(weights, self._fits[-1]):
            return False
        self._fits.append(weights)
        self._gaps.append(gap)
        return True

    def _state(self) -> dict[str, Any]:
        n = len(self._rows)
        best = {} if self._best is None else {"best": self._best[0], "best_gap": self._best[1]}
        return {"z": self._z[:n].copy(), "counts": self._counts[:n].copy(), "fits": np.array(self._fits), "gaps": list(self._gaps), **best}

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        counts = fields.numbers("counts", (None,), least=1.0)
        n, size = counts.size, max(64, counts.size)
        z = fields.numbers("z", (n, self._z.shape[1]), least=0.0)
        fields.check("z", bool((z > 0).any(axis=1).all()), "holds a transition that no base explains")
        fits = fields.numbers("fits", (number + 1, *self.shape), least=0.0, most=1.0 + 1e-9)
        fields.check("fits", bool((np.abs(fits.sum(axis=2) - 1) <= 1e-9).all()), "holds weights that do not sum to 1")
        gaps = fields.numbers("gaps", (number + 1,), least=0.0)
        best = None
        if "best" in fields.state:
            best = fields.numbers("best", self.shape, least=0.0, most=1.0 + 1e-9), fields.number("best_gap")
            fields.check("best", bool((np.abs(best[0].sum(axis=1) - 1) <= 1e-9).all()), "holds weights that do not sum to 1")
        full_z, full_counts = np.empty((size, z.shape[1])), np.zeros(size)
        full_z[:n], full_counts[:n] = z, counts
        rows = {row.tobytes(): i for i, row in enumerate(z)}
        fields.check("z", len(rows) == n, "holds a row twice")
        return {"_z": full_z, "_counts": full_counts, "_fits": list(fits), "_gaps": gaps.tolist(), "_best": best, "_rows": rows}


def mixture_weights(z: Array, counts: Array, start: Array, tolerance: float = 1e-13) -> tuple[Array, float]:
    """W that maximises sum_r counts_r log <z_r, W> over matrices whose rows lie on the simplex, and its optimality gap.

    Newton's method: each step minimises the quadratic model over the simplices exactly (active sets), followed by a line
    search; if that fails, a step of expectation-maximisation.

    Parameters
    ----------
    z : ndarray, shape (n, I * J)
        Non-negative, each row with a positive entry.
    counts : ndarray, shape (n,)
        Above 0.
    start : ndarray, shape (I, J)
    tolerance : float
        Relative to sum(counts): the gap at which to stop.

    Returns
    -------
    W : ndarray, shape (I, J)
    gap : float
        The maximum exceeds the value at W by at most this (Frank and Wolfe's duality gap).
    """
    z, counts, start = as_real(z, "z"), as_real(counts, "counts"), as_real(start, "start")
    tolerance = as_number(tolerance, "tolerance")
    if start.ndim != 2 or not start.size or z.shape != (counts.size, start.size) or counts.ndim != 1:
        raise OpoError(f"z, counts, start have shapes {z.shape}, {counts.shape}, {start.shape}: (n, I * J), (n,), (I, J) are needed")
    if not (counts > 0).all() or not ((z >= 0).all() and np.isfinite(z).all() and (z > 0).any(axis=1).all()):
        raise OpoError("z and counts: finite numbers of at least 0, in each row of z one above 0, and counts above 0 are needed")
    groups, total = start.shape[0], float(counts.sum())
    x = start.ravel().copy()
    if not (np.einsum("rk,k->r", z, x) > 0).all():
        x = (0.999 * start + 0.001 / start.shape[1]).ravel()

    def measure(x: Array) -> tuple[float, Array, float]:
        """Value, score and gap; the value is -inf if a row has probability 0."""
        p = np.einsum("rk,k->r", z, x)
        if not (p > 0).all():
            return -np.inf, x, np.inf
        score = np.einsum("r,rk->k", counts / p, z)
        return float(counts @ np.log(p)), score, float(score.reshape(start.shape).max(axis=1).sum() - score @ x)

    def projected(x: Array) -> Array:
        rows = np.maximum(x, 0.0).reshape(groups, -1)
        return np.asarray(rows / rows.sum(axis=1, keepdims=True)).ravel()

    value, score, gap = measure(x)
    for _ in range(500):
        if gap <= tolerance * total:
            break
        scaled = z * (np.sqrt(counts) / np.einsum("rk,k->r", z, x))[:, None]
        direction = _newton_direction(scaled.T @ scaled, score, x, start.shape)
        slope, step = float(score @ direction), 1.0
        better = None
        if gap <= 1e-6 * total:
            # Values that differ only in the last digits cannot tell which point is better, but the gap can.
            trial = projected(x + direction)
            found = measure(trial)
            better = (trial, found) if found[2] < 0.5 * gap else None
            if better is None and gap <= 1e-9 * total:
                break
        while better is None and slope > 0 and step > 1e-8:
            trial = projected(x + step * direction)
            found = measure(trial)
            if found[0] >= value + 1e-4 * step * slope:
                better = trial, found
            step /= 2
        if better is None:
            rows = (x * score).reshape(groups, -1)
            idle = rows.sum(axis=1) == 0
            rows[idle] = x.reshape(groups, -1)[idle]
            trial = projected(rows.ravel())
            better = trial, measure(trial)
            if not better[1][0] > value:
                break
        x, (value, score, gap) = better
    return x.reshape(start.shape), max(gap, 0.0)


def _newton_direction(hessian: Array, score: Array, x: Array, shape: tuple[int, int]) -> Array:
    """d that maximises score'd - d'Hd/2 with x + d on the simplices: an active-set method from d = 0."""
    groups, n = shape
    group = np.repeat(np.arange(groups), n)
    sums = (group[None, :] == np.arange(groups)[:, None]).astype(np.float64)
    scale = float(np.abs(hessian).max())
    # The small curvature makes each subproblem strictly convex, so the active sets cannot cycle.
    quadratic = hessian / scale + 1e-11 * np.eye(x.size)
    linear = score / scale
    free, d = x > 0, np.zeros(x.size)
    for _ in range(20 * x.size + 20):
        k = np.flatnonzero(free)
        kkt = np.zeros((k.size + groups, k.size + groups))
        kkt[: k.size, : k.size] = quadratic[np.ix_(k, k)]
        kkt[k.size :, : k.size] = sums[:, k]
        kkt[: k.size, k.size :] = sums[:, k].T
        fixed = np.where(free, 0.0, -x)
        right = np.concatenate([linear[k] - quadratic[k] @ fixed, -sums @ fixed])
        answer = np.linalg.solve(kkt, right)
        target = fixed.copy()
        target[k] = answer[: k.size]
        below = k[x[k] + target[k] < 0]
        if below.size:
            ratios = (x[below] + d[below]) / (d[below] - target[below])
            first = int(ratios.argmin())
            d += min(1.0, float(ratios[first])) * (target - d)
            d[below[first]] = -x[below[first]]
            free[below[first]] = False
            continue
        d = target
        pull = linear - quadratic @ d - answer[k.size :][group]
        wanting = np.flatnonzero(~free & (pull > 1e-14))
        if not wanting.size:
            break
        free[wanting[pull[wanting].argmax()]] = True
    return d
