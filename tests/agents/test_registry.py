"""The list of agents: exported classes and options."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.agents.registry import AgentInfo


def test_each_class_of_the_list_is_exported():
    missing = [name for name in agents.names() if agents.info(name).factory.__name__ not in agents.__all__]
    assert not missing, f"add the classes of {missing} to opo_fast/agents/__init__.py"


@pytest.mark.parametrize("name", [name for name in agents.names() if name != "optimum"])
def test_each_option_is_one_that_the_class_takes(name):
    told = set(agents.info(name).options)
    taken = {p for kind in inspect.getmro(agents.info(name).factory) for p in inspect.signature(kind.__init__).parameters}
    assert told <= taken
    assert "options" not in told


def test_options_that_a_class_hands_on_are_its_parents():
    class Later(agents.BaseAgent):
        def __init__(self, layout, *, first=5, **options):
            super().__init__(layout, **options)
            self.first = first

    told = AgentInfo("later", "", Later, ("layout",)).options
    assert told[0] == "first"
    assert "episodes" not in told
    assert set(told[1:]) == {p.name for p in inspect.signature(agents.BaseAgent).parameters.values() if p.kind is p.KEYWORD_ONLY}


@pytest.mark.parametrize("name", [name for name in agents.names() if "delta" in agents.info(name).options])
def test_a_delta_whose_quotients_overflow_is_refused(name):
    env = envs.random_finite(n_contexts=2, n_losses=2, n_dynamics=2)
    if agents.info(name).bandit:
        env = envs.Environment(of.Layout([1], 2), [lambda c: np.array([[0.2, 0.6]])], [lambda c: []], contexts=[0])
    agents.make(name, env, episodes=10, delta=1e-99)
    for delta in (5e-324, 1e-101):
        with pytest.raises(of.OpoError, match=f"delta is {delta!r}: a failure probability of at least 1e-100 is needed"):
            agents.make(name, env, episodes=10, delta=delta)


def test_an_oracle_refuses_the_same_deltas():
    layout = of.Layout([1, 2], 2)
    for oracle in (
        of.FiniteLossClass([lambda c: np.zeros(layout.shape)]).oracle(layout, None),
        of.oracles.TabularLossClass(per_context=True).oracle(layout, None),
    ):
        with pytest.raises(of.OpoError, match="delta is 5e-324: a failure probability"):
            oracle.keep_plausible(5e-324)
        oracle.keep_plausible(1e-100)
        with pytest.raises(of.OpoError, match="keep_plausible was called after data or for a second time"):
            oracle.keep_plausible(0.05)
