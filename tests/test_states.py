"""Loaded states are checked completely before anything is changed; the error names the field."""

from __future__ import annotations

import copy
import sys
from pathlib import Path

import numpy as np
import pytest

import opo_fast as of
from opo_fast import oracles
from opo_fast.agents.chain_agent import ChainAgent
from opo_fast.algorithm.rules import ChainRule
from opo_fast.runs.simulation import Simulation

sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
import worlds


def snapshot(thing):
    return str(thing.state())


def refused(name, field, value, match):
    """Check that a new agent refuses a trained agent's state with this field, and that it is not changed."""
    _, agent = worlds.trained(name)
    _, fresh = worlds.make_agent(name)
    before = snapshot(fresh)
    state = agent.state()
    if value is None:
        del state[field]
    else:
        state[field] = value(state[field])
    with pytest.raises(of.OpoError, match=match):
        fresh.restore(state)
    assert snapshot(fresh) == before


def cut(array):
    return array[..., :-1]


def with_nan(array):
    array = np.array(array)
    array.flat[0] = np.nan
    return array


@pytest.mark.parametrize("name", ["opo", "tabular-opo", "lolipop", "uniform", "falcon", "opo linear"])
@pytest.mark.parametrize("value", ["x", 1.5, None, [3], -1, 10**30, np.arange(2), True], ids=repr)
def test_an_episode_that_is_no_number_of_episodes(name, value):
    refused(name, "episode", lambda _: value, "episode")


@pytest.mark.parametrize("more", [2, 10**12])
@pytest.mark.parametrize("name", ["opo", "rm-ucdd", "tabular-opo", "lolipop", "opo tabular"])
def test_an_episode_beyond_the_data(name, more):
    refused(name, "episode", lambda n: n + more, "episode")


@pytest.mark.parametrize("name", ["opo", "rm-ucdd"])
def test_a_history_beyond_its_runs(name):
    refused(name, "history.length", lambda n: n + 2, r"history.length'\] is .* one step for each episode")
    refused(name, "history.starts", lambda starts: starts[::-1] - 1, "history.starts")
    refused(name, "history.starts", lambda starts: starts + 10**9, "history.starts")
    refused(name, "history.runs", lambda runs: np.where(runs == runs[-1], 9, runs), "fit that the oracle cannot have returned")
    refused(name, "history.runs", lambda runs: -1 - runs, "fit that the oracle cannot have returned")
    refused(name, "history.runs", None, "no 'history.runs'")


@pytest.mark.parametrize("column", ["n", "loss_sum", "seen", "frequencies", "sum_q", "policy", "values"])
@pytest.mark.parametrize("damage", [cut, with_nan, lambda a: a[:1], lambda a: a.astype("U8"), lambda a: -a - 1, None])
def test_a_damaged_column_of_tables(column, damage):
    refused("tabular-opo", column, damage, column)


@pytest.mark.parametrize("column", ["n", "seen", "frequencies", "policy"])
def test_tables_that_no_episodes_lead_to(column):
    refused("tabular-opo", column, lambda array: np.where(array > 0, array / 2, array), column.replace("n", "n"))


@pytest.mark.parametrize("field", ["epoch", "segment", "played", "oracle_calls"])
def test_a_segment_that_is_not_reached(field):
    refused("lolipop", field, lambda n: n + 1, field if field == "oracle_calls" else "episode|played|segment")


