"""scikit-learn estimators as oracles (extra `sklearn`): any regressor for losses, any classifier for dynamics."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer, as_number, instance
from .._support.fields import Fields
from .._support.lru import LRU
from ..errors import OpoError, install
from ..model.contextual import Trajectory, context_key
from ..model.layout import Layout
from .parametric import CACHE_BYTES, Batch, FeatureMap, ParametricOracle, cover_size, grouped
from .schedule import Refit, scheduled
from .support import Support

__all__ = ["SklearnDynamicsClass", "SklearnDynamicsOracle", "SklearnLossClass", "SklearnLossOracle", "pair_features"]

Array = npt.NDArray[Any]
_KEPT = 64
"""Number of trained estimators that an oracle keeps; an older one is trained again on the same data when it is needed."""


def pair_features(layout: Layout) -> Callable[[Any], Array]:
    """Features of (c, s, a): the context's numbers, and indicators of the state and the action.

    Returns
    -------
    callable
        ``features(context)`` of shape (n_states, A, number of context entries + n_states + A).
    """
    instance(layout, "layout", Layout)
    state = np.eye(layout.n_states)[:, None, :].repeat(layout.n_actions, axis=1)
    action = np.eye(layout.n_actions)[None, :, :].repeat(layout.n_states, axis=0)

    def features(context: Any) -> Array:
        try:
            numbers = np.asarray(context, np.float64).ravel()
        except (TypeError, ValueError):
            raise OpoError(f"context {context!r} does not consist of numbers: pass features=") from None
        return np.concatenate([np.broadcast_to(numbers, (*layout.shape, numbers.size)), state, action], axis=2)

    return features


class _SklearnClass:
    """Common parts of both classes: the estimator, its features, its schedule and its seed."""

    method = "predict"

    def __init__(
        self,
        estimator: Any,
        features: Callable[[Any], Any] | None = None,
        *,
        refit: Any = "doubling",
        first: int = 10,
        seed: int = 0,
        size: float | None = None,
    ) -> None:
        try:
            from sklearn.base import clone
        except ImportError:
            raise OpoError(f"scikit-learn estimators need scikit-learn: {install('sklearn')}") from None
        if isinstance(estimator, type):
            raise OpoError(f"estimator is the class {estimator.__name__}: an instance, {estimator.__name__}(...), is needed")
        for name in ("fit", self.method, "get_params"):
            if not hasattr(estimator, name):
                raise OpoError(f"estimator is a {type(estimator).__name__} without {name}")
        self.estimator, self.features, self.refit = clone(estimator), features, Refit.parse(refit)
        if self.refit.kind == "gain":
            raise OpoError("refit is a gain, which is known only after training: 'every', 'doubling' or a number of episodes is needed")
        self.first = as_integer(first, "first", least=1)
        self.seed = as_integer(seed, "seed", least=0, most=2**32 - 1)
        for name, value in self.estimator.get_params(deep=True).items():
            if name == "random_state" or name.endswith("__random_state"):
                if value is not None and not isinstance(value, (int, np.integer)):
                    raise OpoError(
                        f"estimator: {name} is {value!r}, which changes with use: a whole number, or None for the seed, is needed"
                    )
                if value is None:
                    self.estimator.set_params(**{name: self.seed})
        self.size = cover_size(65, size)

    def trained(self, features: Array, targets: Array) -> Any:
        """A trained copy of the estimator."""
        from sklearn.base import clone

        model = clone(self.estimator)
        try:
            model.fit(features, targets)
        except Exception as error:
            raise OpoError(
                f"the estimator {type(model).__name__} could not be trained on {len(targets)} rows ({type(error).__name__}: {error})"
            ) from error
        return model


class SklearnLossClass(_SklearnClass):
    """Losses predicted by any scikit-learn regressor, clipped to [0, 1]. It has no plausible sets: see `opo_fast.OPO`.

    Parameters
    ----------
    estimator : regressor
        Cloned, never changed. If its ``random_state`` is None, it is set to `seed`, so that equal data give equal fits.
    features : callable, optional
        ``features(context)`` of shape (n_states, A, number of features). Default: `pair_features`.
    refit : "every", "doubling", int or Refit
        When to train (see `opo_fast.oracles.scheduled`); each training uses all data, so its cost grows with them.
    first : int
        Episodes before the first training, since many estimators need a few rows.
    unseen : float
        Loss in [0, 1] before the first training.
    seed : int
    size : float, optional
        |F| in the theory's parameters. There is no natural default, so set it if you use these parameters.
    """

    def __init__(
        self,
        estimator: Any,
        features: Callable[[Any], Any] | None = None,
        *,
        refit: Any = "doubling",
        first: int = 10,
        unseen: float = 0.0,
        seed: int = 0,
        size: float | None = None,
    ) -> None:
        super().__init__(estimator, features, refit=refit, first=first, seed=seed, size=size)
        self.unseen = as_number(unseen, "unseen", most=1.0)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> Any:
        """An oracle without data, with the class's schedule."""
        return scheduled(SklearnLossOracle(self, layout, action_mask), self.refit)


