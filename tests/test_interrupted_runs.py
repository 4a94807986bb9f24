"""Ctrl-C during a run: the current episode is finished, and the run can go on."""

from __future__ import annotations

import signal
import threading

import numpy as np
import pytest
from simulated_worlds import Fixed, Many, two_contexts, uniform

import opo_fast as of


class Interrupting(Fixed):
    """An agent that sends Ctrl-C while it observes an episode."""

    def __init__(self, layout, policy, episode, action):
        super().__init__(layout, policy)
        self.at, self.action = episode, action

    def observe(self, trajectory):
        if sum(kind == "observe" for kind, _ in self.log) == self.at:
            self.action()
        super().observe(trajectory)


def press():
    signal.raise_signal(signal.SIGINT)


def press_twice():
    press()
    press()


def raise_it():
    raise KeyboardInterrupt


@pytest.mark.parametrize(("action", "kept"), [(raise_it, 17), (press, 18), (press_twice, 17)])
def test_ctrl_c_keeps_what_was_done(action, kept, tmp_path, monkeypatch):
    monkeypatch.setattr("opo_fast._support.interrupts.BOUNCE", 0.0)
    cmdp = two_contexts()
    whole = of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 40, seed=3)
    handler = signal.getsignal(signal.SIGINT)
    result = of.simulate(cmdp, Interrupting(cmdp.layout, uniform(cmdp), 17, action), 40, seed=3)
    assert signal.getsignal(signal.SIGINT) is handler
    assert result.interrupted
    assert result.episodes == kept
    assert result.settings["planned_episodes"] == 40
    np.testing.assert_array_equal(result.value, whole.value[:kept])
    np.testing.assert_array_equal(result.cumulative_regret, whole.cumulative_regret[:kept])
    result.save(tmp_path / "part.npz")
    loaded = of.SimulationResult.load(tmp_path / "part.npz")
    assert loaded.interrupted
    assert loaded.episodes == kept
    assert not whole.interrupted


def test_ctrl_c_in_the_last_episode_is_a_finished_run():
    cmdp = two_contexts()
    result = of.simulate(cmdp, Interrupting(cmdp.layout, uniform(cmdp), 4, press), 5)
    assert result.episodes == 5
    assert not result.interrupted


def test_ctrl_c_before_the_first_episode_ends():
    cmdp = two_contexts()
    result = of.simulate(cmdp, Interrupting(cmdp.layout, uniform(cmdp), 0, raise_it), 5)
    assert result.episodes == 0
    assert result.cumulative_regret.size == 0
    assert np.isnan(result.gap_closed())
    assert result.summary()[-1].episodes == 0
    assert "0 episodes" in repr(result)


def test_an_agent_goes_on_after_ctrl_c():
    """The signal comes inside an episode, which is finished first: the agent has learned from whole episodes."""
    many = Many()

    class Pressed(of.OPO):
        def prefetch(self, contexts):
            super().prefetch(contexts)
            if self.episode == 16:
                press()

    agent, plain = many.agent(Pressed), many.agent()
    stopped = of.simulate(many, agent, 60, seed=2)
    assert stopped.interrupted
    of.simulate(many, plain, stopped.episodes, seed=2)
    np.testing.assert_array_equal(agent.policy(np.array([0.3])), plain.policy(np.array([0.3])))


def test_a_run_in_another_thread_needs_no_signals():
    cmdp, results = two_contexts(), []
    thread = threading.Thread(target=lambda: results.append(of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 5)))
    thread.start()
    thread.join()
    assert results[0].episodes == 5


def test_another_handler_of_ctrl_c_stays(request):
    def mine(number, frame):
        raise RuntimeError("mine")

    old = signal.signal(signal.SIGINT, mine)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, old))
    cmdp = two_contexts()
    with pytest.raises(RuntimeError, match="mine"):
        of.simulate(cmdp, Interrupting(cmdp.layout, uniform(cmdp), 2, press), 5)
    assert signal.getsignal(signal.SIGINT) is mine