KINDS = ["tabular", "tabular per context", "linear", "disjoint"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_of_an_oracle_is_looked_at(kind):
    _, agent = worlds.trained(f"opo {kind}")
    for oracle in (agent.loss_oracle, agent.dynamics_oracle):
        state = oracle.state()
        before = str(state)
        for field, value in state.items():
            wrong = [None, Exception, "x"]
            if isinstance(value, np.ndarray) and value.size:
                wrong += [value[..., None], np.concatenate([value, value, value]), with_nan(value.astype(float)), value.astype(complex)]
            for bad in wrong:
                with pytest.raises(of.OpoError, match=r"state\['| has no '"):
                    oracle.restore({**state, field: bad})
            if field != "oracle":
                with pytest.raises(of.OpoError, match=r"state\['| has no '"):
                    oracle.restore({key: kept for key, kept in state.items() if key != field} | ({"best": None} if field == "best" else {}))
        assert str(oracle.state()) == before


@pytest.mark.parametrize("bad", [with_nan, lambda s: s[:1], lambda s: np.full(s.shape, np.inf), lambda s: -1 - s])
def test_scores_of_candidates(bad):
    refused("opo", "loss oracle.scores", bad, "scores")


def test_a_fit_that_was_never_given_is_no_candidate_counted_from_the_end():
    _, agent = worlds.trained("opo")
    for oracle, ask in ((agent.loss_oracle, "losses"), (agent.dynamics_oracle, "transitions")):
        for fit in (-1, 2, "x", 0.0):
            with pytest.raises(of.OpoError, match="fit is"):
                getattr(oracle, ask)(fit, 0)


def test_plans_of_the_data_before_are_forgotten():
    """Fits of parametric classes are numbers, which stand for other functions after another state was restored."""
    env = worlds.finite()
    classes = oracles.TabularLossClass(per_context=True), oracles.TabularDynamicsClass(per_context=True, smoothing=1.0)
    first, second = (of.agents.Greedy(env.layout, *classes) for _ in range(2))
    of.simulate(env, first, 7, seed=1)
    of.simulate(env, second, 7, seed=2)
    assert first.fits == second.fits
    before = [second.policy(c) for c in env.contexts]
    second.restore(first.state())
    after = [second.policy(c) for c in env.contexts]
    np.testing.assert_array_equal(after, [first.policy(c) for c in env.contexts])
    assert not np.array_equal(before, after)


# -- chains --------------------------------------------------------------------------------------------------------------


def wrong_chains(name, damage, match):
    _, state = worlds.run_state(name)
    _, agent = worlds.make_agent(name)
    agent.restore(state["agent"])
    chains = copy.deepcopy(state["chains"])
    damage(chains)
    kept = copy.deepcopy(agent.chains())
    with pytest.raises(of.OpoError, match=match):
        agent.restore_chains(chains)
    assert str(agent.chains()) == str(kept)


DAMAGE = {
    "too many contexts": (lambda c: c["chains"][0].update(contexts=list(range(9))), "9 contexts"),
    "no context": (lambda c: c["chains"][0].update(contexts=[]), "0 contexts"),
    "steps ahead": (lambda c: c["chains"][0].update(steps=10**9), "steps"),
    "steps of another kind": (lambda c: c["chains"][0].update(steps="x"), "steps"),
    "first behind": (lambda c: c["chains"][0].update(first=c["chains"][0]["steps"] + 1), "first"),
    "cut store": (lambda c: c["chains"][0].update(store=c["chains"][0]["store"][:-1]), "store"),
    "store of NaN": (lambda c: c["chains"][0].update(store=with_nan(c["chains"][0]["store"])), "store"),
    "no policies": (lambda c: c["chains"][0].update(store=c["chains"][0]["store"] / 2), "store"),
    "cut sums": (lambda c: c["chains"][0].update(sum_q=c["chains"][0]["sum_q"][:-1]), "sum_q"),
    "cut values": (lambda c: c["chains"][0].update(v=c["chains"][0]["v"][:-1]), "'v'"),
    "other fits": (lambda c: c["chains"][0].update(fits=["x" for _ in c["chains"][0]["fits"]]), "fits"),
    "counted ahead": (lambda c: c["chains"][0].update(counted=[10**9 for _ in c["chains"][0]["counted"]]), "counted"),
    "negative visits": (lambda c: c["chains"][0].update(visits=[-v - 1 for v in c["chains"][0]["visits"]]), "visits"),
    "order": (lambda c: c.update(order=[(5, 0)]), "order"),
    "lane": (lambda c: c.update(order=[(0, 8)]), "order"),
    "twice": (lambda c: c.update(order=[c["order"][0]] * 2), "order"),
    "missing": (lambda c: c["chains"][0].pop("visits"), "visits"),
}


@pytest.mark.parametrize("name", ["opo", "rm-ucdd"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_chains_that_do_not_fit(name, damage):
    wrong_chains(name, *DAMAGE[damage])


def test_a_greedy_chain_without_steps_comes_back_as_the_uniform_policy():
    env, losses, dynamics = worlds.finite(), worlds.finite().loss_class, worlds.finite().dynamics_class
    rule = ChainRule(1.0, np.full(env.layout.horizon, 0.1), 6.0, "latest", greedy=True, forced=1, eta=0.1)
    one, two = (ChainAgent(env.layout, losses, dynamics, rule) for _ in range(2))
    of.simulate(env, one, 1)
    assert one.steps == 0
    np.testing.assert_array_equal(one.policy(0), one.uniform())
    two.restore(one.state())
    two.restore_chains(one.chains())
    np.testing.assert_array_equal(two.policy(0), one.uniform())


# -- runs ----------------------------------------------------------------------------------------------------------------

RUNS = {
    "episode": [41, -1, "x", 23],
    "seconds": [np.nan, "x", -1.0],
    "agent": [None, {}, 3],
    "columns": [None, {}],
    "chains": [3, {"chains": [], "order": [[0, 0]]}],
}


@pytest.mark.parametrize("field", RUNS)
def test_a_run_that_does_not_fit_changes_nothing(field):
    env, state = worlds.run_state("opo")
    for value in RUNS[field]:
        _, agent = worlds.make_agent("opo")
        run = Simulation(env, agent, 40, 3)
        before = snapshot(run)
        with pytest.raises(of.OpoError):
            run.restore({**state, field: value})
        assert snapshot(run) == before


@pytest.mark.parametrize("column", ["value", "context_index", "loss_fit"])
def test_columns_of_a_run(column):
    env, state = worlds.run_state("opo")
    for bad in (state["columns"][column][:-1], "x", np.array(["x"] * 24), state["columns"][column] - 7 if column != "value" else None):
        _, agent = worlds.make_agent("opo")
        with pytest.raises(of.OpoError, match=column):
            Simulation(env, agent, 40, 3).restore({**state, "columns": {**state["columns"], column: bad}})
