"""Softmax (multinomial logit) dynamics on a support: log loss by Newton's method in a trust region, warm-started."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import MANY, as_integer, as_items, as_number, as_real, shown
from .._support.fields import Fields
from .._support.state import decode, encode
from ..errors import OpoError
from ..model.contextual import Trajectory, context_key
from ..model.layout import Layout
from .parametric import Batch, FeatureMap, cover_size
from .plausible import QuadraticSets
from .support import Support

__all__ = ["SoftmaxDynamicsClass", "SoftmaxDynamicsOracle"]

Array = npt.NDArray[Any]


class SoftmaxDynamicsClass:
    """P_c(s' | s, a) proportional to exp <psi(c, s, a, s'), w> over the allowed next states.

    w minimises the negative log-likelihood of all data plus (ridge / 2) |w|^2.

    Parameters
    ----------
    features : callable
        ``features(context)`` returns psi: H-1 arrays (S_h, A, S_{h+1}, dimension), or one array (cells, dimension) with a
        row for each allowed transition in the order of `Support`. Without data every allowed next state is equally likely.
    dimension : int
    support : optional
        Allowed transitions (see `Support`); default: all to the next layer. Others keep probability exactly 0.
    ridge : float
        Above 0, so that there is a unique minimiser for any data (the likelihood alone has none if the data are
        separable, or if features do not differ between next states).
    size : float, optional
        |P| in the theory's parameters. Default: that of a cover of radius 0.01, at most 1e150.
    """

    def __init__(
        self, features: Callable[[Any], Any], dimension: int, support: Any = None, *, ridge: float = 1e-3, size: float | None = None
    ) -> None:
        if not callable(features):
            raise OpoError(f"features is a {type(features).__name__}: a callable features(context) is needed")
        self.features, self.dimension, self.support = features, as_integer(dimension, "dimension", least=1, most=MANY), support
        self.ridge = as_number(ridge, "ridge", strict=True)
        self.size = cover_size(self.dimension, size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> SoftmaxDynamicsOracle:
        """A log-loss oracle without data."""
        return SoftmaxDynamicsOracle(self, layout, action_mask)


class _Problem:
    """The data: feature rows of the visited pairs at each context, and how often each of their cells followed."""

    def __init__(self, dimension: int) -> None:
        self.psi, self.counts = np.empty((64, dimension)), np.zeros(64)
        self.begins: list[int] = []
        self.used = 0

    def add_row(self, psi: Array) -> int:
        """Append a row's cells; returns where they begin."""
        need = self.used + len(psi)
        if need > len(self.counts):
            size = max(need, 2 * len(self.counts))
            self.psi = np.concatenate([self.psi, np.empty((size - len(self.psi), self.psi.shape[1]))])
            self.counts = np.concatenate([self.counts, np.zeros(size - len(self.counts))])
        self.psi[self.used : need] = psi
        self.begins.append(self.used)
        self.used = need
        return self.begins[-1]

    def closed(self, ridge: float) -> _Likelihood:
        return _Likelihood(self.psi[: self.used], self.counts[: self.used], np.array(self.begins, np.int64), ridge)


