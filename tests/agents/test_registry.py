"""The list of agents: exported classes and options."""

from __future__ import annotations

import inspect

import pytest

from opo_fast import agents
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