class SklearnDynamicsClass(_SklearnClass):
    """Dynamics predicted by any scikit-learn classifier with `predict_proba`: one for each layer, over the next layer's states.

    A row's prediction is restricted to its allowed next states, renormalised (uniform if all are 0), and mixed with the
    uniform distribution: (1 - smoothing) p + smoothing / K, so that no allowed transition is excluded. It has no plausible
    sets: see `opo_fast.OPO`.

    Parameters
    ----------
    estimator, features, refit, first, seed, size
        As in `SklearnLossClass`.
    support : optional
        Allowed transitions (see `Support`); default: all to the next layer. Others have probability exactly 0.
    smoothing : float
        In [0, 1].
    """

    method = "predict_proba"

    def __init__(
        self,
        estimator: Any,
        features: Callable[[Any], Any] | None = None,
        support: Any = None,
        *,
        refit: Any = "doubling",
        first: int = 10,
        smoothing: float = 1e-3,
        seed: int = 0,
        size: float | None = None,
    ) -> None:
        super().__init__(estimator, features, refit=refit, first=first, seed=seed, size=size)
        self.support, self.smoothing = support, as_number(smoothing, "smoothing", most=1.0)

    def oracle(self, layout: Layout, action_mask: Array | None = None) -> Any:
        """An oracle without data, with the class's schedule."""
        return scheduled(SklearnDynamicsOracle(self, layout, action_mask), self.refit)


class _SklearnOracle(ParametricOracle):
    """Training rows in the order of the data, and the number of episodes that each fit saw.

    A state contains the data, not the estimators, which are trained again when they are needed. This avoids pickle, and gives
    the same bits if the estimator is deterministic given data and seed.
    """

    def __init__(self, function_class: Any, layout: Layout, action_mask: Array | None) -> None:
        super().__init__(layout, action_mask)
        self.function_class = function_class
        features = pair_features(layout) if function_class.features is None else function_class.features
        self._features = FeatureMap(features, (*layout.shape, -1))
        self._parts: list[tuple[Array, Array]] = []
        self._sizes = [0]
        self._models: LRU[Any] = LRU(_KEPT)
        self._predictions: LRU[Array] = LRU(CACHE_BYTES)

    def _caches(self) -> tuple[Any, ...]:
        return self._features, self._predictions

    def _targets(self, batch: Batch) -> Array:
        raise NotImplementedError

    def _train(self, x: Array, y: Array) -> Any:
        raise NotImplementedError

    def _predict(self, model: Any, context: Any) -> Array:
        raise NotImplementedError

    def _data(self, episodes: int) -> tuple[Array, Array]:
        """Features (n, H, d) and targets of the first episodes."""
        parts = self._parts
        if len(parts) > 1:
            # Replaced in one assignment, since another thread may be reading.
            parts = self._parts = [(np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts]))]
        x, y = parts[0]
        return x[:episodes], y[:episodes]

    def _model(self, number: int) -> Any:
        found = self._models.get(number)
        if found is None:
            found = self._train(*self._data(self._sizes[number]))
            self._models.put(number, found, 1)
        return found

    def _answer(self, fit: Hashable, context: Any) -> Array:
        number = self._known(fit)
        key = number, context_key(context)
        found = self._predictions.get(key)
        if found is None:
            found = self._predict(self._model(number) if number else None, context)
            self._predictions.put(key, found, found.nbytes)
        return found

    def _prepare(self, batch: Batch) -> tuple[Array, Array]:
        n, horizon = batch.pairs.shape
        parts = [(where, self._features(context)) for context, where in grouped(batch.contexts)]
        x = np.empty((n, horizon, parts[0][1].shape[2]))
        for where, features in parts:
            x[where] = features.reshape(-1, features.shape[2])[batch.pairs[where]]
        return x, self._targets(batch)

    def _add(self, prepared: tuple[Array, Array]) -> None:
        self._parts.append(prepared)

    def _solve(self, number: int) -> bool:
        if self.episodes < self.function_class.first:
            return False
        # Train first: an error of the estimator must leave the oracle as it was.
        self._models.put(number, self._train(*self._data(self.episodes)), 1)
        self._sizes.append(self.episodes)
        return True

    def _state(self) -> dict[str, Any]:
        if not self.episodes:
            return {"sizes": np.array(self._sizes)}
        x, y = self._data(self.episodes)
        return {"sizes": np.array(self._sizes), "x": x.copy(), "y": y.copy()}

    def _restored(self, fields: Fields, number: int, episodes: int) -> dict[str, Any]:
        sizes = fields.positions("sizes", (number + 1,), most=episodes)
        fields.check("sizes", sizes[0] == 0 and bool((np.diff(sizes) > 0).all()), "does not rise from 0")
        parts = []
        if episodes:
            x = fields.numbers("x", (episodes, self.layout.horizon, None))
            fields.check(
                "x",
                self._features.shape[-1] in (-1, x.shape[2]),
                lambda: f"has {x.shape[2]} features: {self._features.shape[-1]} are needed",
            )
            parts = [(x, self._restored_targets(fields, episodes))]
        return {"_sizes": sizes.tolist(), "_parts": parts, "_models": LRU(_KEPT), "_predictions": LRU(CACHE_BYTES)}

    def _restored_targets(self, fields: Fields, episodes: int) -> Array:
        raise NotImplementedError


