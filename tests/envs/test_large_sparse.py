"""Inventory and queueing network: transitions by brute force, the flat constructor, and memory during construction."""

import itertools
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast import envs
from opo_fast.model.transitions import Transitions


def binomial(n, p):
    from math import comb

    return [comb(n, d) * p**d * (1 - p) ** (n - d) for d in range(n + 1)]


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.floats(0.05, 0.95))
def test_inventory_by_brute_force(items, capacity, batch, most, p):
    e = envs.inventory(3, items=items, capacity=capacity, batch=batch, most=most, demands=(p,), holding=0.3, shortage=2, ordering=0.7)
    m = e.mdp(0)
    shape = (capacity + 1,) * items
    n = int(np.prod(shape))
    P, cost = np.zeros((n, items + 1, n)), np.zeros((n, items + 1))
    for s, levels in enumerate(itertools.product(range(capacity + 1), repeat=items)):
        for a in range(items + 1):
            stock = [min(x + batch * (a == i + 1), capacity) for i, x in enumerate(levels)]
            cost[s, a] += 0.7 * (a > 0)
            for demand in itertools.product(range(most + 1), repeat=items):
                chance = np.prod([binomial(most, p)[d] for d in demand])
                left = [max(x - d, 0) for x, d in zip(stock, demand, strict=True)]
                lost = [max(d - x, 0) for x, d in zip(stock, demand, strict=True)]
                P[s, a, np.ravel_multi_index(left, shape)] += chance
                cost[s, a] += chance * (0.3 * sum(left) + 2 * sum(lost))
    stored = m.transitions.arrays()
    assert np.abs(stored[1].toarray().reshape(P.shape) - P).max() <= 1e-14
    assert np.abs(stored[0].toarray() - P[-1]).max() <= 1e-14
    assert stored[1].nnz == (P > 0).sum()
    assert np.abs(-e.reward_map.rewards(m.losses[1 : n + 1]) - cost).max() <= 1e-12
    assert np.abs(m.losses[0] - m.losses[n]).max() == 0


@given(st.integers(1, 3), st.integers(1, 3), st.lists(st.sampled_from([0.0, 0.3, 0.9, 1.0]), min_size=6, max_size=6))
def test_queues_by_brute_force(queues, capacity, rates):
    arrival, service = rates[:queues], rates[3 : 3 + queues]
    e = envs.queue_network(3, queues=queues, capacity=capacity, arrivals=[arrival], service=service)
    m = e.mdp(0)
    shape = (capacity + 1,) * queues
    n = int(np.prod(shape))
    P = np.zeros((n, queues, n))
    for s, jobs in enumerate(itertools.product(range(capacity + 1), repeat=queues)):
        for a in range(queues):
            for served in (0, 1):
                for come in itertools.product((0, 1), repeat=queues):
                    x = list(jobs)
                    if served and x[a] > 0:
                        x[a] -= 1
                        if a + 1 < queues:
                            x[a + 1] = min(x[a + 1] + 1, capacity)
                    x = [min(k + c, capacity) for k, c in zip(x, come, strict=True)]
                    chance = (service[a] if served else 1 - service[a]) * np.prod(
                        [r if c else 1 - r for r, c in zip(arrival, come, strict=True)]
                    )
                    P[s, a, np.ravel_multi_index(x, shape)] += chance
    stored = m.transitions.arrays()
    assert np.abs(stored[1].toarray().reshape(P.shape) - P).max() <= 1e-14
    assert np.abs(stored[0].toarray() - P[0]).max() <= 1e-14
    assert stored[1].nnz == (P > 0).sum()
    assert -e.reward_map.rewards(m.losses[1:][n - 1, 0]) == pytest.approx(queues * capacity)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_bits_do_not_depend_on_threads(threads, set_threads):
    set_threads(threads)
    t = envs.inventory(5, items=3, capacity=4).mdp(1).transitions
    set_threads(1)
    u = envs.inventory(5, items=3, capacity=4).mdp(1).transitions
    assert t.data.tobytes() == u.data.tobytes()
    assert t.indices.tobytes() == u.indices.tobytes()
    assert t.indptr.tobytes() == u.indptr.tobytes()


