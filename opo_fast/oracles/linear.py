"""Linear losses: exact least squares with a running triangular factor."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy

from .._support.checks import MANY, as_integer, as_number
from .._support.fields import Fields
from ..kernels.scores import add_rows
from ..model.contextual import Trajectory
from ..model.layout import Layout
from .ellipsoid import GROWTH, as_norm, ball_of, below, inverse_of, regular_ridge
from .parametric import Batch, FeatureMap, cover_size, grouped
from .plausible import PlausibleOracle
from .versions import Versions, distinct

__all__ = ["DisjointLinearLossClass", "DisjointLinearLossOracle", "LinearLossClass", "LinearLossOracle"]

Array = npt.NDArray[Any]

_WELL = 1e-8
"""Reciprocal condition number above which back substitution is used; below it, the singular value decomposition."""
_RANK = 1e-10
"""Singular values below this share of the largest count as 0: the data do not determine that direction."""


class LinearLossClass:
    """Linear losses f_c(s, a) = <phi(c, s, a), theta>, clipped to [0, 1].

    theta minimises the sum of squared errors of the linear function (before clipping) over all data, plus
    ridge * |theta|^2. If the data do not determine it, it is the minimiser of least norm, which `scipy.linalg.lstsq`
    would give on the full history; without data theta is 0.

    Parameters
    ----------
    features : callable
        ``features(context)`` returns phi(c, ., .), shape (n_states, A, dimension).
    dimension : int
    ridge : float
        At least 0; 0 is plain least squares.
    size : float, optional
        |F| in the theory's parameters. Default: that of a cover of radius 0.01, (1 + 2/0.01)^dimension, at most 1e150.
    norm : float, optional
        Bound on the Euclidean norm of the true theta, used only by plausible sets. Default sqrt(dimension): coefficients
        in [-1, 1].
    """

    def __init__(
        self,
        features: Callable[[Any], Any],
        dimension: int,
        *,
        ridge: float = 0.0,
        size: float | None = None,
        norm: float | None = None,
    ) -> None:
        self.features, self.dimension = features, as_integer(dimension, "dimension", least=1, most=MANY)
        self.ridge, self.norm = as_number(ridge, "ridge"), as_norm(norm, self.dimension)
        self.size = cover_size(self.dimension, size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> LinearLossOracle:
        """A least-squares oracle without data."""
        return LinearLossOracle(self, layout, action_mask)


class LinearLossOracle(PlausibleOracle):
    """Least squares in a linear class; O(H d^2) to add an episode and O(d^2) to fit, independent of the data so far.

    The running factor processes the rows of features in the order of the data, so the fit has the same bits whether they
    come one at a time, in batches or all at once.

    Plausible set: the ellipsoid |theta - centre|_V <= radius of Y. Abbasi-Yadkori, D. Pal and C. Szepesvari, Improved
    Algorithms for Linear Stochastic Bandits, NeurIPS 2011, Theorem 2, which holds at all times simultaneously:

        radius = (1/2) sqrt(2 log(sqrt(det V / det lambda I) / delta)) + sqrt(lambda) norm,   V = lambda I + sum phi phi',

    around the least-squares solution with the ridge lambda = max(ridge, (1/2)^2 / norm^2). The truth has to be linear
    without clipping. A version stores its centre and radius; a matrix is stored only when det V has grown by ten percent
    since the last one (section 5.1 there). The older, smaller V makes the set larger, by at most a factor sqrt(1.1), and the
    number of matrices grows like d log(episodes) instead of the number of episodes.
    """

    def __init__(self, function_class: LinearLossClass, layout: Layout, action_mask: Array | None = None) -> None:
        super().__init__(layout, action_mask)
        self.function_class, self.dimension = function_class, function_class.dimension
        self._features = FeatureMap(function_class.features, (*layout.shape, self.dimension))
        self._factor = empty_factor(self.dimension, function_class.ridge)
        self._fits = [np.zeros(self.dimension)]

    def _caches(self) -> tuple[Any, ...]:
        return (self._features,)

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of a fit, shape (n_states, A)."""
        phi = self._features(context).reshape(-1, self.dimension)
        return clipped(phi, self.parameters(fit)).reshape(self.layout.shape)

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least loss of each state-action pair over the plausible set of a version, shape (n_states, A)."""
        number = self._version(version)
        phi = self._features(context).reshape(-1, self.dimension)
        low = below(phi, self._balls[number], np.einsum("nd,de->ne", phi, self._inverses[self._which[number]]))
        return np.minimum(low.reshape(self.layout.shape), self.losses(self._centres[number], context))

    def _begin(self) -> None:
        self._regular = empty_factor(self.dimension, regular_ridge(self.function_class))
        self._balls: list[Array] = []
        self._which: list[int] = []
        self._inverses: list[Array] = []
        self._log_det = -np.inf
        self._note(0)

    def _note(self, version: int) -> None:
        ball, log_det = ball_of(self._regular, self.function_class, self._kept())
        if log_det > self._log_det + GROWTH:
            self._inverses.append(inverse_of(self._regular, self.dimension))
            self._log_det = log_det
        self._balls.append(ball)
        self._which.append(len(self._inverses) - 1)

    def _sets(self) -> dict[str, Any]:
        return {
            "plausible.factor": self._regular.copy(), "plausible.balls": np.array(self._balls),
            "plausible.which": np.array(self._which, np.int64), "plausible.inverses": np.array(self._inverses),
            "plausible.log_det": self._log_det,
        }  # fmt: skip

    def _sets_restored(self, fields: Fields, delta: float, versions: int) -> dict[str, Any]:
        d = self.dimension
        inverses = fields.numbers("plausible.inverses", (None, d, d))
        which = fields.positions("plausible.which", (versions,), most=len(inverses) - 1)
        kept = {"_balls": list(fields.numbers("plausible.balls", (versions, d + 1))), "_inverses": list(inverses), "_which": which.tolist()}
        log_det = fields.number("plausible.log_det", least=-np.inf)
        return {"_regular": fields.numbers("plausible.factor", self._factor.shape), "_log_det": log_det, **kept}

    def lower_bound(self, context: Any, radius: float) -> Array:
        """The least loss of each pair over all theta with a squared error within `radius` of the least, shape (n_states, A)."""
        phi = self._features(context).reshape(-1, self.dimension)
        return lower_bound(self._factor, self.dimension, phi, radius).reshape(self.layout.shape)

    def parameters(self, fit: Hashable) -> Array:
        """theta of a fit, shape (dimension,)."""
        return self._fits[self._known(fit)]

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of the squared errors of a fit along a trajectory."""
        phi = self._features(trajectory.context)[trajectory.states[:-1], trajectory.actions]
        return float(np.square(clipped(phi, self.parameters(fit)) - trajectory.losses).sum())

    def gain(self, fit: Hashable) -> float:
        """How much lower the sum of squared errors (before clipping) on all data is for the best theta."""
        difference = solve_factor(self._factor, self.dimension) - self.parameters(fit)
        square = self._factor.reshape(self.dimension + 1, -1)
        return float(np.square(square[:-1, :-1] @ difference).sum())

    @property
    def residual(self) -> float:
        """Least sum of squared errors on all data (before clipping; including the ridge term)."""
        return float(self._factor[-1] ** 2)

    def _prepare(self, batch: Batch) -> Array:
        n, horizon = batch.pairs.shape
        rows = np.empty((n, horizon, self.dimension + 1))
        for context, where in grouped(batch.contexts):
            phi = self._features(context).reshape(-1, self.dimension)
            rows[where, :, :-1] = phi[batch.pairs[where]]
        rows[:, :, -1] = batch.losses
        return rows.reshape(-1)

    def _add(self, prepared: Array) -> None:
        width = self.dimension + 1
        which = np.zeros(prepared.size // width, np.int64)
        if self.delta is not None:
            add_rows(self._regular, width, which, prepared.copy())
        add_rows(self._factor, width, which, prepared)

    def _solve(self, number: int) -> bool:
        theta = solve_factor(self._factor, self.dimension)
        if np.array_equal(theta, self._fits[-1]):
            return False
        self._fits.append(theta)
        return True

    def _state(self) -> dict[str, Any]:
        return {"factor": self._factor.copy(), "fits": np.array(self._fits)}

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        return {
            "_factor": fields.numbers("factor", self._factor.shape),
            "_fits": list(fields.numbers("fits", (number + 1, self.dimension))),
        }


class DisjointLinearLossClass:
    """One linear model in the context for each state-action pair: f_c(s, a) = <phi(c), theta_{s,a}>, clipped to [0, 1].

    Pairs share no parameters ("disjoint" linear models). A pair that was never visited has theta = 0 and hence the loss 0.

    Parameters
    ----------
    features : callable
        ``features(context)`` returns phi(c), shape (dimension,); include a constant 1 for an intercept.
    dimension : int
    ridge : float
        At least 0, for each pair.
    size : float, optional
        |F| in the theory's parameters. Default: that of a cover of radius 0.01, at most 1e150.
    norm : float, optional
        Bound on the Euclidean norm of each true theta_{s,a}, used only by plausible sets. Default sqrt(dimension).
    """

    def __init__(
        self,
        features: Callable[[Any], Any],
        dimension: int,
        *,
        ridge: float = 0.0,
        size: float | None = None,
        norm: float | None = None,
    ) -> None:
        self.features, self.dimension = features, as_integer(dimension, "dimension", least=1, most=MANY)
        self.ridge, self.norm = as_number(ridge, "ridge"), as_norm(norm, self.dimension)
        self.size = cover_size(self.dimension, size)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> DisjointLinearLossOracle:
        """A least-squares oracle without data."""
        return DisjointLinearLossOracle(self, layout, action_mask)


class DisjointLinearLossOracle(PlausibleOracle):
    """Least squares for each state-action pair; O(H d^2) to add an episode, and only visited pairs are solved again.

    Plausible set: for each pair the ellipsoid of `LinearLossOracle` at delta / n_pairs, with its past stored in the same way.
    """

    def __init__(self, function_class: DisjointLinearLossClass, layout: Layout, action_mask: Array | None = None) -> None:
        super().__init__(layout, action_mask)
        self.function_class, self.dimension = function_class, function_class.dimension
        self._features = FeatureMap(function_class.features, (self.dimension,))
        self._n_pairs = layout.n_states * layout.n_actions
        self._factors = np.tile(empty_factor(self.dimension, function_class.ridge), self._n_pairs)
        self._fits = Versions(np.zeros((self._n_pairs, self.dimension)))
        self._touched: list[Array] = []

    def _caches(self) -> tuple[Any, ...]:
        return (self._features,)

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of a fit, shape (n_states, A)."""
        return clipped(self.parameters(fit), self._features(context)).reshape(self.layout.shape)

    def lower(self, version: Hashable, context: Any) -> Array:
        """The least loss of each state-action pair over the plausible set of a version, shape (n_states, A)."""
        number, phi, d = self._version(version), self._features(context), self.dimension
        along = np.einsum("d,nde->ne", phi, self._inverses.read(number).reshape(-1, d, d))
        low = below(np.broadcast_to(phi, (self._n_pairs, d)), self._balls.read(number), along)
        return np.minimum(low.reshape(self.layout.shape), self.losses(self._centres[number], context))

    def _no_data(self, delta: float) -> tuple[Array, Array, Array]:
        """Factors, balls and inverses of pairs without data."""
        factor = empty_factor(self.dimension, regular_ridge(self.function_class))
        ball, inverse = ball_of(factor, self.function_class, self._share(delta))[0], inverse_of(factor, self.dimension)
        return np.tile(factor, self._n_pairs), np.tile(ball, (self._n_pairs, 1)), np.tile(inverse.reshape(-1), (self._n_pairs, 1))

    def _share(self, delta: float) -> float:
        return delta / (self._n_pairs if self.action_mask is None else int(self.action_mask.sum()))

    def _begin(self) -> None:
        self._regular, balls, inverses = self._no_data(self._kept())
        self._balls, self._inverses = Versions(balls), Versions(inverses)
        self._log_dets = np.full(self._n_pairs, self.dimension * np.log(regular_ridge(self.function_class)))
        self._moved: list[Array] = []

    def _note(self, version: int) -> None:
        pairs = distinct(self._moved)
        self._moved = []
        share = self._share(self._kept())
        found = [ball_of(self._block(pair, self._regular), self.function_class, share) for pair in pairs.tolist()]
        self._balls.write(version, pairs, np.array([ball for ball, _ in found]))
        log_dets = np.array([log_det for _, log_det in found])
        grown = log_dets > self._log_dets[pairs] + GROWTH
        if grown.any():
            inverses = [inverse_of(self._block(pair, self._regular), self.dimension).reshape(-1) for pair in pairs[grown].tolist()]
            self._inverses.write(version, pairs[grown], np.array(inverses))
            self._log_dets[pairs[grown]] = log_dets[grown]

    def _sets(self) -> dict[str, Any]:
        kept = {"factors": self._regular.copy(), "log_dets": self._log_dets.copy(), "moved": distinct(self._moved)}
        kept |= {**self._balls.state("balls."), **self._inverses.state("inverses.")}
        return {f"plausible.{name}": value for name, value in kept.items()}

    def _sets_restored(self, fields: Fields, delta: float, versions: int) -> dict[str, Any]:
        _, balls, inverses = self._no_data(delta)
        return {
            "_regular": fields.numbers("plausible.factors", self._factors.shape),
            "_log_dets": fields.numbers("plausible.log_dets", (self._n_pairs,)),
            "_moved": [fields.positions("plausible.moved", (None,), most=self._n_pairs - 1)],
            "_balls": Versions.restored(balls, fields, "plausible.balls.", versions - 1),
            "_inverses": Versions.restored(inverses, fields, "plausible.inverses.", versions - 1),
        }

    def lower_bound(self, context: Any, radius: float) -> Array:
        """The least loss of each pair over all theta with a squared error within `radius` of the least, shape (n_states, A)."""
        phi = self._features(context)[None]
        bounds = [lower_bound(self._block(pair), self.dimension, phi, radius)[0] for pair in range(self._n_pairs)]
        return np.array(bounds).reshape(self.layout.shape)

    def parameters(self, fit: Hashable) -> Array:
        """theta of a fit, one row for each pair s * A + a: shape (n_states * A, dimension)."""
        return self._fits.read(self._known(fit))

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of the squared errors of a fit along a trajectory."""
        pairs = trajectory.states[:-1] * self.layout.n_actions + trajectory.actions
        predicted = clipped(self.parameters(fit)[pairs], self._features(trajectory.context))
        return float(np.square(predicted - trajectory.losses).sum())

    def gain(self, fit: Hashable) -> float:
        """How much lower the sum of squared errors (before clipping) on all data is for the best parameters."""
        old, total = self.parameters(fit), 0.0
        current, touched = self._fits.current, self._unsolved()
        for pair in np.union1d(touched, np.flatnonzero((old != current).any(axis=1))).tolist():
            difference = self._theta(pair) - old[pair]
            total += float(np.square(self._block(pair).reshape(self.dimension + 1, -1)[:-1, :-1] @ difference).sum())
        return total

    def _block(self, pair: int, factors: Array | None = None) -> Array:
        size = (self.dimension + 1) ** 2
        return (self._factors if factors is None else factors)[pair * size : (pair + 1) * size]

    def _theta(self, pair: int) -> Array:
        return solve_factor(self._block(pair), self.dimension)

    def _unsolved(self) -> Array:
        return distinct(self._touched)

    def _prepare(self, batch: Batch) -> tuple[Array, Array]:
        n, horizon = batch.pairs.shape
        rows = np.empty((n, horizon, self.dimension + 1))
        for context, where in grouped(batch.contexts):
            rows[where, :, :-1] = self._features(context)
        rows[:, :, -1] = batch.losses
        return batch.pairs.ravel().copy(), rows.reshape(-1)

    def _add(self, prepared: tuple[Array, Array]) -> None:
        pairs, rows = prepared
        if self.delta is not None:
            add_rows(self._regular, self.dimension + 1, pairs, rows.copy())
            self._moved.append(pairs)
        add_rows(self._factors, self.dimension + 1, pairs, rows)
        self._touched.append(pairs)

    def _solve(self, number: int) -> bool:
        pairs = self._unsolved()
        self._touched = []
        theta = np.array([self._theta(pair) for pair in pairs.tolist()])
        changed = (theta != self._fits.current[pairs]).any(axis=1)
        if changed.any():
            self._fits.write(number, pairs[changed], theta[changed])
        return bool(changed.any())

    def _state(self) -> dict[str, Any]:
        return {"factors": self._factors.copy(), "touched": self._unsolved(), **self._fits.state("fits.")}

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        return {
            "_factors": fields.numbers("factors", self._factors.shape),
            "_touched": [fields.positions("touched", (None,), most=self._n_pairs - 1)],
            "_fits": Versions.restored(np.zeros((self._n_pairs, self.dimension)), fields, "fits.", number),
        }


def empty_factor(dimension: int, ridge: float) -> Array:
    """The factor without data, flat: sqrt(ridge) on the diagonal, and a last column for the targets."""
    factor = np.zeros((dimension + 1, dimension + 1))
    factor[np.arange(dimension), np.arange(dimension)] = np.sqrt(ridge)
    return factor.reshape(-1)


def solve_factor(factor: Array, dimension: int) -> Array:
    """theta of least norm that minimises |R theta - z|, from the flat factor [[R, z], [0, rho]]."""
    square = factor.reshape(dimension + 1, dimension + 1)
    r, z = square[:-1, :-1], square[:-1, -1]
    reciprocal, _ = scipy.linalg.lapack.dtrcon(r)
    if reciprocal > _WELL:
        return np.asarray(scipy.linalg.lapack.dtrtrs(r, z)[0])
    if not r.any():
        return np.zeros(dimension)
    return np.asarray(scipy.linalg.lstsq(r, z, cond=_RANK)[0])


def lower_bound(factor: Array, dimension: int, rows: Array, radius: float) -> Array:
    """min <row, theta> over |R (theta - best)|^2 <= radius, in [0, 1]; 0 if the data do not determine the row's direction."""
    square = factor.reshape(dimension + 1, dimension + 1)
    u, singular, basis = np.linalg.svd(square[:-1, :-1])
    known = singular > _RANK * max(singular[0], np.finfo(float).tiny)
    along = rows @ basis.T
    theta = np.where(known, u.T @ square[:-1, -1], 0.0) / np.where(known, singular, 1.0)
    width = np.sqrt(radius * np.square(along[:, known] / singular[known]).sum(axis=1))
    is_open = np.abs(along[:, ~known]).max(axis=1, initial=0.0) > _RANK * np.abs(rows).max(axis=1)
    return np.where(is_open, 0.0, np.clip(along @ theta - width, 0.0, 1.0))


def clipped(rows: Array, theta: Array) -> Array:
    """<row, theta> clipped to [0, 1]; by einsum, whose bits, unlike those of BLAS, do not depend on threads."""
    return np.asarray(np.clip(np.einsum("nd,d->n", rows, theta), 0.0, 1.0))
