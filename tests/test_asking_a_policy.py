"""Policies at unknown contexts, which raise errors or warnings, and tables of states without a choice."""

import warnings

import numpy as np
import pytest

import opo_fast as of
from opo_fast import agents, envs
from opo_fast.offline import learn_from_logs
from opo_fast.oracles import TabularDynamicsClass, TabularLossClass, TrajectoryLog
from opo_fast.runs.policy_table import DRAWN, ONLY, PolicyTable


def moving(context, stage, state, action):
    return {"well": 0.5, "ill": 0.5}


def clinic(**options):
    options = {"start": "new", "contexts": ["young", "old"], **options}
    return envs.from_functions(
        3, options.pop("start"), ["wait", "treat"], [moving], loss=lambda context, stage, state, action: 0.5 * (state == "ill"), **options
    )


def by_hand(layout):
    agent = of.OPO(layout, TabularLossClass(per_context=True), TabularDynamicsClass(per_context=True))
    agent.names = of.Names(["new", "well", "ill", "well", "ill"], ["wait", "treat"])
    return agent


def test_a_context_that_the_environment_does_not_list_is_an_error():
    env = clinic()
    agent = agents.make("opo", env, episodes=5)
    for ask in (
        lambda: agent.recommend("yung", 0, "new"),
        lambda: of.policy_table(agent, "yung", env),
        lambda: of.policy_table(agent, "yung"),
        lambda: of.policy_table(by_hand(env.layout), "yung", env),
    ):
        with pytest.raises(of.OpoError, match=r"context is 'yung' \(did you mean 'young'\?\): the contexts are 'young', 'old'"):
            ask()
    labelled = clinic(labels=["below 50", "50 and above"])
    with pytest.raises(of.OpoError, match="context is 'below 50', which is the label of the context 'young': pass the context itself"):
        of.policy_table(agents.make("opo", labelled, episodes=5), "below 50", labelled)
    numbered = of.FiniteContexts([env.mdp("young"), env.mdp("old")])
    with pytest.raises(of.OpoError, match="context is 2: the contexts are 0, 1"):
        of.policy_table(agents.make("optimum", numbered, episodes=1), 2, numbered)


def test_a_long_list_is_cut():
    many = clinic(contexts=[f"patient {i}" for i in range(30)])
    with pytest.raises(of.OpoError, match=r"did you mean 'patient 2\d?'.*'patient 7', \.\.\. \(30 in all\)"):
        agents.make("opo", many, episodes=5).recommend("patiend 2", 0, 0)


def test_a_context_that_was_never_observed_is_a_warning():
    env = clinic()
    agent = by_hand(env.layout)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.recommend("young", 0, "new")  # An agent without data gives no warning.
        for context in ("young", "old"):
            agent.record(context, ["new", "ill", "well"], ["wait", "treat", "wait"], [0.0, 0.5, 0.0])
        assert agent.seen == ["young", "old"]
        agent.recommend("old", 0, "new")
    said = r"context 'yung' was never observed \(did you mean 'young'\?\): the agent has seen 'young', 'old'"
    with pytest.warns(UserWarning, match=said):
        agent.recommend("yung", 0, "new")
    with pytest.warns(UserWarning, match=said):
        of.policy_table(agent, "yung")


def test_what_was_observed_is_saved(tmp_path):
    env = clinic()
    agent = by_hand(env.layout)
    agent.record("young", ["new", "ill", "well"], ["wait", "treat", "wait"], [0.0, 0.5, 0.0])
    agent.save(tmp_path / "a.npz")
    again = by_hand(env.layout).load(tmp_path / "a.npz")
    assert again.seen == ["young"]
    state = agent.state()
    del state["observed_contexts"]  # as of an older version
    again.restore(state)
    assert again.seen is None
    with pytest.raises(of.OpoError, match=r"state\['observed_contexts'\] holds contexts that are not strings or integers"):
        again.restore({**state, "observed_contexts": [1.5]})


def test_numbers_and_vectors_give_no_warning():
    endless = envs.make("random-linear", n_contexts=None)
    of.policy_table(agents.make("uniform", endless, episodes=1), endless.sample_context(np.random.default_rng(0)), endless)
    agent = by_hand(clinic().layout)
    for context in (np.array([0.5, 1.0]), 0.25):
        agent.record(context, ["new", "ill", "well"], ["wait", "treat", "wait"], [0.0, 0.5, 0.0])
    assert agent.seen is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent.recommend(np.array([0.5, 1.1]), 0, "new")


