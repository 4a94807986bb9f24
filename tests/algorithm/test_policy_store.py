"""The store of past policies, and chains whose kernels drop policies as they go."""

import numpy as np
import pytest

import opo_fast as of
from opo_fast.algorithm import chain as chain_module
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.policies import PolicyStore
from opo_fast.algorithm.rules import ChainRule


@pytest.mark.parametrize("lines", [2, 3, 5])
@pytest.mark.parametrize("before", [0, 1, 4])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9])
def test_where_the_policies_are_after_steps_that_went_round(lines, before, count):
    store = PolicyStore(np.ones(1))
    store.lines = np.zeros((lines, 1))
    line = before = min(before, lines - 1)
    for _ in range(count):
        line = 1 if line + 1 == lines else line + 1
    store.first = 10
    store.note_steps(10 + before, count)
    assert store.line(10 + before + count) == line


class OneModel:
    def __init__(self, mdp):
        self.mdp = mdp

    def losses(self, fit, context):
        return self.mdp.row_losses

    def transitions(self, fit, context):
        return self.mdp.transitions


@pytest.mark.parametrize("size", [3, 40])
@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("visits", ["latest", "contemporaneous", "actions"])
def test_kernels_that_drop_policies_leave_what_calls_of_few_steps_leave(size, greedy, visits, monkeypatch):
    """A small and a large layout, packed and not: the same chains to the last bit."""
    rng = np.random.default_rng(0)
    layout = of.Layout([1, size, size], 3)
    mdp = of.LayeredMDP(layout, rng.random(layout.shape), [rng.dirichlet(np.ones(size), (n, 3)) for n in layout.layer_sizes[:-1]])
    rule = ChainRule(0.4, np.full(3, 0.04), 6.0, visits=visits, greedy=greedy, eta=0.5)
    history = History()
    for _ in range(60):
        history.append(Fits(0, 0))
    monkeypatch.setattr(chain_module, "SMALL_STORE", 8 * 5 * layout.n_states * 3 * (8 if size == 3 else 1))
    runs, run = [], {}
    for form in chain_module.Chain.__subclasses__():
        run[form] = form._run
        monkeypatch.setattr(form, "_run", lambda chain, *given: runs.append(1) or run[type(chain)](chain, *given))
    states, calls = [], []
    for at_once in (0, 1 << 26):
        monkeypatch.setattr(chain_module, "AT_ONCE", at_once)
        runs.clear()
        engine = ChainEngine(layout, None, rule, OneModel(mdp), 1 << 28)
        for n in (40, 41, 60):
            engine.chain(0, history, n)
        states.append(engine.state()["chains"][0])
        calls.append(len(runs))
    assert calls[0] > 12
    assert calls[1] < 8
    for name, value in states[0].items():
        assert np.array_equal(value, states[1][name]) if isinstance(value, np.ndarray) else repr(value) == repr(states[1][name]), name
