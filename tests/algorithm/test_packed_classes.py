"""Arrays of whole finite classes at the contexts of a pack, against the candidates one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import opo_fast as of
from opo_fast.algorithm.packed_classes import PackedClasses
from opo_fast.model.transitions import Transitions

SIZES, ACTIONS, N = [1, 2, 3], 2, 4
CONTEXTS = [0.1, 0.4, 0.9]


def world(masked):
    rng = np.random.default_rng(0)
    layout = of.Layout(SIZES, ACTIONS)
    losses = rng.random((N, *layout.shape)) / 2
    arrays = [rng.dirichlet(np.ones(m), (N, n, ACTIONS)) for n, m in itertools.pairwise(SIZES)]
    mask = None
    if masked:
        mask = np.ones(layout.shape, bool)
        mask[1, 0] = mask[4, 1] = False
    return layout, lambda c: losses * (1 + c), lambda c: [(1 - c) * a + c / a.shape[-1] for a in arrays], mask


def agent_of(layout, losses, dynamics, mask, **options):
    loss_class, dynamics_class = of.FiniteLossClass.from_function(losses, N), of.FiniteDynamicsClass.from_function(dynamics, N)
    return of.OPO(layout, loss_class, dynamics_class, action_mask=mask, **options)


@pytest.mark.parametrize("masked", [False, True])
def test_each_lane_holds_the_candidates_of_its_context(masked):
    layout, losses, dynamics, mask = world(masked)
    classes = PackedClasses.of(agent_of(layout, losses, dynamics, mask).engine, CONTEXTS)
    allowed = np.ones(layout.shape, bool) if mask is None else mask
    for i in range(N):
        assert classes.has(i)
        for lane, context in enumerate(CONTEXTS):
            assert (classes.losses[i].reshape(-1, 8)[:, lane] == losses(context)[i][allowed]).all()
            rows = [array[i][allowed[layout.layer(h)]].ravel() for h, array in enumerate(dynamics(context))]
            assert (classes.dynamics[i].reshape(-1, 8)[:, lane] == np.concatenate(rows)).all()
        assert not classes.dynamics[i].reshape(-1, 8)[:, len(CONTEXTS) :].any()
    least = classes.least(np.array([1, 3])).reshape(-1, 8)[:, 1]
    assert (least == losses(CONTEXTS[1])[[1, 3]].min(axis=0)[allowed]).all()
    assert not classes.has(N)
    assert not classes.has("0")


@pytest.mark.parametrize(("h", "s", "a", "value"), [(0, 0, 1, np.nan), (1, 1, 0, -0.25), (1, 0, 1, 2.0)])
def test_a_candidate_that_is_none_is_refused_where_it_is_used_and_nowhere_else(h, s, a, value):
    layout, losses, dynamics, _ = world(False)

    def faulty(context):
        arrays = dynamics(context)
        if context == CONTEXTS[1]:
            arrays[h][2, s, a, 0] = value
        return arrays

    agent = agent_of(layout, losses, faulty, None)
    classes = PackedClasses.of(agent.engine, CONTEXTS)
    assert [classes.has(i) for i in range(N)] == [True, True, False, True]
    # All candidates are plausible before any data, so a chain of one step evaluates them.
    agent.observe(
        of.rollout(
            of.LayeredMDP(layout, losses(0.1)[0], [x[0] for x in dynamics(0.1)]), agent.uniform(), np.random.default_rng(0), context=0.1
        )
    )
    with pytest.raises(of.OpoError, match=f"transitions of fit 2 at context {CONTEXTS[1]}.*layer {h}"):
        agent.policy(CONTEXTS[1])
    assert agent.policy(CONTEXTS[0]).shape == layout.shape


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", [{}, {"eta": 0.5, "beta_loss": 1.0, "beta_dynamics": 0.2}])
def test_one_function_and_a_function_for_each_candidate_give_the_same_bits(masked, options):
    layout, losses, dynamics, mask = world(masked)
    one = agent_of(layout, losses, dynamics, mask, **options)
    each = of.OPO(
        layout,
        of.FiniteLossClass([lambda c, i=i: losses(c)[i] for i in range(N)]),
        # Prebuilt transitions are not converted to arrays of the whole class.
        of.FiniteDynamicsClass([lambda c, i=i: Transitions(layout, [a[i] for a in dynamics(c)], action_mask=mask) for i in range(N)]),
        action_mask=mask,
        **options,
    )
    rng = np.random.default_rng(3)
    for t in range(40):
        context = CONTEXTS[t % 3] + 0.01 * (t // 12)
        policy = one.policy(context)
        assert (policy == each.policy(context)).all()
        mdp = of.LayeredMDP(layout, losses(context)[1], [a[1] for a in dynamics(context)], action_mask=mask)
        trajectory = of.rollout(mdp, policy, rng, context=context)
        one.observe(trajectory)
        each.observe(trajectory)
    assert PackedClasses.of(each.engine, [0.1]) is None


def test_a_function_that_writes_into_one_array_is_taken_at_its_word():
    layout, _, dynamics, _ = world(False)
    room = [np.empty_like(array) for array in dynamics(0.0)]

    def writes(context):
        for into, array in zip(room, dynamics(context), strict=True):
            into[...] = array
        return room

    one, other = (of.FiniteDynamicsClass.from_function(f, N).oracle(layout, None) for f in (writes, dynamics))
    for context in CONTEXTS:
        one.transitions(0, context)
    for context in CONTEXTS:
        for found, wanted in zip(one.transitions(1, context), other.transitions(1, context), strict=True):
            assert (found == wanted).all()
