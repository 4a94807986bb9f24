"""A second Ctrl-C: within a second it belongs to the first; later it stops the run after a file that is being written, with a warning."""

import signal
import types
import warnings

import pytest

import opo_fast as of
from opo_fast import envs
from opo_fast._support.interrupts import interrupts
from opo_fast._support.state import read_state
from opo_fast.runs import simulation as simulation_module


def press():
    signal.raise_signal(signal.SIGINT)


def press_twice():
    press()
    press()


def clock(monkeypatch, *times):
    """The times of the signals according to the clock of `interrupts`."""
    told = iter(times)
    monkeypatch.setattr("opo_fast._support.interrupts.time", types.SimpleNamespace(monotonic=lambda: next(told)))


def saved_run(path, action, monkeypatch, times):
    env = envs.make("random-finite")

    class Pressed(of.agents.TabularOPO):
        def observe(self, trajectory):
            super().observe(trajectory)
            if self.episode == 17:
                action()

    clock(monkeypatch, *times)
    return of.simulate(env, Pressed(env.layout, episodes=40), 40, save=path)


def test_two_within_a_second_are_one(tmp_path, monkeypatch):
    result = saved_run(tmp_path / "run.npz", press_twice, monkeypatch, (10.0, 10.05))
    assert result.episodes == 17
    assert read_state(tmp_path / "run.npz")["episode"] == 17


def test_a_second_one_says_what_is_lost(tmp_path, monkeypatch):
    with pytest.warns(UserWarning, match=r"stopped the run in the middle of episode 17: .*' has the first 0 episodes, and those"):
        result = saved_run(tmp_path / "run.npz", press_twice, monkeypatch, (10.0, 11.5))
    assert result.interrupted
    assert result.episodes == 16


def test_a_second_one_lets_the_saving_end(tmp_path, monkeypatch, capsys):
    write = simulation_module.write_state

    def pressed(path, state):
        press()
        write(path, state)
        press()

    monkeypatch.setattr(simulation_module, "write_state", pressed)
    handler = signal.getsignal(signal.SIGINT)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is lost
        result = saved_run(tmp_path / "run.npz", press, monkeypatch, (10.0, 12.0, 13.0))
    assert capsys.readouterr().err.count("Finishing the file that is being written first.") == 1
    assert result.interrupted
    assert result.episodes == read_state(tmp_path / "run.npz")["episode"] == 17
    assert signal.getsignal(signal.SIGINT) is handler


def test_one_inside_another_is_that_one():
    with interrupts() as outer:
        with interrupts() as inner:
            press()
            assert inner()
        assert outer()
    with interrupts() as anew:
        assert not anew()
