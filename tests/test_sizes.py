"""Files and arguments that ask for more than there is: refused before anything is allocated; and PRISM's several rewards."""

from __future__ import annotations

import tracemalloc
import zipfile

import numpy as np
import pytest

import opo_fast as of
from opo_fast import envs
from opo_fast._support import state


def peak(call):
    """Most bytes that were held at once while a call was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(of.OpoError) as error:
            call()
        return tracemalloc.get_traced_memory()[1], str(error.value)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("deadlocks", ["error", "loop"])
def test_a_file_of_two_lines_that_announces_millions_of_states(tmp_path, deadlocks):
    (tmp_path / "big.tra").write_text("67000000 1 1\n0 0 0 1\n")
    most, message = peak(lambda: envs.from_prism(tmp_path / "big.tra", deadlocks=deadlocks))
    assert "67000000 states" in message
    assert most < 1 << 20


def test_pairs_with_a_number_far_out():
    for states, actions in (([0], [10**12]), ([10**12], [0])):
        most, _ = peak(lambda states=states, actions=actions: envs.from_pairs([0.0], np.ones((1, 1)), states, actions))
        assert most < 1 << 20


def test_of_an_archive_only_what_is_named_is_unpacked_and_that_within_a_bound(tmp_path, monkeypatch):
    env = envs.make("random-finite")
    agent = of.agents.make("tabular-opo", env, episodes=5)
    of.simulate(env, agent, 3)
    path = tmp_path / "agent.npz"
    agent.save(path)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("bomb.npy", "w") as member:
        np.lib.format.write_array(member, np.zeros(1 << 23))
    fresh = of.agents.make("tabular-opo", env, episodes=5)
    tracemalloc.start()
    fresh.load(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()
    np.testing.assert_array_equal(fresh.policy(0), agent.policy(0))
    monkeypatch.setattr(state, "ALWAYS", 1000)
    monkeypatch.setattr(state, "GROWTH", 0)
    with pytest.raises(of.OpoError, match="unpacks to more than is read"):
        fresh.load(path)


def test_of_several_reward_structures_one_is_chosen(tmp_path):
    (tmp_path / "robot.tra").write_text("2 2 2\n0 0 1 1\n1 0 0 1\n")
    with pytest.raises(of.OpoError, match="one of none is needed"):
        envs.from_file(tmp_path / "robot.tra", reward="robot1")
    (tmp_path / "robot1.srew").write_text("2 1\n1 3\n")
    (tmp_path / "robot2.srew").write_text("2 1\n0 5\n")
    with pytest.raises(of.OpoError, match="reward structures robot1, robot2"):
        envs.from_file(tmp_path / "robot.tra")
    with pytest.raises(of.OpoError, match="one of robot1, robot2"):
        envs.from_file(tmp_path / "robot.tra", reward="robot3")
    # From state 0 the states are 0, 1, 0, 1: two visits of each in four steps.
    for name, most in (("robot1", 6.0), ("robot2", 10.0)):
        env = envs.from_file(tmp_path / "robot.tra", horizon=4, reward=name)
        assert env.reward_value(of.solve(env.mdp(0)).v[0]) == pytest.approx(most)
