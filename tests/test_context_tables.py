"""Tables of contexts: what the oracles say of several contexts at once, and models whose arrays are copied side by side."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast._support.lru import LRU
from opo_fast.model.batches import model_table
from opo_fast.model.layout import aligned_parts
from opo_fast.runs.lockstep import Lockstep
from opo_fast.runs.simulation import Simulation, play_out
from opo_fast.runs.tables import COPIED, FIRST, ContextTables, models_side_by_side, start_values

N, SIZES, ACTIONS = 4, [1, 3, 2, 3], 2
LAYOUT = of.Layout(SIZES, ACTIONS)


class World:
    """A fresh context each episode; `asked` has what the functions were asked for."""

    def __init__(self):
        rng = np.random.default_rng(6)
        self.layout, self.asked = LAYOUT, []
        self._losses = rng.random((N, *LAYOUT.shape)) / 2
        self._arrays = [rng.dirichlet(np.ones(m), (N, n, ACTIONS)) for n, m in itertools.pairwise(SIZES)]
        self.loss_class = of.FiniteLossClass.from_function(self.losses, N)
        self.dynamics_class = of.FiniteDynamicsClass.from_function(self.arrays, N)

    def losses(self, context):
        self.asked.append(context)
        return self._losses * (1 + context)

    def arrays(self, context):
        self.asked.append(context)
        return [(1 - context) * a + context / a.shape[-1] for a in self._arrays]

    def sample_context(self, rng):
        return float(rng.random())

    def mdp(self, context):
        return of.LayeredMDP(LAYOUT, self._losses[1] * (1 + context), [(1 - context) * a[1] + context / a.shape[-1] for a in self._arrays])


def tables_of(world, dynamics_class=None):
    oracles = world.loss_class.oracle(LAYOUT, None), (dynamics_class or world.dynamics_class).oracle(LAYOUT, None)
    return ContextTables(*oracles, 1), oracles


def add(tables, world, contexts):
    assert tables.find(contexts, contexts, [world.mdp(c) for c in contexts], set(contexts))


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_the_tables_say_what_the_oracles_say_and_ask_once(order):
    world = World()
    tables, (losses, dynamics) = tables_of(world)
    contexts = np.random.default_rng(0).random(FIRST + 10).tolist()
    add(tables, world, contexts[:8])
    add(tables, world, contexts)
    assert len(world.asked) == 2 * len(contexts)
    some = contexts[5:13][order]
    f, p = tables.candidates(some)
    for i, context in enumerate(some):
        assert f[i].tobytes() == losses.candidates_at(context).tobytes()
        assert p[i].tobytes() == dynamics.candidates_at(context).tobytes()
    assert len(world.asked) == 2 * len(contexts)
    assert tables.candidates([contexts[0], 2.0]) is None


def test_the_tables_give_no_candidates_that_oracles_keep_in_another_form():
    world = World()
    each = of.FiniteDynamicsClass([lambda c, i=i: [a[i] for a in world.arrays(c)] for i in range(N)])
    tables, _ = tables_of(world, each)
    add(tables, world, [0.1, 0.2])
    assert tables.candidates([0.1]) is None


def test_lines_of_contexts_that_are_not_needed_are_used_again(monkeypatch):
    world = World()
    tables, (losses, _) = tables_of(world)
    tables.most = FIRST
    contexts = np.random.default_rng(1).random(3 * FIRST).tolist()
    for begin in range(0, len(contexts), 16):
        add(tables, world, contexts[begin : begin + 16])
        assert len(tables.lines) <= FIRST
        f, _ = tables.candidates(contexts[begin : begin + 16])
        assert f.tobytes() == b"".join(losses.candidates_at(c).tobytes() for c in contexts[begin : begin + 16])


def new_models(form, count, seed=0, mask=None):
    rng = np.random.default_rng(seed)
    return [random_model(rng, SIZES, ACTIONS, form, mask=mask) for _ in range(count)]


@pytest.mark.parametrize("form", ["dense", "csr"])
@pytest.mark.parametrize("old", [False, True])
def test_models_side_by_side_are_the_models(form, old):
    models = new_models(form, 5)
    if form == "dense":
        models = [of.LayeredMDP(LAYOUT, m.losses, m.transitions.arrays()) for m in models]
    if old:
        model_table(models)
    table = models_side_by_side(models)
    assert (table[1] is models[0].transitions.data) == (old or form == "csr")
    policies = np.random.default_rng(2).dirichlet(np.ones(ACTIONS), (5, LAYOUT.n_states)).reshape(5, -1)
    found = start_values(models, table, policies)
    expected = [of.evaluate(m, p.reshape(LAYOUT.shape)).v[0] for m, p in zip(models, policies, strict=True)]
    assert found.tolist() == expected


def test_models_that_are_not_small_or_of_an_equal_layout_are_not_copied():
    models = [of.LayeredMDP(LAYOUT, m.losses, m.transitions.arrays()) for m in new_models("dense", 2)]
    many = models * (COPIED // models[0].transitions.data.size)
    assert models_side_by_side(many)[1] is models[0].transitions.data
    other = of.LayeredMDP(of.Layout(SIZES, ACTIONS), models[0].losses, models[0].transitions.arrays())
    assert models_side_by_side([models[1], other])[1] is models[1].transitions.data


def test_a_block_that_ends_without_a_change_does_not_make_the_next_ones_short(monkeypatch):
    sizes, play = [], Lockstep._play_block

    def counted(self, block):
        sizes.append(block.size)
        return play(self, block)

    monkeypatch.setattr(Lockstep, "_play_block", counted)
    world = World()
    agent = of.OPO(LAYOUT, world.loss_class, world.dynamics_class, eta=0.1, beta_loss=1.0, beta_dynamics=1.0)
    play_out(Simulation(world, agent, 600))
    # At 128 to 600 episodes every 8th, 16th or 32nd has all its pairs looked at.
    assert sizes[-1] > 1
    assert len(sizes) < 110


def test_several_values_are_stored_as_single_ones_are():
    one, many = LRU(30), LRU(30)
    for key in "abcdab":
        one.put(key, key.upper(), 10)
    many.put_all([(key, key.upper()) for key in "abcdab"], 10)
    assert (one._values, one.nbytes) == (many._values, many.nbytes)


def test_parts_of_one_array_begin_on_cache_lines():
    parts = aligned_parts([3, 0, 17, 8])
    assert [part.size for part in parts] == [3, 0, 17, 8]
    for i, part in enumerate(parts):
        assert part.ctypes.data % 64 == 0
        assert not part.any()
        part[:] = i + 1
    assert [part.tolist() for part in parts] == [[1] * 3, [], [3] * 17, [4] * 8]
