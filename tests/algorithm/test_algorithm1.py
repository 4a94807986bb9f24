"""`algorithm1.py`, the paper's algorithm in plain NumPy, against the package's agent and against steps computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast.algorithm.rules import opo_rule, reference_chain
from opo_fast.model.operations import play
from opo_fast.model.streams import Streams


def test_the_outer_loop_plays_the_policies_of_the_agent():
    env = of.envs.make("random-finite", horizon=3, n_contexts=3, n_losses=4, n_dynamics=4, seed=5)
    parameters = {"eta": 0.3, "beta_loss": 0.6, "beta_dynamics": 0.2}
    episodes, seed = 40, 2
    agent = of.OPO(env.layout, env.loss_class, env.dynamics_class, **parameters)
    run = of.Simulation(env, agent, episodes, seed)
    contexts = [run.context(t) for t in range(episodes)]
    streams, played = Streams(seed, env.layout.horizon), iter(range(episodes))

    def one_episode(context, policy):
        t = next(played)
        uniforms = (streams.uniforms(name, t) for name in ("actions", "transitions", "losses"))
        return play(env.mdp(context), policy, *uniforms, context, getattr(env, "sample_losses", None), "numba")

    oracles = (env.loss_class.oracle(env.layout, None), env.dynamics_class.oracle(env.layout, None))
    policies = of.reference.opo_cmdp(env.layout, contexts, one_episode, *oracles, **parameters)
    for t, expected in enumerate(policies):
        np.testing.assert_allclose(agent.policy(contexts[t]), expected, atol=1e-10, err_msg=f"episode {t + 1}")
        run.step()
    assert len(agent.history.runs) > 1, "one model throughout would not tell which fits a step uses"


def test_the_chain_of_algorithm_1_is_that_of_its_rule():
    rng = np.random.default_rng(0)
    models = [random_model(rng, (1, 3, 2), 3) for _ in range(3)]
    history = [models[i] for i in (0, 1, 1, 2, 0, 2)]
    literal = of.reference.policy_chain(history, eta=0.4, beta_loss=0.7, beta_dynamics=0.3)
    np.testing.assert_array_equal(literal, reference_chain(history, opo_rule(models[0].layout, 0.4, 0.7, 0.3)))


def test_two_steps_by_hand():
    # H = 1, |A| = 2, losses (0.9, 0.5), eta = log 2, beta_loss = 0.4, beta_dynamics = 0: b = 0.2 / (1 + N).
    model = of.LayeredMDP(of.Layout([1], 2), [[0.9, 0.5]], [])
    # Step 1: N = 0, Q = (0.7, 0.3), pi^2 proportional to (2^-0.4, 1).
    first = of.reference.policy_chain([model], eta=np.log(2), beta_loss=0.4, beta_dynamics=0.0)
    np.testing.assert_allclose(first[0], [2**-0.4 / (1 + 2**-0.4), 1 / (1 + 2**-0.4)], rtol=1e-14)
    # Step 2: N = (1/2, 1/2), b = 2/15, Q = (0.9 - 2/15, 0.5 - 2/15), whose difference is again 0.4.
    second = of.reference.policy_chain([model, model], eta=np.log(2), beta_loss=0.4, beta_dynamics=0.0)
    assert second[0, 0] / second[0, 1] == pytest.approx(2**-0.8, rel=1e-14)


@pytest.mark.parametrize("masked", [False, True])
def test_a_chain_built_model_by_model_passes_through_the_policies_of_the_whole(masked):
    rng = np.random.default_rng(1)
    mask = np.array([[True, True], [True, False], [True, True], [False, True]]) if masked else None
    models = [random_model(rng, (1, 1, 2), 2, mask=mask) for _ in range(3)]
    given = {"eta": 0.4, "beta_loss": 0.7, "beta_dynamics": 0.3}
    chain = of.PolicyChain(models[0].layout, **given, action_mask=mask)
    np.testing.assert_array_equal(chain.policy(), models[0].uniform_policy())
    for k, i in enumerate((0, 1, 1, 2, 0, 2), start=1):
        chain.append(models[i])
        history = [models[j] for j in (0, 1, 1, 2, 0, 2)[:k]]
        np.testing.assert_array_equal(chain.policy(), of.policy_chain(history, **given))
        np.testing.assert_allclose(chain.policy(), of.reference.policy_chain(history, **given), atol=1e-12)
    assert len(chain) == 6


def test_a_chain_refuses_a_model_that_does_not_fit():
    rng = np.random.default_rng(1)
    chain = of.PolicyChain(of.Layout([1, 2], 2), eta=0.1, beta_loss=0.1, beta_dynamics=0.1)
    with pytest.raises(of.OpoError, match="another layout"):
        chain.append(random_model(rng, (1, 3), 2))
    with pytest.raises(of.OpoError, match="another action mask"):
        chain.append(random_model(rng, (1, 2), 2, mask=np.array([[True, True], [True, False], [True, True]])))
    with pytest.raises(of.OpoError, match="model of step 1"):
        chain.append(None)
