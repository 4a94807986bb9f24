"""Random models of given sizes, and sources of models for the chain engine."""

from __future__ import annotations

import itertools

import numpy as np
import scipy.sparse as sp

import opo_fast as of
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import opo_rule
from opo_fast.algorithm.self_tuning import self_tuning_rule


def rng(seed=0):
    return np.random.default_rng(seed)


def dense_arrays(sizes, n_actions, generator):
    arrays = []
    for a, b in itertools.pairwise(sizes):
        array = generator.random((a, n_actions, b))
        array /= array.sum(axis=2, keepdims=True)
        arrays.append(array)
    return arrays


def dense_mdp(sizes, n_actions, seed=0):
    generator = rng(seed)
    layout = of.Layout(sizes, n_actions)
    return of.LayeredMDP(layout, generator.random(layout.shape), dense_arrays(sizes, n_actions, generator))


def csr_array(n_rows, n_next, successors, generator, band=None):
    """Rows with `successors` random next states; with `band`, all are near the row's relative position."""
    if successors == n_next:
        indices = np.tile(np.arange(n_next), (n_rows, 1))
    elif band is None:
        indices = generator.integers(0, n_next, (n_rows, successors))
    else:
        centre = np.arange(n_rows) * n_next // n_rows
        indices = np.clip(centre[:, None] + generator.integers(-band // 2, band // 2, (n_rows, successors)), 0, n_next - 1)
    indices.sort(axis=1)
    data = generator.random((n_rows, successors)) + 0.1
    data /= data.sum(axis=1, keepdims=True)
    pointer = np.arange(0, n_rows * successors + 1, successors)
    array = sp.csr_array((data.ravel(), indices.ravel(), pointer), shape=(n_rows, n_next))
    array.sum_duplicates()
    return array


def csr_mdp(sizes, n_actions, successors, seed=0, band=None):
    generator = rng(seed)
    layout = of.Layout(sizes, n_actions)
    # The start state leads to all states, so that no row is skipped as unreachable.
    arrays = [csr_array(n_actions, sizes[1], sizes[1], generator)]
    arrays += [csr_array(a * n_actions, b, min(successors, b), generator, band) for a, b in itertools.pairwise(sizes[1:])]
    return of.LayeredMDP(layout, generator.random(layout.shape), arrays)


class OneModelEach:
    """A source with one model per context, whatever the fit: context i has model i."""

    def __init__(self, mdps):
        self.mdps = mdps

    def losses(self, fit, context):
        return self.mdps[context].row_losses

    def transitions(self, fit, context):
        return self.mdps[context].transitions


def engine_of(mdps, memory=1 << 32):
    """A chain engine over the given models, with parameters at which the policies change."""
    layout = mdps[0].layout
    rule = opo_rule(layout, 0.05, 20.0, 5.0)
    return ChainEngine(layout, None, rule, OneModelEach(mdps), memory)


class PlausibleEach(OneModelEach):
    """A source of constant plausible sets: `mdps[context]` are the candidates, and the first of them is the fit."""

    def losses(self, fit, context):
        return self.mdps[context][fit].row_losses

    def transitions(self, fit, context):
        return self.mdps[context][fit].transitions

    def lower(self, version, context):
        return self.mdps[context][1].row_losses

    def candidates(self, version):
        return tuple(range(version))


def self_tuning_engine_of(mdps, memory=1 << 32):
    """A chain engine of the self-tuning rule with plausible sets; the bonuses have no effect at its constants."""
    layout = mdps[0][0].layout
    rule = self_tuning_rule(layout, loss_class_size=10, dynamics_class_size=10, delta=0.05, episodes=None, plausible=True)
    return ChainEngine(layout, None, rule, PlausibleEach(mdps), memory)


def constant_history(n, candidates=None):
    """`n` steps under the same fits; with `candidates`, so many dynamics are plausible."""
    history = History()
    for _ in range(n):
        history.append(Fits(0, 0) if candidates is None else Fits(0, 0, 0, candidates))
    return history
