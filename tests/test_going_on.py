"""Runs that are stopped, saved, continued and joined; environments that only give samples; policies by name."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.model.names import Names
from opo_fast.runs.policy_table import PolicyTable, policy_table
from opo_fast.runs.result import COLUMNS


def world():
    return envs.make("random-finite", seed=3)


def learner(env, name="tabular-opo"):
    return agents.make(name, env, episodes=40)


def same(a, b):
    for name in COLUMNS:
        assert getattr(a, name).tobytes() == getattr(b, name).tobytes(), name
    assert (a.contexts, a.settings["labels"]) == (b.contexts, b.settings["labels"])


@pytest.fixture(scope="module")
def unbroken():
    env = world()
    return of.simulate(env, learner(env), 40, seed=5)


def test_the_same_agent_simulated_again_goes_on_at_its_episode(unbroken):
    env = world()
    agent = learner(env)
    first, second = of.simulate(env, agent, 17, seed=5), of.simulate(env, agent, 23, seed=5)
    assert (first.first, second.first) == (0, 17)
    same(first + second, unbroken)
    same(first.join(second), unbroken)


def test_an_agent_from_a_file_goes_on_at_its_episode(unbroken, tmp_path):
    env = world()
    agent = learner(env)
    first = of.simulate(env, agent, 17, seed=5)
    agent.save(tmp_path / "agent.npz")
    second = of.simulate(env, learner(env).load(tmp_path / "agent.npz"), 23, seed=5)
    same(first + second, unbroken)


def test_a_run_stopped_twice_equals_the_unbroken_one(unbroken, tmp_path):
    path = tmp_path / "run.npz"
    env = world()
    of.simulate(env, learner(env), 11, seed=5, save=path)
    env = world()
    of.simulate(env, learner(env), 25, seed=5, save=path, resume=path)
    env = world()
    same(of.simulate(env, learner(env), 40, seed=5, resume=path), unbroken)
    run = of.Simulation.load(path, env, learner(env), 40)
    while run.episode < run.episodes:
        run.step()
    same(run.result(), unbroken)


def test_what_does_not_fit_together_is_refused(tmp_path):
    env = world()
    agent = learner(env)
    first = of.simulate(env, agent, 5, seed=5, save=tmp_path / "run.npz")
    with pytest.raises(of.OpoError, match="later begins at episode 0: 5, where this run ends, is needed"):
        first.join(first)
    other = of.simulate(env, agent, 5, seed=6)
    with pytest.raises(of.OpoError, match="later has seed 6: 5"):
        first.join(other)
    with pytest.raises(of.OpoError, match="later is a int"):
        first.join(3)
    with pytest.raises(of.OpoError, match="seed 5: 6, as of this run"):
        of.simulate(env, learner(env), 10, seed=6, resume=tmp_path / "run.npz")
    with pytest.raises(of.OpoError, match="agent_name"):
        of.simulate(env, learner(env, "uniform"), 10, seed=5, resume=tmp_path / "run.npz")
    mine = agents.make("tabular-opo", env, episodes=40, eta_scale=3.0)
    with pytest.raises(of.OpoError, match=rf"whose eta is {agent.eta!r}: {mine.eta!r} is needed"):
        mine.restore(agent.state())
    with pytest.raises(of.OpoError, match="log is True"):
        of.simulate(env, learner(env), 10, seed=5, log=True, save=tmp_path / "x.npz")
    first.save(tmp_path / "result.npz")
    with pytest.raises(of.OpoError, match="is not a run that"):
        of.Simulation.load(tmp_path / "result.npz", env, learner(env))


class Samples:
    """The dynamics of an environment without its model."""

    def __init__(self, env, loss=None):
        self.env, self.layout, self.sample_context, self.loss = env, env.layout, env.sample_context, loss

    def reset(self, context, rng):
        self.mdp, self.rng, self.stage, self.local = self.env.mdp(context), rng, 0, 0

    def step(self, action):
        s = self.layout.state(self.stage, self.local)
        loss = float(self.rng.random() < self.mdp.losses[s, action]) if self.loss is None else self.loss
        if self.stage + 1 < self.layout.horizon:
            row = self.mdp.transitions.arrays()[self.stage][self.local, action]
            self.local = int(self.rng.choice(row.size, p=row / row.sum()))
        self.stage += 1
        return self.local, loss


def test_samples_alone_are_enough(tmp_path):
    env = world()
    result = of.simulate(Samples(env), learner(env), 30, seed=5)
    assert not result.exact
    assert np.isnan(result.regret).all()
    assert "regret unknown" in repr(result)
    assert result.summary()[-1].learned == result.observed_loss[-3:].mean()
    # The contexts are those of the environment with the model.
    assert result.context_index.tolist() == of.simulate(env, learner(env, "uniform"), 30, seed=5).context_index.tolist()
    result.save(tmp_path / "r.npz")
    assert not of.SimulationResult.load(tmp_path / "r.npz").exact
    again = of.simulate(Samples(env), learner(env), 30, seed=5)
    assert again.observed_loss.tobytes() == result.observed_loss.tobytes()


def test_samples_have_the_mean_of_the_model():
    """Losses of the uniform policy: mean within four standard errors of its exact value."""
    env = world()
    losses = of.simulate(Samples(env), learner(env, "uniform"), 2000, seed=1).observed_loss
    exact = of.simulate(env, learner(env, "uniform"), 2000, seed=1).value
    assert abs((losses - exact).mean()) < 4 * losses.std() / np.sqrt(2000)


def test_a_loss_out_of_range_names_the_episode():
    env = world()
    with pytest.raises(of.OpoError, match=r"loss of step 0 is 1\.5"):
        of.simulate(Samples(env, 1.5), learner(env), 3)


# -- names and tables --------------------------------------------------------------------------------------------------


def test_local_and_global_numbers():
    layout = of.Layout([1, 3, 2], 2)
    assert [layout.local(s) for s in range(7)] == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)]
    assert [layout.state(*layout.local(s)) for s in range(6)] == list(range(6))
    with pytest.raises(of.OpoError, match="local is 2: a whole number from 0 to 1"):
        layout.state(2, 2)


def clinic():
    """Two steps; after treatment the patient is well, else ill; being ill costs 1, treating 0.25."""
    layout = of.Layout([1, 2], 2)
    losses = np.array([[0.0, 0.25], [0.0, 0.25], [1.0, 1.0]])
    return of.LayeredMDP(layout, losses, [np.array([[[0.2, 0.8], [0.9, 0.1]]])]), Names(["new", "well", "ill"], ["wait", "treat"])


def test_a_table_by_hand(tmp_path):
    mdp, names = clinic()
    policy = np.array([[0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    table = PolicyTable(mdp, policy, names=names, label="Ms. <B>")
    rows = {(row.state_name, row.action_name): row for row in table}
    assert table.value[0] == pytest.approx(0.25 + 0.1)
    assert rows["new", "wait"].q == pytest.approx(0.8)
    assert rows["new", "treat"].q == pytest.approx(0.35)
    assert rows["ill", "wait"].occupancy == pytest.approx(0.05)
    assert rows["well", "wait"].reached == pytest.approx(0.9)
    table.to_csv(tmp_path / "t.csv")
    lines = list(csv.DictReader((tmp_path / "t.csv").read_text().splitlines()))
    assert [float(line["q"]) for line in lines] == [row.q for row in table]
    assert "Ms. &lt;B&gt;" in table._repr_html_()
    assert [line.split()[3] for line in str(table).splitlines()[2:]] == ["treat", "wait", "wait"]
    pandas = pytest.importorskip("pandas")
    assert isinstance(table.to_pandas(), pandas.DataFrame)
    assert table.to_pandas()["value"].tolist() == [row.value for row in table]
    table.plot(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")


def test_states_that_are_not_reached_are_left_out():
    mdp, names = clinic()
    sure = of.LayeredMDP(mdp.layout, mdp.losses, [np.array([[[1.0, 0.0], [1.0, 0.0]]])])
    policy = sure.uniform_policy()
    assert {row.state_name for row in PolicyTable(sure, policy, names=names)} == {"new", "well"}
    assert len(PolicyTable(sure, policy, names=names, reached_only=False)) == 6


def test_recommendations_by_name():
    mdp, names = clinic()
    env = envs.Environment(
        mdp.layout,
        [lambda context: mdp.losses],
        [lambda context: mdp.transitions],
        contexts=["a"],
        state_names=names.states,
        action_names=names.actions,
    )
    agent = agents.make("optimum", env, episodes=1)
    assert agent.recommend("a", 0, "new")[:3] == (1, "treat", 1.0)
    assert agent.recommend("a", 1, 0).name == "wait"
    with pytest.raises(of.OpoError, match="state is 'well': the states of layer 0 are new"):
        agent.recommend("a", 0, "well")
    assert policy_table(agent, "a", env).model == "true"
    assert policy_table(agents.make("greedy", env, episodes=1), "a", env).model == "fitted"


def test_a_name_that_two_states_of_a_layer_share_does_not_say_which():
    layout, names = of.Layout([1, 2], 1), Names(["start", "ward", "ward"])
    assert names.find(layout, 1, 1) == 1
    with pytest.raises(of.OpoError, match="state is 'ward': 2 states of layer 1 have this name; give the position in the layer"):
        names.find(layout, 1, "ward")
    with pytest.raises(of.OpoError, match=r"state is 'wart' \(did you mean 'ward'\?\): the states of layer 1 are ward, ward"):
        names.find(layout, 1, "wart")
    with pytest.raises(of.OpoError, match="state is 'ward', but the states have no names: give its position in layer 1"):
        Names().find(layout, 1, "ward")


def test_an_episode_in_names_is_the_one_in_numbers():
    mdp, names = clinic()
    one, two = (
        of.OPO(mdp.layout, of.FiniteLossClass([lambda c: mdp.losses]), of.FiniteDynamicsClass([lambda c: mdp.transitions]))
        for _ in range(2)
    )
    one.names = names
    one.record("a", ["new", "ill"], ["treat", 0], [0.25, 1])
    two.observe(of.Trajectory("a", np.array([0, 2, 3]), np.array([1, 0]), np.array([0.25, 1.0])))
    assert one.state()["loss oracle.scores"] == two.state()["loss oracle.scores"]
    np.testing.assert_array_equal(one.policy("a"), two.policy("a"))
    with pytest.raises(of.OpoError, match="action is 'cut': the actions are wait, treat"):
        one.record("a", ["new", "ill"], ["treat", "cut"], [0.25, 1])
    with pytest.raises(of.OpoError, match="states has 1 entries: one for each of the 2 layers is needed"):
        one.record("a", ["new"], ["treat", "cut"], [0.25, 1])
    with pytest.raises(of.OpoError, match="action is 'treat': give its number, since the actions have no names"):
        two.record("a", [0, 1], ["treat", 0], [0.25, 1])
    with pytest.raises(of.OpoError, match="state_names has 2 entries: one for each of the 3 states is needed"):
        two.names = Names(["a", "b"])
    assert one.episode == 1


def test_continuous_contexts_are_summarised_in_few_lines():
    env = envs.make("random-linear", n_contexts=None)
    result = of.simulate(env, agents.make("uniform", env, episodes=50), 50)
    once, total = result.summary()
    assert once.label == "50 contexts that came once"
    assert once[1:] == total[1:]
    assert total.regret == result.regret.sum()
    few = of.simulate(env, agents.make("uniform", env, episodes=20), 20)
    assert len(few.summary()) == 21


def test_continuous_contexts_are_summarised_by_quarters():
    env = envs.make("random-linear", n_contexts=None)
    result = of.simulate(env, agents.make("uniform", env, episodes=101), 101)
    assert result.continuous
    assert not of.simulate(world(), learner(world()), 30).continuous
    *lines, total = result.summary_by_quarter(1.0, most=2)
    assert len(lines) == 8
    assert [line.episodes for line in lines] == [26, 25, 25, 25] * 2
    points = np.array([result.contexts[i] for i in result.context_index])
    below = points[:, 1] <= np.quantile(points[:, 1], 0.25)
    assert lines[4].regret == result.regret[below].sum()
    assert lines[4].learned == result.value[below].mean()
    assert lines[4].label == f"context[1] {points[:, 1].min():.3g} to {np.quantile(points[:, 1], 0.25):.3g}"
    assert total == result.summary(1.0)[-1]
    numbered = of.simulate(world(), learner(world()), 30)
    with pytest.raises(of.OpoError, match="the contexts are not numbers"):
        numbered.summary_by_quarter()


def test_an_episode_that_fails_is_played_again_at_its_context():
    class Failing(agents.Uniform):
        fails = True

        def policy(self, context):
            if self.episode == 3 and Failing.fails:
                Failing.fails = False
                raise RuntimeError("once")
            return super().policy(context)

    env = world()
    run = of.Simulation(env, Failing(env.layout), 10, 3)
    for _ in range(3):
        run.step()
    with pytest.raises(RuntimeError, match="once"):
        run.step()
    while run.episode < 10:
        run.step()
    same(of.simulate(env, agents.Uniform(env.layout), 10, 3), run.result())


def test_what_cannot_be_saved_is_refused_before_the_first_episode(tmp_path):
    class Bare:
        def __init__(self, layout):
            self.layout, self.asked = layout, 0

        def policy(self, context):
            self.asked += 1
            return np.full(self.layout.shape, 1 / self.layout.n_actions)

        def observe(self, trajectory):
            pass

    env = world()
    agent = Bare(env.layout)
    with pytest.raises(of.OpoError, match=r"Bare without state"):
        of.simulate(env, agent, 5, save=tmp_path / "run.npz")
    with pytest.raises(of.OpoError, match=r"missing.* is no folder"):
        of.simulate(env, agents.Uniform(env.layout), 5, save=tmp_path / "missing" / "run.npz")
    assert agent.asked == 0