@pytest.mark.parametrize("horizon", [1, 2, 3])
def test_short_horizons(horizon):
    for make in (envs.inventory, envs.queue_network):
        e = make(horizon, capacity=2)
        assert e.layout.horizon == horizon
        assert 0 <= of.solve(e.mdp(0)).v[0] <= horizon


def test_building_takes_at_most_half_more_than_the_model():
    envs.inventory(4, items=2, capacity=3, demands=(0.5,)).mdp(0)
    e = envs.inventory(4, items=3, capacity=29, demands=(0.5,))
    tracemalloc.start()
    m = e.mdp(0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert m.layout.layer_sizes[1] == 27_000
    assert peak <= 1.5 * (m.transitions.nbytes + m.losses.nbytes)


# -- the flat constructor -----------------------------------------------------------------------------------------------

LAYOUT = of.Layout([1, 2, 2], 2)


def flat(**change):
    arrays = {
        "data": np.array([0.5, 0.5, 1.0, 1.0, 1.0, 0.25, 0.75, 1.0]),
        "indptr": np.array([0, 2, 3, 3, 4, 5, 7, 8]),
        "indices": np.array([0, 1, 1, 0, 1, 0, 1, 1], np.uint32),
        "block": np.array([0, 3, 0]),
        **change,
    }
    return Transitions.from_flat(LAYOUT, *(arrays[k] for k in ("data", "indptr", "indices", "block")))


def test_flat_arrays_are_adopted_and_equal_what_they_say():
    t = flat()
    first, second = t.arrays()
    assert first.toarray().tolist() == [[0.5, 0.5], [0, 1]]
    assert second.toarray().tolist() == [[1, 0], [0, 1], [0.25, 0.75], [0, 1]]
    data = np.array([0.5, 0.5, 1.0, 1.0, 1.0, 0.25, 0.75, 1.0])
    adopted = flat(data=data)
    assert np.shares_memory(adopted.data, data)
    losses = np.random.default_rng(0).random(LAYOUT.shape)
    copied = of.LayeredMDP(LAYOUT, losses, [first, second])
    assert of.solve(of.LayeredMDP(LAYOUT, losses, t)).v[0] == of.solve(copied).v[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"data": np.array([0.5, 0.6, 1.0, 1.0, 1.0, 0.25, 0.75, 1.0])}, r"layer 0.*action 0: the row sums to 1\.1"),
        ({"data": np.array([0.5, 0.5, 1.0, 1.0, 1.0, -0.25, 1.25, 1.0])}, r"layer 1.*action 0: the probability of next state 0 is -0\.25"),
        ({"indices": np.array([1, 0, 1, 0, 1, 0, 1, 1], np.uint32)}, "layer 0, row 0"),
        ({"indices": np.array([0, 1, 1, 0, 1, 0, 2, 1], np.uint32)}, "layer 1, row 2"),
        ({"indices": np.array([0, 1, 1, 0, 1, 1, 1, 1], np.uint32)}, "layer 1, row 2"),
        ({"indptr": np.array([0, 2, 3, 3, 4, 5, 7, 9])}, "do not fit"),
        ({"indptr": np.array([0, 2, 3, 3, 4, 8, 7, 8])}, "layer 1, row 1"),
        ({"block": np.array([0, 5, 0])}, r"block\[1\] is 5"),
        ({"block": np.array([0, 3])}, "block has shape"),
        ({"data": np.zeros(8, np.int64)}, "data: a contiguous vector of float64 or float32"),
        ({"indices": np.zeros(8, np.int64)}, "indices: a contiguous vector of uint32"),
        ({"data": np.zeros(7)}, "block has shape|are needed"),
    ],
)
def test_flat_arrays_that_are_refused(change, words):
    with pytest.raises(of.OpoError, match=words):
        flat(**change)
