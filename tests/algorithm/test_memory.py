"""What counts for the memory of an agent's chains, and that nothing beyond it is kept."""

from __future__ import annotations

import gc
import itertools
import weakref

import numpy as np
import pytest

import opo_fast as of
from opo_fast.algorithm.chain import Chain


@pytest.mark.parametrize("sizes", [[1, 3, 3], [1, 60, 60]], ids=["packed", "single"])
@pytest.mark.parametrize("chosen", [{}, {"eta": 0.3, "beta_loss": 0.4, "beta_dynamics": 0.1}], ids=["self-tuning", "by hand"])
def test_chains_beyond_the_memory_are_freed_at_once(sizes, chosen, monkeypatch):
    """A reference cycle kept them until the garbage collector found it: twice the memory in a run of 20,000 fresh contexts."""
    made, layout = [], of.Layout(sizes, 2)
    monkeypatch.setattr(Chain, "__init__", lambda self, *args, init=Chain.__init__: made.append(weakref.ref(self)) or init(self, *args))

    def losses(context):
        return np.random.default_rng(int(1e9 * context)).random(layout.shape)

    def arrays(context):
        rng = np.random.default_rng(int(1e9 * context) + 1)
        return [rng.dirichlet(np.ones(m), (n, 2)) for n, m in itertools.pairwise(sizes)]

    class Fresh:
        layout = of.Layout(sizes, 2)

        def sample_context(self, rng):
            return rng.random()

        def mdp(self, context):
            return of.LayeredMDP(layout, losses(context), arrays(context))

    classes = of.FiniteLossClass([losses, lambda c: 1 - losses(c)]), of.FiniteDynamicsClass([arrays, lambda c: arrays(c + 1)])
    agent = of.OPO(layout, *classes, memory=0, **chosen)
    gc.disable()
    try:
        of.simulate(Fresh(), agent, 300, progress=False)
        assert sum(ref() is not None for ref in made) <= len(made) // 4
    finally:
        gc.enable()


def test_what_oracles_cache_counts_for_the_memory():
    """Up to half of it: a run of 20,000 fresh contexts took 1.34 times its memory, the caches' share included."""
    layout, memory = of.Layout([1, 3, 3], 2), 100_000

    def losses(context):
        return np.random.default_rng(context).random(layout.shape)

    def arrays(context):
        rng = np.random.default_rng(context)
        return [rng.dirichlet(np.ones(3), (n, 2)) for n in (1, 3)]

    classes = of.FiniteLossClass([losses, lambda c: 1 - losses(c)]), of.FiniteDynamicsClass([arrays, lambda c: arrays(c + 1)])
    agent = of.OPO(layout, *classes, memory=memory, eta=0.3, beta_loss=0.4, beta_dynamics=0.1)
    rng, engine, both = np.random.default_rng(0), agent.engine, []
    for context in range(120):
        agent.observe(of.rollout(of.LayeredMDP(layout, losses(context), arrays(context)), agent.policy(context), rng, context=context))
        both.append((engine._nbytes, agent.cached_bytes))
    largest = max(chain.nbytes for chain, _ in engine._chains.values())
    assert both[-1][1] > memory / 2
    assert all(chains + cached <= memory + largest for chains, cached in both if cached <= memory / 2)
    assert all(chains <= memory / 2 + largest for chains, cached in both if cached > memory / 2)
    assert max(chains + cached for chains, cached in both) > 0.9 * memory


@pytest.mark.parametrize("given", [None, -1, 2.5, lambda: 12])
def test_a_wrong_size_of_an_oracles_caches_is_refused_whatever_the_memory(given):
    layout = of.Layout([1, 2], 2)

    class Odd:
        cached_bytes = given

        def observe(self, trajectory):
            pass

        def fit(self):
            return 0

        def losses(self, fit, context):
            return np.zeros(layout.shape)

    dynamics = of.FiniteDynamicsClass([lambda c: [np.full((1, 2, 2), 0.5)]])
    for memory in (0, 1 << 29):
        with pytest.raises(of.OpoError, match=r"loss_oracle\.cached_bytes"):
            of.OPO(layout, Odd(), dynamics, memory=memory, eta=0.1, beta_loss=0.1, beta_dynamics=0.1)
    path = of.rollout(of.LayeredMDP(layout, np.zeros((3, 2)), [np.full((1, 2, 2), 0.5)]), np.full((3, 2), 0.5), np.random.default_rng(0))
    with pytest.raises(of.OpoError, match="cached_bytes"):
        of.oracles.check_oracle(Odd, layout, [path] * 4)
