"""Oracle objects that are passed to agents: each belongs to one agent, and their settings are part of the agent's settings."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.oracles import scheduled

ENV = of.envs.make("random-finite", n_contexts=2, seed=1)
HAND = {"episodes": 50, "bonus_scale": 1e-5, "eta_scale": 20}


class Means:
    """The mean observed loss of each pair, the same at all contexts, with `pull` additional observations of 1/2."""

    def __init__(self, pull=1.0):
        self.pull, self._start = pull, np.full(2, 0.5)
        self.sums, self.counts = np.zeros(ENV.layout.shape), np.zeros(ENV.layout.shape)

    def observe(self, trajectory):
        np.add.at(self.sums, (trajectory.states[:-1], trajectory.actions), trajectory.losses)
        np.add.at(self.counts, (trajectory.states[:-1], trajectory.actions), 1)

    def fit(self):
        return tuple(((self.sums + 0.5 * self.pull) / (self.counts + self.pull)).ravel().tolist())

    def losses(self, fit, context):
        return np.reshape(fit, ENV.layout.shape)

    def state(self):
        return {"sums": self.sums.copy(), "counts": self.counts.copy()}

    def restore(self, state):
        self.sums, self.counts = np.array(state["sums"]), np.array(state["counts"])


def opo(oracle):
    return of.OPO(ENV.layout, oracle, ENV.dynamics_class, **HAND)


def shared(wrap=lambda oracle: oracle):
    oracle = Means()
    return lambda seed: opo(wrap(oracle))


def finite():
    oracle = ENV.loss_class.oracle(ENV.layout, None)
    return lambda seed: opo(oracle)


@pytest.mark.parametrize(
    "play",
    {
        "one after the other": lambda make: [of.simulate(ENV, make(seed), 5, seed) for seed in range(2)],
        "both before": lambda make: [of.simulate(ENV, agent, 5) for agent in [make(0), make(1)]],
        "many": lambda make: of.simulate_many(ENV, make, 5, 2),
        "compare": lambda make: of.compare(ENV, {"mine": make}, 5, 2),
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize(
    "make",
    {
        "plain": shared,
        "scheduled": lambda: shared(lambda oracle: scheduled(oracle, 2)),
        "finite": finite,
    }.items(),
    ids=lambda item: item[0],
)
def test_an_oracle_that_another_agent_has_learned_with_is_refused(play, make):
    with pytest.raises(of.OpoError, match=r"loss_(class|oracle) is a \w+ with which another agent has learned.*make a new oracle"):
        play[1](make[1]())
    play[1](lambda seed: opo(Means()))  # A new oracle for each agent is accepted, and so is a class.
    play[1](lambda seed: opo(ENV.loss_class))


def test_it_is_refused_when_the_other_agent_is_gone_and_does_not_keep_it():
    oracle = Means()
    agent = opo(oracle)
    of.simulate(ENV, agent, 3)
    gone = weakref.ref(agent)
    del agent
    gc.collect()
    assert gone() is None
    with pytest.raises(of.OpoError, match="loss_class is a Means with which another agent has learned"):
        opo(oracle)


def test_an_oracle_that_learned_by_hand_and_agents_that_are_copied_or_loaded_go_on(tmp_path):
    oracle, log = Means(), of.oracles.TrajectoryLog.collect(ENV, 4)
    for trajectory in log:
        oracle.observe(trajectory)
    agent = opo(oracle)
    of.simulate(ENV, agent, 3)
    deep, shallow = copy.deepcopy(agent), copy.copy(agent)
    for one in (agent, deep):
        of.simulate(ENV, one, 3)
    np.testing.assert_array_equal(agent.policy(0), deep.policy(0))
    of.simulate(ENV, shallow, 1)
    fresh = opo(Means())
    of.simulate(ENV, fresh, 3)
    fresh.save(tmp_path / "agent.npz")
    of.simulate(ENV, fresh, 2)
    loaded = opo(Means()).load(tmp_path / "agent.npz")
    of.simulate(ENV, loaded, 2)
    np.testing.assert_array_equal(loaded.policy(1), fresh.policy(1))
    fresh.load(tmp_path / "agent.npz")
    assert fresh.episode == 3


def test_a_function_that_gives_one_agent_twice_is_refused():
    agent = opo(Means())
    with pytest.raises(of.OpoError, match=r"make_agent\(1\) returns the same OPO as before.*a new agent each time"):
        of.simulate_many(ENV, lambda seed: agent, 5, 2)
    with pytest.raises(of.OpoError, match=r"agents\['mine'\]\(0\) returns the same OPO as before"):
        of.compare(ENV, {"mine": lambda seed: agent}, 5, 2)
    uniform = of.agents.Uniform(ENV.layout)
    with pytest.raises(of.OpoError, match=r"make_agent\(8\) returns the same Uniform as before"):
        of.simulate_many(ENV, lambda seed: uniform if seed in (0, 8) else of.agents.Uniform(ENV.layout), 5, 9)


def test_a_function_that_takes_no_seed_is_refused():
    with pytest.raises(of.OpoError, match=r"make_agent cannot be called with a seed .*lambda seed"):
        of.simulate_many(ENV, lambda: opo(Means()), 5, 2)
    with pytest.raises(of.OpoError, match=r"agents\['mine'\] cannot be called with a seed"):
        of.compare(ENV, {"mine": lambda: opo(Means())}, 5, 2)

    def broken(seed):
        raise TypeError("of the user's own")

    with pytest.raises(TypeError, match="of the user's own"):
        of.simulate_many(ENV, broken, 5, 2)


def test_a_comparison_and_a_state_know_the_settings_of_an_oracle(tmp_path):
    def play(oracle_of, folder=tmp_path / "runs"):
        return of.compare(ENV, {"mine": lambda seed: opo(oracle_of())}, 5, 2, folder=folder)

    first, again = play(Means), play(Means)
    assert again.results["mine"][1].settings == first.results["mine"][1].settings
    with pytest.raises(of.OpoError, match=r"was played with settings\.loss_oracle\.pull 1\.0 instead of 2\.0: name another folder"):
        play(lambda: Means(2.0))
    with pytest.raises(of.OpoError, match=r"was played with settings\.rule\.eta "):
        of.compare(ENV, {"mine": lambda seed: of.OPO(ENV.layout, Means(), ENV.dynamics_class, **{**HAND, "eta_scale": 30})}, 5, 2,
                   folder=tmp_path / "runs")  # fmt: skip
    agent = opo(Means())
    of.simulate(ENV, agent, 5)
    agent.save(tmp_path / "agent.npz")
    with pytest.raises(of.OpoError, match=r"an agent whose loss_oracle\.pull is 1\.0: 2\.0 is needed"):
        opo(Means(2.0)).load(tmp_path / "agent.npz")
    other = Means()
    other._start = np.full(2, 0.25)
    with pytest.raises(of.OpoError, match=r"an agent whose loss_oracle\._start is 'array \(2,\) \w+': 'array \(2,\) \w+' is needed"):
        opo(other).load(tmp_path / "agent.npz")
    with pytest.raises(of.OpoError, match=r"an agent whose loss_oracle\.pull is 1\.0: 2\.0 is needed"):
        opo(scheduled(Means(2.0), 2)).load(tmp_path / "agent.npz")


def test_an_oracle_may_tell_its_settings_itself(tmp_path):
    class Telling(Means):
        def __init__(self, pull=1.0, told=None):
            super().__init__(pull)
            self.told = told

        def settings(self):
            return {"told": self.told}

    agent = opo(Telling(told="one"))
    assert agent.settings()["loss_oracle"] == {"class": "Telling", "told": "one"}
    agent.save(tmp_path / "agent.npz")
    opo(Telling(2.0, told="one")).load(tmp_path / "agent.npz")
    with pytest.raises(of.OpoError, match=r"an agent whose loss_oracle\.told is 'one': 'two' is needed"):
        opo(Telling(told="two")).load(tmp_path / "agent.npz")
    with pytest.raises(
        of.OpoError, match=r"settings\(\) of the Telling has 'told': \[1\]; numbers, strings, booleans or arrays are needed"
    ):
        opo(Telling(told=[1]))


def test_states_of_older_versions_and_of_packaged_oracles_have_no_such_settings(tmp_path):
    agent = opo(Means())
    agent.save(tmp_path / "agent.npz")
    state = read_state(tmp_path / "agent.npz")
    del state["settings"]["loss_oracle"]
    write_state(tmp_path / "older.npz", state)
    assert opo(Means()).load(tmp_path / "older.npz").episode == 0
    packaged = opo(ENV.loss_class).settings()
    assert list(packaged) == ["agent", "layer_sizes", "n_actions", "action_mask", "rule"]


def test_a_class_in_the_place_of_an_object_and_losses_of_a_wrong_shape_are_named():
    with pytest.raises(of.OpoError, match=r"loss_class is the class Means itself: an object of it, Means\(\.\.\.\), is needed"):
        opo(Means)
    with pytest.raises(of.OpoError, match="loss_class is the class FiniteLossClass itself"):
        opo(of.FiniteLossClass)
    with pytest.raises(of.OpoError, match="dynamics_class is the class FiniteDynamicsClass itself"):
        of.OPO(ENV.layout, Means(), of.FiniteDynamicsClass, **HAND)

    class Short(Means):
        def losses(self, fit, context):
            return super().losses(fit, context)[:2]

    with pytest.raises(of.OpoError, match=r"losses of fit .* at context .* has shape \(2, \d\): \(n_states, n_actions\) = "):
        of.simulate(ENV, opo(Short()), 5)

    class Namespace:
        @staticmethod
        def oracle(layout, action_mask):
            return Means()

    assert of.simulate(ENV, opo(Namespace), 3).episodes == 3
