"""The terms of the regret for every agent that has them: the identities of the proof, plain NumPy loops, and values by hand."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.algorithm.self_tuning import self_tuning_chain
from opo_fast.analysis import agent_steps, history_at, optimistic_steps, regret_decomposition

BY_HAND = {"eta": 0.5, "beta_loss": 0.6, "beta_dynamics": 0.1}
AGENTS = {
    "by hand": ("opo", BY_HAND),
    "theory": ("opo", {"tuning": "theory"}),
    "self-tuning": ("opo", {}),
    "e-uc3rl": ("e-uc3rl", {}),
    "rm-ucdd": ("rm-ucdd", {}),
    "greedy": ("greedy", {}),
    "epsilon-greedy": ("epsilon-greedy", {"scale": 0.5}),
}


def world(seed=0, **options):
    return envs.make("random-finite", **{"horizon": 4, "n_contexts": 3, "n_losses": 4, "n_dynamics": 4, "seed": seed, **options})


def played(name, env, episodes=60, seed=1):
    kind, options = AGENTS[name]
    agent = agents.make(kind, env, episodes=episodes, **options)
    return agent, of.simulate(env, agent, episodes, seed)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", AGENTS)
def test_the_terms_sum_to_the_regret_of_every_episode(name, own):
    env = envs.make("random-linear", n_contexts=None, n_losses=4, n_dynamics=4, horizon=4) if own else world()
    agent, run = played(name, env)
    assert len(run.contexts) == (60 if own else 3)
    before = agent.policy(run.contexts[0])
    terms = regret_decomposition(env, agent, run)
    np.testing.assert_array_equal(agent.policy(run.contexts[0]), before)
    np.testing.assert_allclose(terms.regret, run.regret, atol=1e-10)
    forced = env.layout.n_actions if name == "rm-ucdd" else 0
    assert all(np.isnan(column[:forced]).all() for column in (*terms[1:5], *terms.played, *terms.optimal))
    regret, i, ii, iii, iv = (column[forced:] for column in terms[:5])
    np.testing.assert_allclose(i + ii, regret, atol=1e-10)
    np.testing.assert_allclose(iii + iv, ii, atol=1e-10)
    np.testing.assert_allclose(terms.played.total[forced:], i, atol=1e-10)
    np.testing.assert_allclose(terms.optimal.total[forced:], -iv, atol=1e-10)
    if name in ("e-uc3rl", "rm-ucdd", "greedy"):
        assert iii.max() <= 1e-12, "a planner's policy minimises its Q"


@pytest.mark.parametrize("name", ["by hand", "theory"])
@pytest.mark.parametrize("masked", [False, True])
def test_steps_from_the_engine_are_those_of_the_plain_loop(name, masked):
    rng = np.random.default_rng(3)
    env = world()
    mask = rng.random(env.layout.shape) < 0.7
    mask[np.arange(len(mask)), rng.integers(env.layout.n_actions, size=len(mask))] = True
    options = {"action_mask": mask} if masked else {}
    # Without the environment's mask.
    free = of.FiniteDynamicsClass([lambda c, m=m: [np.array(block) for block in m(c).arrays()] for m in env.dynamics_models])
    agent = of.OPO(
        env.layout,
        env.loss_class,
        free,
        **(BY_HAND if name == "by hand" else {"tuning": "theory", "episodes": 50}),
        **options,
    )
    mdps = [of.LayeredMDP(env.layout, mdp.losses, mdp.transitions.arrays(), mask if masked else None) for mdp in env.mdps]
    of.simulate(of.FiniteContexts(mdps), agent, 50)
    given = {"eta": agent.eta, "beta_loss": agent.beta_loss, "beta_dynamics": agent.beta_dynamics}
    loops = [list(optimistic_steps(history_at(agent, context, 50), **given)) for context in range(3)]
    wanted = [(0, range(50)), (1, [0, 7, 49]), (2, [])]
    found = list(agent_steps(agent, wanted))
    assert sorted((which, t) for which, t, _ in found) == [(0, t) for t in range(50)] + [(1, t) for t in (0, 7, 49)]
    for which, t, step in found:
        for field, mine, theirs in zip(step._fields[1:], step[1:], loops[which][t][1:], strict=True):
            np.testing.assert_allclose(mine, theirs, atol=1e-9, err_msg=f"{field} of step {t}")


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ([(0, [11])], r"wanted\[0\]\[1\]\[0\] is 11: a whole number from 0 to 10"),
        ([(0, range(12))], r"wanted\[0\]\[1\]: an episode is 11: a whole number from 0 to 10"),
        ([(0, [0]), (1, [-1])], r"wanted\[1\]\[1\]\[0\] is -1"),
        ([(0, [1.0])], r"wanted\[0\]\[1\]\[0\] is 1\.0: a whole number"),
        ([(0, [3, 2])], r"wanted\[0\]\[1\] is \[3, 2\]: episodes that rise"),
        ([(0, [3, 3])], r"wanted\[0\]\[1\] is \[3, 3\]: episodes that rise"),
        ([(0, 3)], r"wanted\[0\]\[1\] is a int: a sequence of episodes"),
        ([0], r"wanted\[0\] is 0: a context and its episodes"),
        (3, "wanted is a int: a sequence of pairs"),
    ],
)
def test_steps_that_the_agent_has_not_come_to(wanted, text):
    agent, _ = played("by hand", world(), 10)
    with pytest.raises(of.OpoError, match=text):
        agent_steps(agent, wanted)


@pytest.mark.parametrize("name", ["by hand", "self-tuning", "rm-ucdd"])
def test_the_last_step_is_that_of_the_coming_episode(name):
    env = world()
    agent, _ = played(name, env, 10)
    ((_, episode, step),) = agent_steps(agent, [(0, [10])])
    assert episode == 10
    np.testing.assert_allclose(step.policy, agent.policy(0), atol=1e-12)
    with pytest.raises(of.OpoError, match="is 11: a whole number from 0 to 10"):
        agent_steps(agent, [(0, [11])])


def test_self_tuning_steps_are_those_of_the_plain_loop():
    env = world(2)
    agent, run = played("self-tuning", env, 40)
    context = run.contexts[0]
    history = [agent.plausible_at(agent.history[k], context) for k in range(40)]
    for _, t, step in agent_steps(agent, [(context, range(40))]):
        policy = self_tuning_chain(history[:t], agent.rule).policy if t else env.mdp(context).uniform_policy()
        np.testing.assert_allclose(step.policy, policy, atol=1e-9)
        # Q is the maximum of Algorithm 1's Q and the lower bound over the plausible models.
        plain = np.maximum(0.0, step.model.losses - step.bonus + step.ahead)
        assert (step.q >= plain - 1e-12).all()
        np.testing.assert_allclose(step.v, (step.policy * step.q).sum(axis=1), atol=1e-12)
        np.testing.assert_allclose(step.q - (step.model.losses - step.bonus + step.ahead), step.truncation, atol=1e-12)
        # The steps have visits although the bonuses have no effect on the policies.
        visits = sum(
            (of.occupancy(step.model, self_tuning_chain(history[:i], agent.rule).policy) for i in range(1, t)), np.zeros(env.layout.shape)
        )
        if t:
            visits = visits + of.occupancy(step.model, env.mdp(context).uniform_policy())
        if t in (0, 1, 20):
            np.testing.assert_allclose(step.visits, visits, atol=1e-9)


@pytest.mark.parametrize("name", ["by hand", "self-tuning", "e-uc3rl"])
def test_the_optimistic_value_is_that_of_the_agent(name):
    env = world(4)
    kind, options = AGENTS[name]
    agent = agents.make(kind, env, episodes=40, **options)
    run, optimistic, contexts, values = of.Simulation(env, agent, 40), [], [], []
    for t in range(40):
        contexts.append(run.context(t))
        if name == "e-uc3rl":
            optimistic.append(agent.value(contexts[-1]))
        run.step()
        if name != "e-uc3rl":
            optimistic.append(agent.value(contexts[-1]))
        values.append(run.columns["value"][t])
    terms = regret_decomposition(env, agent, contexts)
    np.testing.assert_allclose(np.array(values) - terms.term_i, optimistic, atol=1e-10)


@pytest.mark.parametrize("name", ["by hand", "self-tuning", "rm-ucdd"])
def test_terms_in_expectation_over_the_contexts(name):
    env = world(5)
    env = envs.Environment(
        env.layout, env.loss_models, env.dynamics_models, true_loss=env.true_loss, true_dynamics=env.true_dynamics, contexts=range(3),
        probabilities=[0.5, 0.0, 0.5],
    )  # fmt: skip
    agent, run = played(name, env, 30)
    expected = regret_decomposition(env, agent, run, expected=True)
    # The same steps at each context separately.
    each = []
    for context in (0, 2):
        fixed = of.FiniteContexts(env.mdps, np.eye(3)[context])
        each.append(regret_decomposition(fixed, agent, [context] * 30))
    for whole, *parts in zip(
        (*expected[:5], *expected.played, *expected.optimal), *((*e[:5], *e.played, *e.optimal) for e in each), strict=True
    ):
        np.testing.assert_allclose(whole, (parts[0] + parts[1]) / 2, atol=1e-12)
    # The context that was played is one of the two.
    mine = np.where(run.context_index == list(map(int, run.contexts)).index(0), each[0].regret, each[1].regret)
    np.testing.assert_allclose(mine, run.regret, atol=1e-10)


def test_greedy_terms_by_hand():
    # One state; the fit says that the second action costs .2, the truth that it costs .9 and the first one .3.
    layout, true, fitted = of.Layout([1], 2), np.array([[0.3, 0.9]]), np.array([[0.5, 0.2]])
    env = of.FiniteContexts([of.LayeredMDP(layout, true, [])])
    classes = of.FiniteLossClass([lambda c: fitted]), of.FiniteDynamicsClass([lambda c: []])
    agent = agents.Greedy(layout, *classes)
    terms = regret_decomposition(env, agent, of.simulate(env, agent, 3))
    for name, value in {"regret": 0.6, "term_i": 0.7, "term_ii": -0.1, "term_iii": -0.3, "term_iv": 0.2}.items():
        np.testing.assert_allclose(getattr(terms, name), value, atol=1e-14, err_msg=name)
    np.testing.assert_allclose(terms.played.loss, 0.7, atol=1e-14)
    assert not terms.played.bonus.any()
    assert not terms.played.truncation.any()


def test_sparse_models_and_threads_change_nothing(set_threads):
    env = world(6)
    sparse = of.FiniteDynamicsClass(
        [lambda c, m=m: [sp.csr_array(b.reshape(-1, b.shape[-1])) for b in m(c).arrays()] for m in env.dynamics_models]
    )
    found = []
    for dynamics, threads in ((env.dynamics_class, 1), (sparse, 1), (env.dynamics_class, 2)):
        set_threads(threads)
        agent = of.OPO(env.layout, env.loss_class, dynamics)
        run = of.simulate(env, agent, 30)
        found.append(np.array(regret_decomposition(env, agent, run)[:5]))
    np.testing.assert_allclose(found[1], found[0], atol=1e-10)
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.parametrize("name", ["self-tuning", "e-uc3rl", "greedy"])
def test_a_run_records_its_terms_and_is_the_same_run(name):
    env, (kind, options) = world(7), AGENTS[name]
    plain, recorded = (
        of.simulate(env, agents.make(kind, env, episodes=40, **options), 40, 2, diagnostics=wanted) for wanted in (False, True)
    )
    assert plain.terms is None
    np.testing.assert_allclose(recorded.terms.term_i + recorded.terms.term_iii + recorded.terms.term_iv, recorded.regret, atol=1e-10)
    for column in ("value", "observed_loss", "saturation", "hedge_bound", "context_index", "loss_fit", "dynamics_fit"):
        np.testing.assert_array_equal(getattr(recorded, column), getattr(plain, column))
    uniform = agents.make("uniform", env, episodes=5)
    with pytest.raises(of.OpoError, match="agent is an agent without an optimistic estimate"):
        of.simulate(env, uniform, 5, diagnostics=True)
    assert uniform.episode == 0


def test_a_run_that_goes_on_has_the_terms_of_an_unbroken_one():
    env = world(8)
    whole = of.simulate(env, agents.make("opo", env, episodes=50), 50, 1, diagnostics=True).terms
    agent = agents.make("opo", env, episodes=50)
    of.simulate(env, agent, 20, 1)
    later = of.simulate(env, agent, 30, 1, diagnostics=True)
    assert later.first == 20
    for mine, theirs in zip(later.terms[:5], whole[:5], strict=True):
        np.testing.assert_allclose(mine, theirs[20:], atol=1e-10)
    np.testing.assert_allclose(regret_decomposition(env, agent, later, expected=True).regret.size, 30)
    greedy = agents.make("greedy", env, episodes=50)
    before = of.simulate(env, greedy, 10, 1)
    with pytest.raises(of.OpoError, match="run begins at episode 11: greedy keeps no history"):
        regret_decomposition(env, greedy, of.simulate(env, greedy, 10, 1))
    assert before.first == 0


def test_what_has_no_terms_is_refused():
    env = world()
    agent, run = played("greedy", env, 5)
    uniform = agents.make("uniform", env, episodes=5)
    endless = envs.make("random-linear", n_contexts=None)
    opo = of.OPO(endless.layout, endless.loss_class, endless.dynamics_class)
    of.simulate(endless, opo, 3)
    for bad, text in [
        (lambda: regret_decomposition(env, uniform, of.simulate(env, uniform, 5)), "agent is an agent without an optimistic estimate"),
        (lambda: regret_decomposition(env, agent, [0] * 5), "run is a list: the SimulationResult is needed, as greedy keeps no history"),
        (lambda: regret_decomposition(endless, opo, of.simulate(endless, opo, 3), expected=True), "cmdp does not list its contexts"),
        (lambda: regret_decomposition(env, agent, run, expected=1), "expected is 1: True or False"),
    ]:
        with pytest.raises(of.OpoError, match=text):
            bad()
