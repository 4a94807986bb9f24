"""The plausible sets of a chain: lower losses, and tables of candidate dynamics for the kernels."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .history import Fits, History

if TYPE_CHECKING:
    from .chain import Chain

__all__ = ["PlausibleModels"]

Array = npt.NDArray[Any]

KEPT = 16
"""Number of versions of a set above which a chain forgets those that no nearby step uses."""


class Candidates(NamedTuple):
    """The plausible dynamics of one version of the set.

    Attributes
    ----------
    fits : tuple
    radius : ndarray
        Empty if the candidates are the plausible dynamics. Otherwise there is one candidate, and for each row (allowed state-action
        pair) the largest total variation distance of a plausible dynamics from it.
    table : ndarray of int64
        Addresses of the candidates for the kernels.
    models : list
        The candidates, which keep that memory alive.
    copied : int
        Bytes of the candidates that are copies in another dtype.
    """

    fits: tuple[Hashable, ...]
    radius: Array
    table: Array
    models: list[Any]
    copied: int = 0


class PlausibleModels:
    """The plausible losses and dynamics at the contexts of a chain, by version of their set.

    The chain is not kept: it keeps this object, and dropped chains would stay in memory until the garbage collector looks for cycles.
    """

    def __init__(self, chain: Chain) -> None:
        self.lower: dict[Hashable, Array] = {}
        self.candidates: dict[Hashable, Candidates] = {}
        # Numba compiles read-only arguments separately. Arrays of a single context are read-only, those of a pack are not.
        self.no_rows = np.empty(0)
        self.no_rows.flags.writeable = chain.lanes > 1
        self.none = Candidates((), self.no_rows, chain.table([]), [])

    @property
    def nbytes(self) -> int:
        """Bytes held, without the models, which the chain counts."""
        lower = sum(array.nbytes for array in self.lower.values())
        return lower + sum(found.radius.nbytes + found.copied for found in self.candidates.values())

    @property
    def fits(self) -> set[Hashable]:
        """Fits of all candidates that are held."""
        return {fit for found in self.candidates.values() for fit in found.fits}

    def prepare(self, chain: Chain, fits: Fits) -> tuple[Array, Candidates, Any]:
        """The lower losses and the candidates of a step, both empty if there are no plausible sets, and the dynamics of the fit."""
        source = chain.engine.source
        if fits.loss_version is None:
            return self.no_rows, self.none, chain.model(fits.dynamics)
        lower = self.lower.get(fits.loss_version)
        if lower is None:
            lower = self.lower[fits.loss_version] = chain.lower(fits.loss_version)
        found = self.candidates.get(fits.dynamics_version)
        if found is None or (found.radius.size and found.fits != (fits.dynamics,)):
            listed = source.candidates(fits.dynamics_version)
            radius = self.no_rows
            if listed is None:
                listed = (fits.dynamics,)
                radius = chain.interleave([source.radius(fits.dynamics_version, context) for context in chain.contexts])
            found = self._candidates(chain, listed, radius, [chain.model(fit) for fit in listed])
            self.candidates[fits.dynamics_version] = found
        if fits.dynamics in found.fits:
            return lower, found, found.models[found.fits.index(fits.dynamics)]
        model, *models = chain.alike([chain.model(fits.dynamics), *found.models])
        if models != found.models:
            found = self.candidates[fits.dynamics_version] = self._candidates(chain, found.fits, found.radius, models)
        return lower, found, model

    def _candidates(self, chain: Chain, fits: tuple[Hashable, ...], radius: Array, given: list[Any]) -> Candidates:
        models = chain.alike(given)
        copied = sum(model.nbytes for fit, model in zip(fits, models, strict=True) if model is not chain.models.get(fit))
        return Candidates(fits, radius, chain.table(models, fits), models, copied)

    def forget(self, chain: Chain, history: History, step: int, n: int) -> None:
        """Forget sets that no nearby step uses, and their models; if needed again, the oracles are asked again."""
        if len(self.candidates) <= KEPT and len(self.lower) <= KEPT:
            return
        near = history.between(max(0, step - 1), min(n, step + 1))
        self.lower = {version: self.lower[version] for version in {fits.loss_version for fits in near} & set(self.lower)}
        versions = {fits.dynamics_version for fits in near} & set(self.candidates)
        self.candidates = {version: self.candidates[version] for version in versions}
        used = self.fits | {fits.dynamics for fits in near}
        chain.models = {fit: model for fit, model in chain.models.items() if fit in used}
