"""`simulate_many` has the bits of `simulate` for every seed, whether or not the seeds run in lockstep."""

from __future__ import annotations

import itertools
import os
import signal

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.runs import lockstep as module
from opo_fast.runs.result import COLUMNS
from opo_fast.runs.simulation import Simulation

EPISODES = 70


class Fresh:
    """A new context in each episode, and classes with one function for all candidates."""

    name = "fresh"

    def __init__(self, sizes=(1, 3, 3, 3), n_actions=3, n=6, seed=1):
        rng = np.random.default_rng(seed)
        self.layout = layout = of.Layout(sizes, n_actions)
        losses = rng.random((n, 2, *layout.shape))
        rows = [rng.dirichlet(np.ones(after), (n, 2, size, n_actions)) for size, after in itertools.pairwise(sizes)]

        def loss(c):
            return c * losses[:, 0] + (1 - c) * losses[:, 1]

        def dynamics(c):
            return [c * p[:, 0] + (1 - c) * p[:, 1] for p in rows]

        self.loss_class = of.FiniteLossClass.from_function(loss, n)
        self.dynamics_class = of.FiniteDynamicsClass.from_function(dynamics, n)
        self._truth = lambda c: (loss(c)[n // 2], [p[n // 2] for p in dynamics(c)])

    def sample_context(self, rng):
        return float(rng.random())

    def mdp(self, context):
        return of.LayeredMDP(self.layout, *self._truth(context))


WORLDS = {
    "few contexts": lambda: envs.make("random-finite", horizon=4, n_losses=10, n_dynamics=10, seed=2),
    "combination lock": lambda: envs.make("combination-lock", horizon=4, seed=2),
    "contexts drawn once": lambda: envs.make("random-linear", seed=2),
    "endless contexts": lambda: envs.make("random-linear", n_contexts=None, seed=2),
    "fresh contexts": Fresh,
    "ten layers": lambda: Fresh((1, *[2] * 9), 2, 3),
    "one candidate, ten layers": lambda: Fresh((1, *[2] * 9), 2, 1),
    "one layer": lambda: Fresh((1,), 3, 4),
    "uniform noise": lambda: envs.make("random-linear", noise=0.2, seed=3),
}
AGENTS = {
    "auto": lambda env: of.OPO(env.layout, env.loss_class, env.dynamics_class),
    "by hand": lambda env: of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=EPISODES, bonus_scale=2e-6, eta_scale=50),
    "tight bonus": lambda env: of.OPO(env.layout, env.loss_class, env.dynamics_class, eta=0.5, beta_loss=0.3, beta_dynamics=0.1),
    "theory": lambda env: of.OPO(env.layout, env.loss_class, env.dynamics_class, tuning="theory", episodes=EPISODES),
    "e-uc3rl": lambda env: agents.EUC3RL(env.layout, env.loss_class, env.dynamics_class, beta_loss=0.5, beta_dynamics=0.2),
    "small memory": lambda env: of.OPO(env.layout, env.loss_class, env.dynamics_class, eta=0.5, beta_loss=1, beta_dynamics=1, memory=1),
}


def same(a, b):
    for name in COLUMNS:
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
    settings = [{key: value for key, value in run.settings.items() if key != "seconds"} for run in (a, b)]
    assert settings[0] == settings[1]
    assert len(a.contexts) == len(b.contexts)
    assert all(np.array_equal(x, y) for x, y in zip(a.contexts, b.contexts, strict=True))


def alone(env, make, seeds, episodes=EPISODES):
    """Runs that are played episode by episode."""
    results = []
    for seed in seeds:
        run = Simulation(env, make(seed), episodes, seed)
        for _ in range(episodes):
            run.step()
        results.append(run.result())
    return results


def hashed(state):
    """A state with its arrays as bytes."""
    if isinstance(state, dict):
        return {key: hashed(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return [hashed(value) for value in state]
    return state.tobytes() if isinstance(state, np.ndarray) else repr(state)


def check(env, make, seeds=3, episodes=EPISODES, **options):
    """Check that results and final states of the agents equal those of one run after the other."""
    agents = []

    def kept(seed):
        agents.append(make(seed))
        return agents[-1]

    many = of.simulate_many(env, kept, episodes, seeds, **options)
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    for one, other in zip(alone(env, kept, numbers, episodes), many, strict=True):
        same(one, other)
    for one, other in zip(agents[len(many) :], agents[: len(many)], strict=True):
        np.testing.assert_array_equal(getattr(one, "held_out", 0), getattr(other, "held_out", 0))
        if hasattr(one, "state"):
            # How many steps are run once more depends on which chains are kept.
            states = [{key: value for key, value in agent.state().items() if key != "planning_calls"} for agent in (one, other)]
            assert hashed(states[0]) == hashed(states[1])
    return many


@pytest.fixture
def counted(monkeypatch):
    """Number of episodes that were played in lockstep; an episode of several seeds counts once."""
    played = []
    original = module.Lockstep._step

    def step(self):
        told = original(self)
        played.append(told)
        return told

    monkeypatch.setattr(module.Lockstep, "_step", step)
    return played


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("world", ["few contexts", "fresh contexts"])
def test_agents_have_the_bits_of_one_after_the_other(world, agent, counted):
    env = WORLDS[world]()
    check(env, lambda seed: AGENTS[agent](env))
    assert sum(counted) >= EPISODES - 2


@pytest.mark.parametrize("world", WORLDS)
def test_worlds_have_the_bits_of_one_after_the_other(world, counted):
    env = WORLDS[world]()
    check(env, lambda seed: AGENTS["auto"](env), episodes=40)
    check(env, lambda seed: AGENTS["by hand"](env), episodes=40)
    assert sum(counted) >= 2 * 39


@pytest.mark.parametrize("name", ["greedy", "uniform", "rm-ucdd", "tabular-opo", "epsilon-greedy", "optimum"])
def test_other_agents_are_played_one_after_the_other(name, counted):
    env = WORLDS["few contexts"]()
    check(env, lambda seed: agents.make(name, env, episodes=30, seed=seed), episodes=30)
    assert not counted


def test_masks_other_oracles_settings_and_backends_are_played_one_after_the_other(counted):
    env = WORLDS["few contexts"]()
    mask = np.ones(env.layout.shape, bool)
    mask[1, 0] = False
    mdps = [of.LayeredMDP(env.layout, mdp.losses, mdp.transitions.arrays(), mask) for mdp in env.mdps]
    masked = of.FiniteContexts(mdps)
    dynamics = of.FiniteDynamicsClass([lambda c: mdps[c].transitions.arrays()])
    check(masked, lambda seed: of.OPO(env.layout, env.loss_class, dynamics, action_mask=mask), 2, 20)
    scheduled = of.oracles.scheduled(env.loss_class, "doubling")
    check(env, lambda seed: of.OPO(env.layout, scheduled, env.dynamics_class), 2, 20)
    check(env, lambda seed: of.OPO(env.layout, env.loss_class, env.dynamics_class, delta=0.1 + 0.01 * seed), 2, 20)
    check(env, lambda seed: of.OPO(env.layout, env.loss_class, env.dynamics_class, backend="numpy"), 2, 10)
    assert not counted


def test_candidates_given_anew_for_each_seed_go_side_by_side_only_where_they_are_the_same(counted):
    env = WORLDS["few contexts"]()

    def again(seed):
        return of.OPO(env.layout, of.FiniteLossClass(env.loss_models), of.FiniteDynamicsClass(env.dynamics_models))

    check(env, again, 2, 20)
    assert sum(counted) == 19
    counted.clear()

    def others(seed):
        return of.OPO(env.layout, of.FiniteLossClass(env.loss_models[seed:]), of.FiniteDynamicsClass(env.dynamics_models))

    check(env, others, 2, 20)
    assert not counted


def test_more_seeds_than_go_side_by_side_and_seeds_by_number():
    env = WORLDS["few contexts"]()
    runs = check(env, lambda seed: AGENTS["auto"](env), [7, 3, 11, 2**70, *range(20, 27)], episodes=15)
    assert [run.settings["seed"] for run in runs] == [7, 3, 11, 2**70, *range(20, 27)]


@pytest.mark.parametrize("world", ["few contexts", "fresh contexts"])
def test_threads_change_nothing(world, set_threads):
    env = WORLDS[world]()
    runs = []
    for threads in (1, 2):
        set_threads(threads)
        runs.append(of.simulate_many(env, lambda seed: AGENTS["tight bonus"](env), 40, 3))
    for one, other in zip(*runs, strict=True):
        same(one, other)


def test_more_episodes_than_the_theory_was_asked_for():
    env = WORLDS["few contexts"]()
    with pytest.warns(UserWarning, match="plays more episodes than the 20"):
        check(env, lambda seed: of.OPO(env.layout, env.loss_class, env.dynamics_class, episodes=20, bonus_scale=1e-5), episodes=30)


def test_contexts_that_leave_the_tables_and_return(monkeypatch, counted):
    from opo_fast.runs import tables

    env = envs.make("random-finite", n_contexts=60, seed=4)
    monkeypatch.setattr(tables, "FIRST", 8)
    line = 8 * (env.layout.n_states * 3 * len(env.loss_models) + int(env.layout.dense_block[-1]) * len(env.dynamics_models) + 2)
    window = AGENTS["auto"](env).lookahead
    monkeypatch.setattr(tables, "ROOM", line * (window + 2))
    check(env, lambda seed: AGENTS["auto"](env), episodes=100)
    assert sum(counted) == 99


@pytest.mark.parametrize("agent", ["auto", "e-uc3rl"])
def test_runs_that_were_saved_at_different_episodes_go_on_to_the_same_bits(agent, tmp_path):
    env = WORLDS["few contexts"]()

    def make(seed):
        return AGENTS[agent](env)

    of.simulate_many(env, make, 20, [0, 1], save=tmp_path)
    of.simulate(env, make(2), 33, 2, save=tmp_path / "seed-2.npz")
    many = of.simulate_many(env, make, EPISODES, 4, save=tmp_path, resume=tmp_path)
    for one, other in zip(alone(env, make, range(4)), many, strict=True):
        same(one, other)
    run = Simulation.load(tmp_path / "seed-3.npz", env, make(3))
    assert run.episode == EPISODES


@pytest.mark.parametrize("agent", ["auto", "greedy"])
def test_ctrl_c_ends_with_the_episodes_that_were_finished(agent, tmp_path):
    inner = WORLDS["few contexts"]()

    class Pressed:
        layout, mdp, name = inner.layout, staticmethod(inner.mdp), inner.name
        asked = 0

        def sample_context(self, rng):
            self.asked += 1
            if self.asked == 60:
                os.kill(os.getpid(), signal.SIGINT)
            return inner.sample_context(rng)

    make = (lambda seed: AGENTS["auto"](inner)) if agent == "auto" else lambda seed: agents.make("greedy", inner, episodes=40)
    many = of.simulate_many(Pressed(), make, 40, 3, save=tmp_path)
    assert many[-1].interrupted
    assert 0 < many[-1].episodes < 40
    for one, other in zip(alone(inner, make, range(len(many)), 40), many, strict=True):
        for name in COLUMNS:
            assert getattr(one, name)[: other.episodes].tobytes() == getattr(other, name).tobytes()
    rest = of.simulate_many(inner, make, 40, 3, resume=tmp_path)
    for one, other in zip(alone(inner, make, range(3), 40), rest, strict=True):
        same(one, other)


@pytest.mark.parametrize("agent", ["auto", "tabular-opo"])
def test_an_error_on_the_way_names_episode_and_seeds(agent):
    inner = WORLDS["few contexts"]()

    class Broken:
        layout, sample_context, name = inner.layout, staticmethod(inner.sample_context), inner.name

        def mdp(self, context):
            if context == 3:
                raise of.OpoError("context 3 has no model")
            return inner.mdp(context)

    make = (lambda seed: AGENTS["auto"](inner)) if agent == "auto" else lambda seed: agents.make(agent, inner, episodes=40)
    with pytest.raises(of.OpoError, match="context 3 has no model") as told:
        of.simulate_many(Broken(), make, 40, 2)
    notes = " ".join(told.value.__notes__)
    assert "of 40" in notes
    assert "seed 0" in notes


def test_a_context_that_is_out_of_the_ordinary_ends_the_lockstep_and_not_the_runs(counted):
    env = WORLDS["few contexts"]()

    def sparse(model, c):
        from scipy.sparse import csr_array

        arrays = model(c).arrays()
        return [csr_array(a.reshape(-1, a.shape[2])) for a in arrays] if c == 4 else arrays

    dynamics = of.FiniteDynamicsClass([lambda c, model=model: sparse(model, c) for model in env.dynamics_models])
    check(env, lambda seed: of.OPO(env.layout, env.loss_class, dynamics), episodes=60)
    # The first episode, before which there are no steps of a chain, and the first look at the context.
    assert counted.count(0) == 2


def test_a_class_that_cannot_explain_the_data_says_so():
    env = WORLDS["few contexts"]()
    ones = [np.zeros(shape) for shape in env.layout.dense_shapes]
    for array in ones:
        array[..., 0] = 1.0
    wrong = of.FiniteDynamicsClass([lambda c: ones])
    with pytest.raises(of.OpoError, match="cannot explain the data"):
        of.simulate_many(env, lambda seed: of.OPO(env.layout, env.loss_class, wrong), 60, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    {
        "seeds twice": ({"seeds": [1, 2, 1]}, "seeds holds a seed twice"),
        "no seeds": ({"seeds": 0}, "seeds is 0"),
        "an agent": ({"make_agent": 3}, "make_agent is a int"),
        "episodes": ({"episodes": 0}, "episodes is 0"),
    }.values(),
)
def test_bad_arguments(arguments, words):
    env = WORLDS["few contexts"]()
    with pytest.raises(of.OpoError, match=words):
        of.simulate_many(env, **{"make_agent": lambda seed: AGENTS["auto"](env), "episodes": 5, "seeds": 2, **arguments})


def test_no_seeds_no_runs():
    env = WORLDS["few contexts"]()
    assert of.simulate_many(env, lambda seed: AGENTS["auto"](env), 5, []) == []
