"""Files and arguments that need too much memory are refused before anything is allocated; PRISM models with several rewards."""

from __future__ import annotations

import re
import subprocess
import sys
import tracemalloc
import zipfile

import numpy as np
import pytest
import scipy.sparse as sp

import opo_fast as of
from opo_fast import envs, oracles
from opo_fast._support import state
from opo_fast.study import runfile


def peak(call):
    """Peak memory in bytes while a call is refused."""
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


def test_a_file_of_200_lines_that_announces_millions_of_states(tmp_path):
    """As a table, 67 million states times 200 choices would take 100 GiB."""
    lines = [f"{i % 4 * 16_000_000} {i // 4} {i} 1" for i in range(199)]
    (tmp_path / "big.tra").write_text("\n".join([f"67000000 199 {len(lines)}", *lines]) + "\n")
    most, message = peak(lambda: envs.from_prism(tmp_path / "big.tra", deadlocks="loop"))
    assert "big.tra" in message
    assert "67000000 states and 50 choices are more than this reader accepts" in message
    assert most < 1 << 20


def test_pairs_with_a_number_far_out():
    for states, actions in (([0], [10**12]), ([10**12], [0])):
        most, _ = peak(lambda states=states, actions=actions: envs.from_pairs([0.0], np.ones((1, 1)), states, actions))
        assert most < 1 << 20


SIZES = {
    "Layout": lambda: of.Layout([1, 2**31], 2**20),
    "stationary": lambda: of.LayeredMDP.stationary(sp.eye_array(10**5, format="csr"), np.zeros((10**5, 1)), 10**6),
    "TabularMDP.layered": lambda: envs.TabularMDP(sp.eye_array(10**5, format="csr"), np.zeros((10**5, 1))).layered(10**6),
    "family": lambda: envs.family([envs.TabularMDP(sp.eye_array(10**5, format="csr"), np.zeros((10**5, 1)))], 10**6),
    "combination_lock, actions": lambda: envs.combination_lock(n_actions=2**32),
    "combination_lock, contexts": lambda: envs.combination_lock(horizon=10**5, n_contexts=10**6),
    "random_finite, actions": lambda: envs.random_finite(n_actions=2**32),
    "random_finite, states": lambda: envs.random_finite(n_states=10**6),
    "random_finite, candidates": lambda: envs.random_finite(n_losses=10**6, n_contexts=10**5),
    "random_linear, states": lambda: envs.random_linear(n_states=10**5),
    "random_linear, dimension": lambda: envs.random_linear(dimension=10**6, n_states=100),
    "random_softmax": lambda: envs.random_softmax(n_actions=10**12),
    "inventory": lambda: envs.inventory(items=10, capacity=7, horizon=10**6),
    "queue_network": lambda: envs.queue_network(queues=10, capacity=7, horizon=10**6),
    "tabular losses": lambda: oracles.TabularLossClass().oracle(of.Layout([1, 2**30], 2**10)),
    "tabular dynamics": lambda: oracles.TabularDynamicsClass().oracle(of.Layout([1, 10**5, 10**5], 2)),
    "TrajectoryLog.collect": lambda: oracles.TrajectoryLog.collect(SMALL, 2**40),
    "simulate": lambda: of.simulate(SMALL, of.agents.Uniform(SMALL.layout), 2**40),
    "trial_bandit": lambda: envs.trial_bandit(by="age", groups=10**12),
}
"""Calls that need terabytes, most of them with small arguments."""
SMALL = envs.make("random-finite")


@pytest.mark.parametrize("name", SIZES)
def test_what_fits_into_no_memory_is_refused_before_it_is_taken(name):
    if name == "trial_bandit":
        pytest.importorskip("lifelines")
    most, message = peak(SIZES[name])
    assert most < 1 << 26
    assert re.search(r"more than half of the .* GiB of memory|too many|support is missing|a whole number from", message)


def test_the_memory_of_a_control_group_or_a_limit_counts():
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))\n"
        "import opo_fast as of\n"
        "of.Layout([1, 2**20], 63)\n"
        "try: of.Layout([1, 2**20], 128)\n"
        "except of.OpoError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True).stdout
    assert "the losses of 1048577 states and 128 actions take 1 GiB, more than half of the 1 GiB of memory" in said


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


def test_a_parquet_file_of_millions_of_equal_numbers(tmp_path, monkeypatch):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "log.parquet"
    names = ("context", "episode", "step", "state", "action", "loss")
    pq.write_table(pa.table({name: np.zeros(1 << 20, np.int64) for name in names}), path)
    assert path.stat().st_size < 1 << 18
    monkeypatch.setattr(state, "ALWAYS", 1 << 20)
    for read in (lambda: oracles.TrajectoryLog.load(path, of.Layout([1, 2], 2)), lambda: oracles.TrajectoryLog.from_parquet(path)):
        held = pa.total_allocated_bytes()
        with pytest.raises(of.OpoError, match="unpacks to 50331648 bytes, more than is read from a file of this size"):
            read()
        assert pa.total_allocated_bytes() - held < 1 << 20


@pytest.mark.parametrize("format", ["npz", "parquet"])
def test_a_run_file_of_a_study_that_unpacks_to_more(tmp_path, monkeypatch, format):
    if format == "parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"x.{format}"
    meta = {"format": runfile.FORMAT, "id": "x"}
    with open(path, "wb") as file:
        runfile.write_run(file, meta, {"regret": np.zeros(1 << 17), "value": np.zeros(1 << 17)}, format)
    np.testing.assert_array_equal(runfile.read_run(path, ["regret"])["regret"], np.zeros(1 << 17))
    monkeypatch.setattr(state, "ALWAYS", (1 << 20) + 10_000)
    monkeypatch.setattr(state, "GROWTH", 0)
    assert set(runfile.read_run(path, ["regret"]).columns) == {"regret"}
    with pytest.raises(ValueError, match="more than is read from a file of this size"):
        runfile.read_run(path)


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
        env = envs.make(str(tmp_path / "robot.tra"), horizon=4, reward=name)
        assert env.reward_value(of.solve(env.mdp(0)).v[0]) == pytest.approx(most)
