"""Agents and oracles can be saved and restored with the same bits; a state that does not fit is refused and changes nothing."""

from __future__ import annotations

import json
import textwrap
import warnings

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.agents.chain_agent import ChainAgent
from opo_fast.algorithm.rules import ChainRule
from opo_fast.runs.simulation import Simulation


def contexts(seed=0, n=3, sizes=(1, 3, 4), n_actions=3):
    """Contexts with two loss and two dynamics candidates, between which the fits change with more data."""
    rng = np.random.default_rng(seed)
    models = [[random_model(rng, sizes, n_actions) for _ in range(n)] for _ in range(2)]
    env = of.FiniteContexts(models[1])
    losses = of.FiniteLossClass([lambda c, m=m: m[c].losses for m in models])
    dynamics = of.FiniteDynamicsClass([lambda c, m=m: m[c].transitions for m in models])
    return env, losses, dynamics


def opo(env, losses, dynamics, **options):
    return of.OPO(env.layout, losses, dynamics, episodes=60, bonus_scale=1e-5, eta_scale=20, **options)


def run(env, agent, n, start=0, seed=5):
    """Episodes start..n-1 of a run; the policies that were played."""
    simulation = Simulation(env, agent, 60, seed)
    assert simulation.first == start
    played = []
    while simulation.first + simulation.episode < n:
        played.append(agent.policy(simulation.context(simulation.episode)))
        simulation.step()
    return played


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_a_restored_agent_goes_on_with_the_same_bits(tmp_path, backend):
    env, losses, dynamics = contexts()
    whole = run(env, opo(env, losses, dynamics, backend=backend), 40)
    first = opo(env, losses, dynamics, backend=backend)
    run(env, first, 25)
    first.save(tmp_path / "agent.npz")
    second = opo(env, losses, dynamics, backend=backend).load(tmp_path / "agent.npz")
    assert second.episode == 25
    assert second.history.runs == first.history.runs
    assert len(first.history.runs) > 1
    assert second.planning_calls == first.planning_calls
    rest = run(env, second, 40, start=25)
    np.testing.assert_array_equal(np.array(rest), np.array(whole[25:]))
    for oracle, other in ((first.loss_oracle, second.loss_oracle), (first.dynamics_oracle, second.dynamics_oracle)):
        assert other.scores.size == 2
        assert oracle.scores is not other.scores


@pytest.mark.parametrize("visits", ["contemporaneous", "actions"])
def test_every_rule_of_the_chain_goes_on_with_the_same_bits(visits):
    env, losses, dynamics = contexts(3)
    rule = ChainRule(1.0, np.full(3, 1.0), 6.0, visits, greedy=True, eta=0.1)
    one, two = (ChainAgent(env.layout, losses, dynamics, rule) for _ in range(2))
    run(env, one, 30)
    two.restore(json.loads(json.dumps(one.state(), default=lambda array: array.tolist())))
    for c in range(3):
        np.testing.assert_array_equal(one.policy(c), two.policy(c))


@pytest.mark.parametrize("memory", [0, 1 << 29])
@pytest.mark.parametrize("sizes", [(1, 3, 4), (1, 30, 40)], ids=["packed", "single"])
@pytest.mark.parametrize("visits", ["latest", "contemporaneous", "actions"])
def test_restored_chains_are_not_built_again(visits, sizes, memory):
    env, losses, dynamics = contexts(3, sizes=sizes)
    rule = ChainRule(1.0, np.full(3, 0.1), 6.0, visits, greedy=visits != "latest", eta=0.1)
    one, two, three = (ChainAgent(env.layout, losses, dynamics, rule, memory=memory) for _ in range(3))
    whole = run(env, one, 60)
    run(env, two, 33)
    three.restore(two.state())
    three.restore_chains(two.chains())
    for c in range(3):
        np.testing.assert_array_equal(three.policy(c), two.policy(c))
        assert three.saturation(c) == two.saturation(c)
        assert three.value(c) == two.value(c)
    if memory:
        assert three.planning_calls == two.planning_calls
    rest = run(env, three, 60, start=33)
    np.testing.assert_array_equal(np.array(rest), np.array(whole[33:]))
    # The restored agent shares no data with the first one.
    run(env, two, 40, start=33)
    np.testing.assert_array_equal(three.policy(0), one.policy(0))


