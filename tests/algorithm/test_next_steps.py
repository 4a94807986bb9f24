"""Chains that are asked for a policy after each model, and first steps under many fits: the same bits as without these shortcuts."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast.algorithm import engine as engine_module
from opo_fast.algorithm import first_runs
from opo_fast.algorithm.chain import Chain
from opo_fast.algorithm.first_runs import FirstRuns
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.next_steps import NextSteps
from opo_fast.kernels.ahead import packed_first_runs

SETTINGS = {"eta": 0.4, "beta_loss": 0.7, "beta_dynamics": 0.3}


def history_of(pairs):
    history = History()
    for pair in pairs:
        history.append(Fits(*pair))
    return history


def models_of(rng, count, changes):
    """Models with losses of their own, whose dynamics change after some of them."""
    dynamics = [random_model(rng, (1, 3, 4), 2) for _ in range(2)]
    found, which = [], 0
    for k in range(count):
        which = 1 - which if k in changes else which
        found.append(dynamics[which].with_losses(rng.random((8, 2))))
    return found


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("memory", [0, 4000, 1 << 20])
def test_policies_asked_for_one_by_one(packed, memory, monkeypatch):
    if not packed:
        monkeypatch.setattr(engine_module, "PACKED_MOST", -1)
    models = models_of(np.random.default_rng(2), 60, {25, 28, 50})
    chain, out = of.PolicyChain(models[0].layout, **SETTINGS, memory=memory), np.empty((8, 2))
    prepared = 0
    for k in range(1, len(models) + 1):
        chain.append(models[k - 1])
        if k in (7, 8, 30):
            continue
        before = chain._next
        policy = chain.policy()
        prepared += chain._next is before
        if k % 10 == 0:
            # Dynamics are known by their identity, so the models of the coming steps go with the chain.
            chain, models = pickle.loads(pickle.dumps((chain, models))) if k == 20 else (chain, models)
            assert chain.policy(out=out) is out
            assert out.tobytes() == policy.tobytes() == copy.deepcopy(chain).policy().tobytes()
        if k % 6 == 0:
            assert policy.tobytes() == of.policy_chain(models[:k], **SETTINGS).tobytes()
            np.testing.assert_allclose(policy, of.policy_chain(models[:k], backend="numpy", **SETTINGS), rtol=0, atol=1e-12)
    assert prepared >= 40 if memory == 0 or memory > 4000 else prepared >= 30
    assert chain._next.chain.steps == len(models)


def test_a_policy_is_the_callers_own():
    models = models_of(np.random.default_rng(4), 6, set())
    chain = of.PolicyChain(models[0].layout, **SETTINGS)
    for one in models:
        chain.append(one)
        chain.policy()[...] = np.nan
    assert chain.policy().tobytes() == of.policy_chain(models, **SETTINGS).tobytes()


def test_a_step_that_is_interrupted_is_taken_again(monkeypatch):
    models = models_of(np.random.default_rng(3), 8, set())
    chain = of.PolicyChain(models[0].layout, **SETTINGS)
    for one in models[:6]:
        chain.append(one)
        chain.policy()
    chain.append(models[6])
    ready = chain._next
    assert isinstance(ready, NextSteps)
    whole = ready._step

    def half(losses, line):
        whole(losses, line)
        raise KeyboardInterrupt

    ready._step = half
    with pytest.raises(KeyboardInterrupt):
        chain.policy()
    assert chain.policy().tobytes() == of.policy_chain(models[:7], **SETTINGS).tobytes()
    chain.append(models[7])
    assert chain.policy().tobytes() == of.policy_chain(models, **SETTINGS).tobytes()


# -- many fits at first ------------------------------------------------------------------------------------------------


N = 4


def agent_of(layout):
    rng = np.random.default_rng(5)
    losses = rng.random((N, layout.n_states, layout.n_actions)) / 2
    arrays = [rng.dirichlet(np.ones(m), (N, n, layout.n_actions)) for n, m in itertools.pairwise(layout.layer_sizes)]
    loss_class = of.FiniteLossClass.from_function(lambda c: losses * (1 + c), N)
    dynamics_class = of.FiniteDynamicsClass.from_function(lambda c: [(1 - c) * a + c / a.shape[-1] for a in arrays], N)
    return of.OPO(layout, loss_class, dynamics_class, **SETTINGS)


PAIRS = [(0, 0), (1, 0), (1, 2), (3, 2), (3, 0), (3, 0), (0, 1), (0, 2), (2, 2), (2, 2), (2, 2)]


@pytest.mark.parametrize("n", [1, 6, 8, 11])
def test_first_runs_of_fits_leave_a_chain_as_single_steps_do(n, monkeypatch):
    calls = []
    monkeypatch.setattr(first_runs, "packed_first_runs", lambda *given: calls.append(packed_first_runs(*given)))
    agent = agent_of(of.Layout([1, 3, 2], 2))
    history = history_of(PAIRS)
    chains = [agent.engine.new_chain([0.1, 0.3, 0.7]) for _ in range(2)]
    FirstRuns(history).advance(chains[0], history, n)
    Chain.advance(chains[1], history, n)
    assert len(calls) == (n >= 8)
    for _ in range(2):
        one, other = (chain.state() for chain in chains)
        for name in ("steps", "first", "planned", "surprised", "fits", "counted"):
            assert one[name] == other[name], name
        for name in ("sum_q", "v", "last", "store"):
            assert one[name].tobytes() == other[name].tobytes(), name
        for mine, theirs in zip(one["visits"], other["visits"], strict=True):
            assert mine.tobytes() == theirs.tobytes()
        for chain in chains:
            chain.advance(history, len(PAIRS))


def test_first_runs_whose_policies_do_not_fit_into_memory_are_taken_as_usual(monkeypatch):
    agent = agent_of(of.Layout([1, 3, 2], 2))
    agent.engine.store_bytes = 0
    history = history_of(PAIRS)
    chains = [agent.engine.new_chain([0.1, 0.3]) for _ in range(2)]
    monkeypatch.setattr(first_runs, "packed_first_runs", None)
    FirstRuns(history).advance(chains[0], history, 11)
    chains[1].advance(history, 11)
    assert chains[0].policy(1).tobytes() == chains[1].policy(1).tobytes()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda chain: pickle.loads(pickle.dumps(chain))])
def test_a_copy_of_a_chain_takes_no_new_model_for_an_old_one(copied):
    """Python gives the identities of objects that are gone to new ones."""
    rng = np.random.default_rng(6)
    first = [random_model(rng, (1, 3, 4), 2) for _ in range(5)]
    chain = of.PolicyChain(first[0].layout, **SETTINGS)
    for one in first:
        chain.append(one)
    chain.policy()
    kept, other = [pickle.dumps(one) for one in first], copied(chain)
    del chain, first, one
    models = [pickle.loads(one) for one in kept]
    for _ in range(30):
        models.append(random_model(rng, (1, 3, 4), 2))
        other.append(models[-1])
        del models[5:-1]  # nothing but the chain keeps them
        kept.append(pickle.dumps(models[-1]))
    models = [pickle.loads(one) for one in kept]
    np.testing.assert_allclose(other.policy(), of.policy_chain(models, backend="numpy", **SETTINGS), rtol=0, atol=1e-12)


def test_a_shallow_copy_has_its_own_history():
    models = models_of(np.random.default_rng(7), 3, set())
    chain = of.PolicyChain(models[0].layout, **SETTINGS)
    chain.append(models[0])
    other = copy.copy(chain)
    other.append(models[1])
    assert (len(chain), len(other)) == (1, 2)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copied_chain_knows_the_dynamics_of_models_that_are_copied_with_it(copied):
    """Otherwise its next step computes the occupancies of all earlier policies again."""
    rng = np.random.default_rng(8)
    mdp = random_model(rng, (1, 3, 4), 2)
    chain = of.PolicyChain(mdp.layout, **SETTINGS)
    for _ in range(3):
        chain.append(mdp.with_losses(rng.random(mdp.layout.shape)))
    chain.policy()
    other, model = copied((chain, mdp)) if copied is not copy.copy else (copy.copy(chain), copy.copy(mdp))
    losses = rng.random(mdp.layout.shape)
    for one, its in ((chain, mdp), (other, model)):
        one.append(its.with_losses(losses))
        assert len(one._models._transitions) == 1
    assert other.policy().tobytes() == chain.policy().tobytes()


def test_a_copied_model_is_the_model():
    mdp = random_model(np.random.default_rng(9), (1, 3, 4), 2, "csr")
    assert copy.copy(mdp) is mdp
    assert copy.deepcopy([mdp, mdp.layout]) == [mdp, mdp.layout]
    assert copy.deepcopy(mdp.transitions) is mdp.transitions