class _Likelihood:
    """Negative log-likelihood plus the ridge term, with its gradient and Hessian."""

    def __init__(self, psi: Array, counts: Array, begins: Array, ridge: float) -> None:
        self.psi, self.counts, self.begins, self.ridge = psi, counts, begins, ridge
        self.lengths = np.diff(np.append(begins, len(psi)))
        self.visits = np.add.reduceat(counts, begins)
        self.total = float(counts.sum())

    def _logits(self, w: Array) -> tuple[Array, Array]:
        eta = np.einsum("md,d->m", self.psi, w)
        top = np.maximum.reduceat(eta, self.begins)
        eta -= np.repeat(top, self.lengths)
        return eta, np.add.reduceat(np.exp(eta), self.begins)

    def value(self, w: Array) -> float:
        eta, sums = self._logits(w)
        return float(self.visits @ np.log(sums) - self.counts @ eta + 0.5 * self.ridge * (w @ w))

    def _probabilities(self, w: Array) -> Array:
        eta, sums = self._logits(w)
        return np.asarray(np.exp(eta) / np.repeat(sums, self.lengths))

    def gradient(self, w: Array) -> Array:
        expected = self._probabilities(w) * np.repeat(self.visits, self.lengths)
        return np.asarray(np.einsum("m,md->d", expected - self.counts, self.psi) + self.ridge * w)

    def hessian(self, w: Array) -> Array:
        p = self._probabilities(w)
        weighted = p[:, None] * self.psi
        means = np.add.reduceat(weighted, self.begins, axis=0)
        visits = np.repeat(self.visits, self.lengths)
        second = (weighted * visits[:, None]).T @ self.psi - (means * self.visits[:, None]).T @ means
        return np.asarray(second + self.ridge * np.eye(w.size))

    def minimise(self, w: Array) -> Array:
        """The minimiser, starting from `w`; `w` itself if its gradient is already at the rounding error."""
        scale = self.total * max(1.0, float(np.abs(self.psi).max(initial=0.0)))
        fine, coarse = 1e-15 * scale, 1e-6 * scale
        size = float(np.abs(self.gradient(w)).max())
        if size <= fine:
            return w
        if size > coarse:
            from scipy.optimize import minimize

            # Once the gradient is small, the value cannot distinguish w from the optimum: Newton on the gradient does the rest.
            w = minimize(
                self.value, w, jac=self.gradient, hess=self.hessian, method="trust-exact", options={"gtol": coarse, "maxiter": 500}
            ).x
        gradient = self.gradient(w)
        size = float(np.abs(gradient).max())
        for _ in range(20):
            if size <= fine:
                break
            better = w - np.linalg.solve(self.hessian(w), gradient)
            gradient = self.gradient(better)
            smaller = float(np.abs(gradient).max())
            if not smaller < size:
                break
            w, size = better, smaller
        if not size <= 10 * coarse:
            raise OpoError(
                f"softmax dynamics: no optimum was found (the remaining gradient is {size:.3g}); scale the features down or raise the ridge"
            )
        return np.asarray(w)