def test_chains_of_another_size_are_refused():
    env, losses, dynamics = contexts()
    agent = opo(env, losses, dynamics)
    run(env, agent, 5)
    wider, *classes = contexts(sizes=(1, 4, 4))
    other = opo(wider, *classes)
    run(wider, other, 5)
    with pytest.raises(of.OpoError, match=r"shape \(.*\) is needed, as this one has"):
        other.restore_chains(agent.chains())


def test_a_saved_state_is_a_snapshot():
    env, losses, dynamics = contexts()
    agent = opo(env, losses, dynamics)
    run(env, agent, 10)
    state = agent.state()
    before = agent.policy(0)
    run(env, agent, 30, start=10)
    assert state["episode"] == 10
    agent.restore(state)
    np.testing.assert_array_equal(agent.policy(0), before)


def test_another_agents_state_is_refused_and_changes_nothing():
    env, losses, dynamics = contexts()
    agent = opo(env, losses, dynamics)
    run(env, agent, 10)
    before = agent.state()
    other = of.OPO(env.layout, losses, dynamics, episodes=61)
    with pytest.raises(of.OpoError, match="rule"):
        agent.restore(other.state())
    wider, *classes = contexts(sizes=(1, 5, 4))
    with pytest.raises(of.OpoError, match=r"layer_sizes is \[1, 5, 4\]: \[1, 3, 4\] is needed"):
        agent.restore(opo(wider, *classes).state())
    more = of.FiniteDynamicsClass([*dynamics.models, dynamics.models[0]])
    with pytest.raises(of.OpoError, match="3 scores: one for each of the 2 candidates"):
        agent.restore(of.OPO(env.layout, losses, more, eta=agent.eta, beta_loss=agent.beta_loss, beta_dynamics=agent.beta_dynamics).state())
    broken = dict(before)
    del broken["dynamics oracle.scores"]
    with pytest.raises(of.OpoError, match="scores"):
        agent.restore(broken)
    with pytest.raises(of.OpoError, match="settings"):
        agent.restore({})
    for key, value in (("history.runs", 3), ("history.starts", "x"), ("history.length", None), ("episode", "x")):
        with pytest.raises(of.OpoError, match=rf"state\[.{key}.\]"):
            agent.restore({**before, key: value})
    after = agent.state()
    assert after.keys() == before.keys()
    for key, value in before.items():
        np.testing.assert_array_equal(np.asarray(after[key], object), np.asarray(value, object))


def test_files_are_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "state.npz"
    write_state(path, {"a": np.arange(3.0), "b": [1, "x"], "c": -np.inf})
    found = read_state(path)
    assert found["b"] == [1, "x"]
    assert found["c"] == -np.inf
    np.testing.assert_array_equal(found["a"], [0.0, 1.0, 2.0])
    with pytest.raises(of.OpoError, match=r"state\.a is a object, which cannot be saved"):
        write_state(path, {"a": object()})
    with pytest.raises(of.OpoError, match="objects"):
        write_state(path, {"a": np.array([object()])})
    assert read_state(path).keys() == found.keys()
    assert [p.name for p in tmp_path.iterdir()] == ["state.npz"]
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(of.OpoError, match="damaged"):
        read_state(path)
    with pytest.raises(of.OpoError, match="no file"):
        read_state(tmp_path / "none.npz")