class SklearnLossOracle(_SklearnOracle):
    """Least squares, as well as the regressor solves it."""

    def losses(self, fit: Hashable, context: Any) -> Array:
        """Losses of a fit, shape (n_states, A)."""
        return self._answer(fit, context).copy()

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of the squared errors of a fit along a trajectory."""
        predicted = self._answer(fit, trajectory.context)[trajectory.states[:-1], trajectory.actions]
        return float(np.square(predicted - trajectory.losses).sum())

    def _targets(self, batch: Batch) -> Array:
        return batch.losses

    def _restored_targets(self, fields: Fields, episodes: int) -> Array:
        return fields.numbers("y", (episodes, self.layout.horizon), least=0.0, most=1.0)

    def _train(self, x: Array, y: Array) -> Any:
        return self.function_class.trained(x.reshape(-1, x.shape[2]), y.ravel())

    def _predict(self, model: Any, context: Any) -> Array:
        if model is None:
            return np.full(self.layout.shape, self.function_class.unseen)
        features = self._features(context)
        predicted = np.asarray(model.predict(features.reshape(-1, features.shape[2])), np.float64)
        if predicted.size != self.layout.n_states * self.layout.n_actions or not np.isfinite(predicted).all():
            raise OpoError(
                f"the estimator {type(model).__name__} predicts losses at context {context!r} that are not one finite number per pair"
            )
        return np.clip(predicted.reshape(self.layout.shape), 0.0, 1.0)


class SklearnDynamicsOracle(_SklearnOracle):
    """Log loss, as well as the classifier solves it."""

    def __init__(self, function_class: SklearnDynamicsClass, layout: Layout, action_mask: Array | None = None) -> None:
        super().__init__(function_class, layout, action_mask)
        self.support = Support(layout, function_class.support, action_mask)

    def transitions(self, fit: Hashable, context: Any) -> list[Any]:
        """Transitions of a fit, as `opo_fast.LayeredMDP` takes them."""
        return self.support.arrays(self._answer(fit, context).copy())

    def error(self, fit: Hashable, trajectory: Trajectory) -> float:
        """Sum of -log P along a trajectory; infinite if the fit excludes it."""
        return self.support.log_loss(self._answer(fit, trajectory.context), trajectory)

    def _targets(self, batch: Batch) -> Array:
        self.support.checked_cells(batch.contexts, batch.states, batch.actions)
        return batch.states[:, 1:-1] - self.layout.offsets[1:-1]

    def _restored_targets(self, fields: Fields, episodes: int) -> Array:
        sizes = np.array(self.layout.layer_sizes[1:])
        y = fields.positions("y", (episodes, sizes.size), most=int(sizes.max(initial=1)) - 1)
        fields.check("y", bool((y < sizes).all()), "holds a state beyond its layer")
        return y

    def _train(self, x: Array, y: Array) -> list[Any]:
        """A classifier for each of the layers 1..H-1, or a number if only that next state was seen."""
        models: list[Any] = []
        for h in range(self.layout.horizon - 1):
            seen = np.unique(y[:, h])
            models.append(int(seen[0]) if seen.size == 1 else self.function_class.trained(x[:, h], y[:, h]))
        return models

    def _predict(self, model: Any, context: Any) -> Array:
        support, layout, smoothing = self.support, self.layout, self.function_class.smoothing
        if model is None:
            return support.uniform
        features = self._features(context)
        p = np.empty(support.n_cells)
        for h, classifier in enumerate(model):
            rows = slice(*(int(o) * layout.n_actions for o in layout.offsets[h : h + 2]))
            part = slice(int(support.indptr[rows.start]), int(support.indptr[rows.stop]))
            table = np.zeros((rows.stop - rows.start, layout.layer_sizes[h + 1]))
            if isinstance(classifier, int):
                table[:, classifier] = 1.0
            else:
                x = features[layout.layer(h)].reshape(-1, features.shape[2])
                table[:, np.asarray(classifier.classes_, np.int64)] = classifier.predict_proba(x)
            p[part] = table[support.row_of[part] - rows.start, support.positions[part]]
        if not (np.isfinite(p).all() and (p >= 0).all()):
            raise OpoError(f"the estimator predicts probabilities at context {context!r} that are not finite numbers of at least 0")
        total = support.row_sums(p)[support.row_of]
        p = np.where(total > 0, p / np.where(total > 0, total, 1.0), support.uniform)
        return np.asarray((1.0 - smoothing) * p + smoothing * support.uniform)