def rows(*, ends):
    """Four visits of two steps; where `ends`, those of the old end after the first in "home", and one begins in "worse"."""
    table = {"episode": [], "step": [], "context": [], "state": [], "action": [], "loss": [], "next_state": []}
    for episode in range(4):
        context = "young" if episode % 2 else "old"
        visit = [("ill", "treat", 0.5, "well"), ("well", "wait", 0.0, "home")]
        if ends and context == "old":
            visit = [("ill", "treat", 0.5, "home"), ("home", "rest", 0.0, "home")]
        for step, (state, action, loss, after) in enumerate(visit):
            for name, value in zip(table, (episode, step, context, state, action, loss, after), strict=True):
                table[name].append(value)
    if ends:
        table["state"][0] = "worse"
    return {name: np.array(column) for name, column in table.items()}


def test_the_table_of_a_policy_from_logs_has_the_names_of_the_log():
    log = TrajectoryLog.from_pandas(rows(ends=False))
    learned = learn_from_logs(log.layout, TabularLossClass(per_context=True), TabularDynamicsClass(per_context=True), log)
    for ask in (learned.policy, learned.value, learned.model, lambda context: of.policy_table(learned, context)):
        with pytest.warns(UserWarning, match=r"context 'yung' was never observed \(did you mean 'young'\?\)"):
            ask("yung")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ask("young")


def test_states_without_a_choice_are_marked():
    log = TrajectoryLog.from_pandas(rows(ends=True), absorbing="home", next_state="next_state")
    learned = learn_from_logs(log.layout, TabularLossClass(), TabularDynamicsClass(), log)
    table = of.policy_table(learned, "old", reached_only=False)
    told = {tuple(row[:2]): row[3:5] for row in table.shown().rows}
    assert told["0", "start"] == ["-", "-"]  # visits begin in two states, which a first layer draws
    assert told["1", "ill"][1] == "1.000"
    assert told["2", "home"][1] == "only"
    for text in (str(table), table._repr_html_()):
        assert DRAWN in text
        assert ONLY in text


def test_a_start_distribution_has_a_note():
    drawn = clinic(start={"new": 0.5, "ill": 0.5})
    assert drawn.layout.horizon == 4
    assert drawn.start_layer
    assert DRAWN in str(of.policy_table(agents.make("opo", drawn, episodes=5), "old", drawn))
    assert DRAWN not in str(of.policy_table(agents.make("opo", clinic(), episodes=5), "old", clinic()))
    for name in ("icu-sepsis", "taxi"):
        env = envs.make(name, horizon=3)
        assert env.start_layer
        assert env.layout.horizon == 4
    for name in ("frozen-lake", "random-finite"):
        assert not envs.make(name).start_layer


def test_the_printed_rows_are_the_likeliest_states_of_each_stage():
    rng = np.random.default_rng(0)
    layout = of.Layout([1, 30, 30], 3)
    mdp = of.LayeredMDP(layout, rng.random(layout.shape), [rng.dirichlet(np.ones(30), (1, 3)), rng.dirichlet(np.ones(30), (30, 3))])
    table = PolicyTable(mdp, mdp.uniform_policy())
    title, _, shown, more, notes = table.shown(40)
    assert more == 21
    assert not notes
    assert title == table.title
    assert [int(row[0]) for row in shown] == [0] + [1] * 30 + [2] * 9
    ranked = 1 + np.argsort(-table.reached[1:31], kind="stable")
    assert [int(row[1]) for row in shown[1:31]] == (ranked - 1).tolist()


def test_a_picture_has_the_likeliest_states():
    pytest.importorskip("matplotlib")
    rng = np.random.default_rng(0)
    layout = of.Layout([1, 150], 2)
    mdp = of.LayeredMDP(layout, rng.random(layout.shape), [rng.dirichlet(np.ones(150), (1, 2))])
    table = PolicyTable(mdp, mdp.uniform_policy())
    axes = table.plot()
    assert axes.get_title() == f"{table.title}\nthe 100 likeliest of 151 states"
    names = [text.get_text() for text in axes.get_yticklabels()]
    likeliest = np.sort(np.argsort(-table.reached[1:])[:99])
    assert names == ["0: 0", *(f"1: {s}" for s in likeliest)]


def test_a_table_takes_the_agents_names_where_the_environment_has_none():
    layout = of.Layout([1, 2], n_actions=2)
    env = of.FiniteContexts([of.LayeredMDP(layout, np.zeros((3, 2)), [np.full((1, 2, 2), 0.5)])])
    agent = of.agents.Uniform(layout)
    agent.names = of.Names(["new", "well", "ill"], ["wait", "treat"])
    rows = list(of.policy_table(agent, 0, env))
    assert {row.state_name for row in rows} == {"new", "well", "ill"}
    assert {row.action_name for row in rows} == {"wait", "treat"}
    env.action_names = ["rest", "drug"]  # The environment's names have priority.
    rows = list(of.policy_table(agent, 0, env))
    assert {row.state_name for row in rows} == {"new", "well", "ill"}
    assert {row.action_name for row in rows} == {"rest", "drug"}
    given = list(of.policy_table(agent, 0, env, names=of.Names(actions=["a", "b"])))
    assert {row.action_name for row in given} == {"a", "b"}