def test_the_example_of_a_new_agent_runs(capsys, tmp_path):
    from opo_fast.agents import base

    text = base.__doc__.split("::\n", 1)[1]
    code = textwrap.dedent(text)
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    space = {}
    exec(compile(code, "example", "exec"), space)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    regret = {words[0]: float(words[2]) for words in lines}
    # The agent plays uniformly in the first 100 episodes, and is almost optimal after them.
    assert regret["commit"] == pytest.approx(regret["uniform"] / 4, rel=0.1)
    env, kind = space["env"], space["ExploreThenCommit"]
    agent, other = (kind(env.layout, env.loss_class, env.dynamics_class, first=first) for first in (10, 10))
    of.simulate(env, agent, 30, seed=0)
    agent.save(tmp_path / "agent.npz")
    other.load(tmp_path / "agent.npz")
    for context in env.contexts:
        np.testing.assert_array_equal(agent.policy(context), other.policy(context))


def test_fits_of_any_kind_come_back(tmp_path):
    env, losses, dynamics = contexts()

    class Named:
        """Fits are tuples of a name and a number."""

        def __init__(self):
            self.inner = losses.oracle(env.layout, None)
            self.observe, self.state, self.restore = self.inner.observe, self.inner.state, self.inner.restore

        def fit(self):
            return "candidate", (self.inner.fit(),)

        def losses(self, fit, context):
            return self.inner.losses(fit[1][0], context)

    options = {"eta": 0.3, "beta_loss": 1.0, "beta_dynamics": 0.2}
    agent = of.OPO(env.layout, Named(), dynamics, **options)
    run(env, agent, 40)
    agent.save(tmp_path / "agent.npz")
    other = of.OPO(env.layout, Named(), dynamics, **options).load(tmp_path / "agent.npz")
    assert other.history.runs == agent.history.runs
    assert {fit[0] for fit in other.history.runs} == {("candidate", (0,)), ("candidate", (1,))}
    for c in range(3):
        np.testing.assert_array_equal(other.policy(c), agent.policy(c))


def test_an_oracle_that_cannot_be_saved_is_named():
    env, losses, dynamics = contexts()

    class Bare:
        def __init__(self, inner):
            self.observe, self.fit, self.losses = inner.observe, inner.fit, inner.losses

    agent = of.OPO(env.layout, Bare(losses.oracle(env.layout, None)), dynamics, eta=0.1, beta_loss=1.0, beta_dynamics=1.0)
    with pytest.raises(of.OpoError, match="loss oracle is a Bare without state"):
        agent.state()


@pytest.mark.parametrize("name", ["opo", "e-uc3rl", "rm-ucdd", "tabular-opo"])
def test_playing_more_episodes_than_the_parameters_are_for_warns_once(name):
    env = of.envs.make("random-finite", n_contexts=2)
    agent = of.agents.make(name, env, episodes=3, **({"tuning": "theory"} if name == "opo" else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of.simulate(env, agent, 3)
    with pytest.warns(UserWarning, match="plays more episodes than the 3 for which its parameters were computed") as caught:
        of.simulate(env, agent, 3)
    assert len(caught) == 1
    # With parameters given by hand there is no such number.
    by_hand = of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=1, eta=1.0, beta_loss=1.0, beta_dynamics=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of.simulate(env, by_hand, 3)


@pytest.mark.parametrize("kind", ["losses", "dynamics"])
def test_an_agent_with_other_candidates_is_refused(tmp_path, kind):
    env, losses, dynamics = contexts()
    agent = opo(env, losses, dynamics)
    run(env, agent, 10)
    agent.save(tmp_path / "agent.npz")
    _, other_losses, other_dynamics = contexts(seed=1)
    other = opo(env, other_losses, dynamics) if kind == "losses" else opo(env, losses, other_dynamics)
    name = {"losses": "loss 0", "dynamics": "dynamics 0"}[kind]
    with pytest.raises(of.OpoError, match=rf"learned with another candidate '{name}': at context \d its numbers have the digest \w+, but"):
        other.load(tmp_path / "agent.npz")
    assert other.episode == 0
    # The same candidates in another order are another class.
    turned = opo(env, of.FiniteLossClass(losses.models[::-1]), dynamics)
    with pytest.raises(of.OpoError, match="learned with another candidate"):
        turned.load(tmp_path / "agent.npz")
    assert opo(env, losses, dynamics).load(tmp_path / "agent.npz").episode == 10