class SoftmaxDynamicsOracle(QuadraticSets):
    """Log loss in a softmax class. Repeated visits to a row at the same context need no additional memory or time.

    Fits from batches and from single episodes agree to about 1e-10 (the optimum is unique, the path to it is not). From the
    same state, with the same calls, fits have the same bits.

    Plausible set: the likelihood-ratio set in its quadratic form (`opo_fast.oracles.plausible.QuadraticSets`), with the
    ridge in l.
    """

    def __init__(self, function_class: SoftmaxDynamicsClass, layout: Layout, action_mask: Array | None = None) -> None:
        super().__init__(layout, action_mask)
        self.function_class, self.dimension = function_class, function_class.dimension
        self.support = Support(layout, function_class.support, action_mask)
        self._features = FeatureMap(self._flat, (self.support.n_cells, self.dimension))
        self._problem = _Problem(self.dimension)
        self._known_rows: dict[tuple[Hashable, int], int] = {}
        self._fits = [np.zeros(self.dimension)]
        self._best: Array | None = self._fits[0]

    def _caches(self) -> tuple[Any, ...]:
        return (self._features,)

    def _flat(self, context: Any) -> Any:
        answer = self.function_class.features(context)
        if isinstance(answer, np.ndarray) and answer.ndim == 2:
            return answer
        layout, support = self.layout, self.support
        answer = as_items(answer, f"features at context {context!r}", "arrays")
        if len(answer) != layout.horizon - 1:
            raise OpoError(f"features at context {context!r} are {len(answer)} arrays: H - 1 = {layout.horizon - 1} are needed")
        flat = np.empty((support.n_cells, self.dimension))
        for h, given in enumerate(answer):
            array = as_real(given, f"features at context {context!r}, layer {h},")
            wanted = (layout.layer_sizes[h], layout.n_actions, layout.layer_sizes[h + 1], self.dimension)
            if array.shape != wanted:
                raise OpoError(f"features at context {context!r}, layer {h}, have shape {array.shape}: {wanted} is needed")
            lo, hi = (int(o) * layout.n_actions for o in layout.offsets[h : h + 2])
            part = slice(int(support.indptr[lo]), int(support.indptr[hi]))
            flat[part] = array.reshape(hi - lo, -1, self.dimension)[support.row_of[part] - lo, support.positions[part]]
        return flat

    def transitions(self, fit: Hashable, context: Any) -> list[Any]:
        """Transitions of a fit, as `opo_fast.LayeredMDP` takes them."""
        return self.support.arrays(self._probabilities(fit, context))

    def _probabilities(self, fit: Hashable, context: Any) -> Array:
        support = self.support
        eta = np.einsum("md,d->m", self._features(context), self.parameters(fit))
        p = np.exp(eta - support.row_max(eta)[support.row_of])
        return np.asarray(p / support.row_sums(p)[support.row_of])

    def radius(self, version: Hashable, context: Any) -> Array:
        """Bound on the total-variation distance of plausible rows from the fit's, shape (n_states, A).

        Let m be the greatest |<psi - mean psi, w - fit>| of a row's cells over the set. A plausible row is the fit's row
        tilted by a function of range at most 2 m, so the distance is at most tanh(m / 2). Since the variance of that function
        grows by a factor of at most exp(2 m) along the way, it is also at most (exp(m) - 1) / (2 m) times the greatest
        deviation under the fit.
        """
        psi, p, support = self._features(context), self._probabilities(self._centre(version), context), self.support
        centred = psi - support.row_sums(p[:, None] * psi)[support.row_of]
        squares = np.square(np.einsum("md,de->me", centred, self._root(version))).sum(axis=1)
        most = np.sqrt(support.row_max(squares))
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.where(most > 0, np.expm1(most) / most, 1.0)
            bounds = np.fmin(np.tanh(0.5 * most), 0.5 * growth * np.sqrt(support.row_sums(p * squares)))
        result = np.zeros(self.layout.n_states * self.layout.n_actions)
        result[: support.n_rows] = np.minimum(bounds, 1.0)
        return result.reshape(self.layout.shape)

    def _curvature(self) -> tuple[Array, float]:
        problem, ridge = self._problem, self.function_class.ridge
        if not problem.used:
            return ridge * np.eye(self.dimension), self._penalty(0.0, self.dimension)
        likelihood = problem.closed(ridge)
        return likelihood.hessian(self._fits[-1]), self._penalty(likelihood.total, self.dimension)

    def parameters(self, fit: Hashable) -> Array:
        """w of a fit, shape (dimension,)."""
        return self._fits[self._known(fit)]

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P along a trajectory; infinite if the support excludes it."""
        states, actions = trajectory.states[None], trajectory.actions[None]
        observed = self.support.cells(states, actions)[0]
        if not observed.size:
            return 0.0
        if (observed < 0).any():
            return float("inf")
        cells, begins = self.support.cells_of(self.support.row_of[observed])
        w, psi = self.parameters(fit), self._features(trajectory.context)
        eta = np.einsum("md,d->m", psi[cells], w)
        top = np.maximum.reduceat(eta, begins)
        sums = np.add.reduceat(np.exp(eta - np.repeat(top, np.diff(np.append(begins, cells.size)))), begins)
        return float((np.log(sums) + top - np.einsum("md,d->m", psi[observed], w)).sum())

    def gain(self, fit: Hashable) -> float:
        """How much lower the penalised negative log-likelihood of all data is for the best w."""
        if not self._problem.used:
            return 0.0
        problem = self._problem.closed(self.function_class.ridge)
        return problem.value(self.parameters(fit)) - problem.value(self._minimiser())

    def _prepare(self, batch: Batch) -> tuple[Batch, Array, list[Array]]:
        cells = self.support.checked_cells(batch.contexts, batch.states, batch.actions)
        return batch, cells, [self._features(context) for context in batch.contexts] if cells.size else []

    def _add(self, prepared: tuple[Batch, Array, list[Array]]) -> None:
        batch, cells, features = prepared
        support, problem = self.support, self._problem
        for context, mine, psi in zip(batch.contexts, cells, features, strict=False):
            key = context_key(context)
            for cell in mine.tolist():
                row = int(support.row_of[cell])
                first = int(support.indptr[row])
                begin = self._known_rows.get((key, row))
                if begin is None:
                    begin = self._known_rows[key, row] = problem.add_row(psi[first : int(support.indptr[row + 1])])
                problem.counts[begin + cell - first] += 1.0
        self._best = None

    def _minimiser(self) -> Array:
        if self._best is None:
            problem = self._problem
            self._best = problem.closed(self.function_class.ridge).minimise(self._fits[-1]) if problem.used else self._fits[-1]
        return self._best

    def _solve(self, number: int) -> bool:
        best = self._minimiser()
        if np.array_equal(best, self._fits[-1]):
            return False
        self._fits.append(best)
        return True

    def _state(self) -> dict[str, Any]:
        problem, keys = self._problem, list(self._known_rows)
        contexts: dict[Hashable, int] = {}
        for key, _ in keys:
            contexts.setdefault(key, len(contexts))
        return {
            "fits": np.array(self._fits),
            "best": self._best if self._best is not None else np.empty(0),
            "psi": problem.psi[: problem.used].copy(),
            "counts": problem.counts[: problem.used].copy(),
            "begins": np.array(problem.begins, np.int64),
            "contexts": [_key_to_json(key) for key in contexts],
            "rows": np.array([(contexts[key], row) for key, row in keys], np.int64).reshape(-1, 2),
        }

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        fits = fields.numbers("fits", (number + 1, self.dimension))
        counts = fields.numbers("counts", (None,), least=0.0)
        problem = _Problem(self.dimension)
        problem.psi, problem.counts, problem.used = fields.numbers("psi", (counts.size, self.dimension)), counts, counts.size
        keys = [_key_from_json(key, fields.place("contexts")) for key in fields.listed("contexts")]
        rows = fields.positions("rows", (None, 2), most=max(len(keys), self.support.n_rows) - 1)
        in_range = (rows[:, 0] < len(keys)) & (rows[:, 1] < self.support.n_rows)
        fields.check("rows", bool(in_range.all()), f"names a context or row beyond the {len(keys)} and {self.support.n_rows} there are")
        lengths = self.support.counts[rows[:, 1]]
        begins = fields.positions("begins", (len(rows),), most=counts.size)
        starts = np.cumsum(lengths) - lengths
        fits_rows = np.array_equal(begins, starts) and int(lengths.sum()) == counts.size and bool((lengths > 0).all())
        fields.check("begins", fits_rows, "and counts do not hold one entry for each allowed next state of rows")
        visited = bool((np.add.reduceat(counts, begins) > 0).all()) if counts.size else True
        fields.check("counts", visited, "holds a row without visits")
        problem.begins = begins.tolist()
        known = {(keys[c], row): begin for (c, row), begin in zip(rows.tolist(), problem.begins, strict=True)}
        fields.check("rows", len(known) == len(rows), "names a row twice")
        best = fields.numbers("best", (self.dimension,)) if np.size(fields.value("best")) else None
        return {"_fits": list(fits), "_problem": problem, "_known_rows": known, "_best": best}


def _key_to_json(key: Any) -> Any:
    """A context's key as a JSON value; the key of an array contains bytes."""
    if isinstance(key, tuple) and len(key) == 3 and isinstance(key[2], bytes):
        return {"key": [list(key[0]), key[1], key[2].hex()]}
    return encode(key)


def _key_from_json(value: Any, place: str) -> Hashable:
    if isinstance(value, dict) and "key" in value:
        try:
            shape, dtype, text = value["key"]
            return tuple(as_integer(n, place, least=0) for n in shape), str(dtype), bytes.fromhex(text)
        except (TypeError, ValueError):
            raise OpoError(f"{place} holds {shown(value)}, which is no context that was saved") from None
    return decode(value, place)  # type: ignore[no-any-return]
