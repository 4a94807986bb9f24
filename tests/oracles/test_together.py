"""Finite classes from one function that gives all candidates at once equal those with one function per candidate."""

from __future__ import annotations

import numpy as np
import pytest

import opo_fast as of

LAYOUT = of.Layout([1, 3, 2], n_actions=2)
N = 5
RNG = np.random.default_rng(0)
LOSSES = RNG.random((2, N, *LAYOUT.shape))
BLOCKS = [RNG.dirichlet(np.ones(shape[-1]), (2, N, *shape[:2])) for shape in LAYOUT.dense_shapes]


def losses(context):
    return (1 - context) * LOSSES[0] + context * LOSSES[1]


def blocks(context):
    return [(1 - context) * first + context * second for first, second in BLOCKS]


def classes(together):
    if together:
        return of.FiniteLossClass.from_function(losses, N), of.FiniteDynamicsClass.from_function(blocks, N)
    one = of.FiniteLossClass([lambda c, i=i: losses(c)[i] for i in range(N)])
    return one, of.FiniteDynamicsClass([lambda c, i=i: [block[i] for block in blocks(c)] for i in range(N)])


class World:
    layout = LAYOUT

    def sample_context(self, rng):
        return float(rng.random())

    def mdp(self, context):
        return of.LayeredMDP(LAYOUT, losses(context)[3], [block[3] for block in blocks(context)])


@pytest.mark.parametrize("tuning", [{}, {"eta": 0.5, "beta_loss": 0.1, "beta_dynamics": 0.01}])
def test_a_run_is_the_same_to_the_last_bit(tuning):
    runs = [of.simulate(World(), of.OPO(LAYOUT, *classes(together), **tuning), 60, seed=1, progress=False) for together in (False, True)]
    assert runs[0].value.tolist() == runs[1].value.tolist()
    assert runs[0].cumulative_regret[-1] > 0


def test_the_function_is_asked_once_for_a_context():
    asked = []

    def counted(context):
        asked.append(context)
        return losses(context)

    oracle = of.FiniteLossClass.from_function(counted, N).oracle(LAYOUT, None)
    for fit in range(N):
        np.testing.assert_array_equal(oracle.losses(fit, 0.25), losses(0.25)[fit])
    assert asked == [0.25]
    both = classes(True)
    np.testing.assert_array_equal(both[0].models[2](0.5), losses(0.5)[2])
    np.testing.assert_array_equal(both[1].models[2](0.5)[1], blocks(0.5)[1][2])
    assert len(both[1]) == N
    assert both[1].names[4] == "dynamics 4"


def test_one_layer_needs_no_transitions():
    layout = of.Layout([1], 2)
    oracle = of.FiniteDynamicsClass.from_function(lambda c: [], 2).oracle(layout, None)
    oracle.observe(of.Trajectory(0, np.array([0, 1]), np.array([1]), np.array([0.5])))
    assert oracle.scores.tolist() == [0.0, 0.0]
    assert oracle.transitions(1, 0) == []


def texts():
    return of.FiniteDynamicsClass.from_function(lambda c: [block.astype(str) for block in blocks(c)], N)


WRONG = {
    "callable": lambda: of.FiniteLossClass.from_function(3, 2),
    "whole number": lambda: of.FiniteLossClass.from_function(losses, 0),
    "names has": lambda: of.FiniteLossClass.from_function(losses, 2, ["a"]),
    "have shape": lambda: of.FiniteLossClass.from_function(losses, 4).oracle(LAYOUT, None).losses(0, 0.5),
    r"number in \[0, 1\]": lambda: of.FiniteLossClass.from_function(lambda c: losses(c) + 1, N).oracle(LAYOUT, None).losses(0, 0.5),
    "layer 0 have shape": lambda: of.FiniteDynamicsClass.from_function(blocks, 4).oracle(LAYOUT, None).transitions(0, 0.5),
    "H - 1 = 2": lambda: of.FiniteDynamicsClass.from_function(lambda c: blocks(c)[:1], N).oracle(LAYOUT, None).transitions(0, 0.5),
    "real numbers": lambda: texts().oracle(LAYOUT, None).transitions(0, 0.5),
}


@pytest.mark.parametrize("says", WRONG)
def test_what_does_not_fit_is_refused(says):
    with pytest.raises(of.OpoError, match=says):
        WRONG[says]()


def test_numbers_of_another_type_are_taken():
    oracle = of.FiniteDynamicsClass.from_function(lambda c: [block.astype(np.float32) for block in blocks(c)], N).oracle(LAYOUT, None)
    np.testing.assert_allclose(oracle.transitions(1, 0.5)[0], blocks(0.5)[0][1], rtol=1e-6)
