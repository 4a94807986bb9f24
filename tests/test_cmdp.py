"""Contexts, their keys and draws, and trajectories."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast.model.contextual import check_trajectory, context_key


@pytest.fixture
def mdps():
    rng = np.random.default_rng(0)
    return [random_model(rng, [1, 3, 2], 2) for _ in range(3)]


def test_finite_contexts_is_a_contextual_mdp(mdps):
    cmdp = of.FiniteContexts(mdps, [0.5, 0.25, 0.25], ["mild", "moderate", "severe"], name="wards")
    assert isinstance(cmdp, of.ContextualMDP)
    assert cmdp.layout == mdps[0].layout
    assert cmdp.mdp(2) is mdps[2]
    assert cmdp.mdp(np.int64(1)) is mdps[1]
    assert cmdp.labels == ("mild", "moderate", "severe")
    assert of.FiniteContexts(iter(mdps)).probabilities.tolist() == [1 / 3] * 3
    assert repr(cmdp) == "<FiniteContexts 'wards': 3 contexts of Layout([1, 3, 2], n_actions=2)>"
    assert not isinstance(mdps[0], of.ContextualMDP)


def test_contexts_are_drawn_by_inverse_cdf_from_one_uniform(mdps):
    cmdp = of.FiniteContexts(mdps, [0.5, 0.0, 0.5])
    uniforms = np.random.default_rng(4).random(200)
    rng = np.random.default_rng(4)
    assert [cmdp.sample_context(rng) for _ in range(200)] == [0 if u < 0.5 else 2 for u in uniforms]


@pytest.mark.parametrize("probabilities", [[0.5, 0.5 - 5e-9, 0.0], [0.0, 1.0 - 1e-9, 0.0]])
def test_a_context_of_probability_0_is_never_drawn(mdps, probabilities):
    """Not even by a uniform above the sum of the probabilities, which rounding may leave below 1."""

    class Last(np.random.Generator):
        def random(self):
            return 1 - 2**-53

    assert of.FiniteContexts(mdps, probabilities).sample_context(Last(np.random.PCG64(0))) == 1


def test_float32_probabilities_have_their_tolerance(mdps):
    probabilities = np.array([0.1, 0.2, 0.7], np.float32)
    assert abs(probabilities.astype(float).sum() - 1) > 1e-9
    cmdp = of.FiniteContexts(mdps, probabilities)
    assert cmdp.probabilities.dtype == np.float64


def test_keys_of_contexts():
    features = np.array([1.0, 2.0])
    assert context_key(features) == context_key(features.copy())
    assert context_key(features) == context_key(np.array([0.0, 1.0, 9.0, 2.0])[1::2])
    assert context_key(features) != context_key(features[::-1])
    assert context_key(features) == context_key(features.astype(np.float32))
    assert context_key(features) != context_key(features[None])
    # Whole numbers whose squares sum to -2**63 in 64 bits.
    assert context_key(np.full(2, 2**53 + 2**31)) != context_key(np.full(2, 2**53 + 2**31 + 1))
    assert context_key(("ward", 3)) == ("ward", 3)
    assert {context_key(np.array(c)) for c in (0, 0, 1)} == {context_key(np.array(0)), context_key(np.array(1))}
    with pytest.raises(of.OpoError, match="context is a list, which is not hashable"):
        context_key([1.0, 2.0])
    with pytest.raises(of.OpoError, match="context is an array of dtype object"):
        context_key(np.array([None]))


def test_a_checked_trajectory_has_plain_arrays(mdps):
    layout = mdps[0].layout
    given = of.Trajectory("c", [0, 2, 4, 6], np.array([1, 0, 1], np.uint8), [True, False, True])
    checked = check_trajectory(layout, None, given)
    assert checked.context == "c"
    assert (checked.states.dtype, checked.actions.dtype, checked.losses.dtype) == (np.int64, np.int64, np.float64)
    assert checked.losses.tolist() == [1.0, 0.0, 1.0]
    assert given.actions.dtype == np.uint8


def test_a_trajectory_is_checked_for_the_layout_and_mask_at_hand(mdps):
    """A trajectory that was checked for one layout and mask is checked again for another."""
    layout = mdps[0].layout
    checked = check_trajectory(layout, None, of.Trajectory(0, [0, 2, 4, 6], [1, 0, 1], [0.0, 0.0, 0.0]))
    mask = np.ones(layout.shape, bool)
    mask[2, 0] = False
    with pytest.raises(of.OpoError, match="masked in state 2"):
        check_trajectory(layout, mask, checked)
    with pytest.raises(of.OpoError, match=r"trajectory\.states\[1\] is 2"):
        check_trajectory(of.Layout([1, 1, 4], 2), None, checked)


def test_an_episode_that_was_played_is_valid(mdps):
    rng = np.random.default_rng(1)
    for mdp in mdps:
        episode = of.rollout(mdp, mdp.uniform_policy(), rng, context=3)
        checked = check_trajectory(mdp.layout, mdp.action_mask, episode)
        assert checked.states.tolist() == episode.states.tolist()
        assert episode.states[-1] == mdp.layout.n_states
