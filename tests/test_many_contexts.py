"""Runs with more distinct contexts than a result lists: summaries, files, and joining."""

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.runs import contexts as contexts_module
from opo_fast.runs import result as result_module
from opo_fast.runs import simulation as simulation_module
from opo_fast.runs.contexts import Seen, joined


@pytest.fixture
def few(monkeypatch):
    """A limit of 20 contexts in place of 10,000."""
    for module in (contexts_module, result_module, simulation_module):
        monkeypatch.setattr(module, "LISTED", 20)


def linear():
    return envs.make("random-linear", n_contexts=None)


class Named:
    """A bandit whose contexts are texts; the first ones come more often."""

    layout = of.Layout([1], 2)
    name = "named"

    def __init__(self, make=str):
        self.make = make

    def sample_context(self, rng):
        return self.make(int(60 * rng.random() ** 3))

    def mdp(self, context):
        return of.LayeredMDP(self.layout, np.array([[0.25, 0.75]]), [])


def play(env, *lengths, seed=0):
    agent = agents.make("uniform", env, episodes=sum(lengths))
    return [of.simulate(env, agent, length, seed=seed) for length in lengths]


def test_continuous_contexts_are_summarised_as_if_they_were_listed(few, monkeypatch, tmp_path):
    (result,) = play(linear(), 101)
    assert result.contexts == []
    assert result.many is not None
    assert result.continuous
    assert result.distinct == 101
    for module in (contexts_module, result_module, simulation_module):
        monkeypatch.setattr(module, "LISTED", 10_000)
    (listed,) = play(linear(), 101)
    assert listed.many is None
    assert str(result.summary_by_quarter(most=2)) == str(listed.summary_by_quarter(most=2))  # as texts, since NaN is not equal to itself
    result.save(tmp_path / "r.npz")
    again = of.SimulationResult.load(tmp_path / "r.npz")
    assert str(again.summary_by_quarter()) == str(result.summary_by_quarter())
    np.testing.assert_array_equal(again.many.digests, result.many.digests)


@pytest.mark.parametrize("make", [str, int, lambda i: ("ward", i)])
@pytest.mark.parametrize("lengths", [(15, 185), (100, 100), (185, 15), (8, 8)])
def test_a_run_in_parts_is_the_unbroken_one(few, lengths, make, tmp_path):
    (whole,) = play(Named(make), sum(lengths))
    first, second = play(Named(make), *lengths)
    first.save(tmp_path / "first.npz")
    both = of.SimulationResult.load(tmp_path / "first.npz") + second
    np.testing.assert_array_equal(both.context_index, whole.context_index)
    np.testing.assert_array_equal(both.value, whole.value)
    assert both.contexts == whole.contexts
    assert str(both.summary()) == str(whole.summary())
    assert (both.many is None) == (whole.many is None)
    if whole.many is not None:
        np.testing.assert_array_equal(both.many.digests, whole.many.digests)
    if whole.continuous:
        assert str(both.summary_by_quarter()) == str(whole.summary_by_quarter())


def test_texts_are_summarised_by_how_often_they_came(few):
    (result,) = play(Named(), 300)
    assert not result.continuous
    *lines, total = result.summary()
    visits = np.bincount(result.context_index)
    expected = {"once": visits == 1, "2 to 9": (visits >= 2) & (visits < 10), "10 to 99": (visits >= 10) & (visits < 100)}
    assert sum(line.episodes for line in lines) == total.episodes == 300
    for span, which in expected.items():
        line = next(line for line in lines if line.label.startswith(f"{which.sum():,} contexts that came {span}"))
        assert line.episodes == visits[which].sum()
    with pytest.raises(of.OpoError, match="the contexts are not numbers"):
        result.summary_by_quarter()


def test_whole_numbers_beyond_the_list_are_summarised_by_quarters(few):
    (result,) = play(Named(int), 300)
    *lines, _ = result.summary_by_quarter()
    assert [line.label.split(" ")[0] for line in lines] == ["context"] * 4
    assert sum(line.episodes for line in lines) == 300


def test_results_of_an_older_version_are_not_joined(few):
    first, second = play(Named(), 100, 100)
    first.many = None
    with pytest.raises(
        of.OpoError, match=r"that an older version wrote does not say which .* are equal: go on with simulate\(\.\.\., resume="
    ):
        first.join(second)


def test_vectors_of_two_lengths_are_told_apart_without_places():
    one, two = Seen([np.array([1.0, 2.0])]).many(), Seen([np.array([1.0, 2.0, 3.0])]).many()
    both, numbers = joined(one, two)
    assert both.points is None
    assert numbers.tolist() == [1]
    same, numbers = joined(one, Seen([np.array([1, 2]), np.array([3.0, 4.0])]).many())
    assert numbers.tolist() == [0, 1]
    assert same.points.tolist() == [[1.0, 2.0], [3.0, 4.0]]


class Spread:
    """A bandit whose contexts are numbers."""

    layout = Named.layout
    name = "spread"
    model = of.LayeredMDP(layout, np.array([[0.25, 0.75]]), [])

    def sample_context(self, rng):
        return rng.random()

    def mdp(self, context):
        return self.model


def test_ten_thousand_and_more():
    (result,) = play(Spread(), 10_050)
    assert result.contexts == []
    lines = result.summary_by_quarter(most=1)
    assert [line.episodes for line in lines] == [2513, 2512, 2512, 2513, 10_050]
