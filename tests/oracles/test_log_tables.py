"""Logs from tables and CSV files in the forms that users have, and back."""

from __future__ import annotations

import numpy as np
import pytest

import opo_fast as of
from opo_fast.oracles import TrajectoryLog

LAYOUT = of.Layout([1, 2, 2], 2)
# Two episodes, rows out of order; states numbered inside their layer.
ROWS = {
    "visit": ["b", "a", "a", "b", "a", "b"],
    "day": [1, 1, 3, 2, 2, 3],
    "age": [60, 40, 40, 60, 40, 60],
    "sex": ["f", "m", "m", "f", "m", "f"],
    "bed": [0, 0, 1, 1, 0, 0],
    "dose": [1, 0, 1, 0, 1, 1],
    "cost": [0.5, 0.25, 1.0, 0.0, 0.125, 0.75],
    "chance": [0.5, 1.0, 0.25, 0.125, 0.75, 1.0],
}
NAMES = {"episode": "visit", "step": "day", "state": "bed", "action": "dose", "loss": "cost"}
CLINIC = {  # the steps of an episode after the patient is home are not in the table
    "episode": [7, 7, 7, 8, 8, 9],
    "step": [0, 1, 2, 0, 1, 0],
    "state": ["ward", "ward", "icu", "ward", "icu", "ward"],
    "action": ["wait", "treat", "treat", "wait", "treat", "treat"],
    "loss": [0.5, 0.5, 1.0, 0.25, 1.0, 0.125],
}


def changed(rows, **values):
    return {**rows, **values}


def as_frame(rows, kind):
    if kind == "mapping":
        return rows
    if kind == "arrow":
        return pytest.importorskip("pyarrow").table(rows)
    frame = pytest.importorskip("pandas").DataFrame(rows)
    return frame if kind == "pandas" else Interchange(frame)


class Interchange:
    """A data frame that only offers the interchange protocol."""

    def __init__(self, frame):
        self._frame = frame

    def __dataframe__(self, **options):
        return self._frame.__dataframe__(**options)


@pytest.mark.parametrize("kind", ["mapping", "pandas", "arrow", "protocol"])
def test_columns_are_named_and_rows_are_sorted(kind):
    log = TrajectoryLog.from_pandas(as_frame(ROWS, kind), LAYOUT, **NAMES, context=["age", "sex"], propensity="chance", states="local")
    assert log.episodes == ["a", "b"]
    assert log.contexts == [(40, "m"), (60, "f")]
    assert log.states.tolist() == [[0, 1, 4, 5], [0, 2, 3, 5]]
    assert log.actions.tolist() == [[0, 1, 1], [1, 0, 1]]
    assert log.losses.tolist() == [[0.25, 0.125, 1.0], [0.5, 0.0, 0.75]]
    assert log.propensities.tolist() == [[1.0, 0.75, 0.25], [0.5, 0.125, 1.0]]


def test_several_context_columns_of_numbers_are_an_array():
    rows = changed(ROWS, weight=[80.5, 70.0, 70.0, 80.5, 70.0, 80.5])
    log = TrajectoryLog.from_pandas(rows, LAYOUT, **NAMES, context=["age", "weight"], states="local")
    assert log.contexts.tolist() == [[40.0, 70.0], [60.0, 80.5]]
    assert TrajectoryLog.from_pandas(rows, LAYOUT, **NAMES, context="age", states="local").contexts == [40, 60]
    assert TrajectoryLog.from_pandas(rows, LAYOUT, **NAMES, context=None, states="local").contexts == [0, 0]


def test_rewards_become_losses():
    rows = changed(ROWS, gain=[2.0, -2.0, 0.0, 1.0, -1.0, 2.0])
    names = {**NAMES, "reward": "gain", "states": "local", "context": "age"}
    log = TrajectoryLog.from_pandas(rows, LAYOUT, reward_range=(-2, 2), **names)
    assert log.losses.tolist() == [[1.0, 0.75, 0.5], [0.0, 0.25, 0.0]]
    with pytest.raises(of.OpoError, match="reward_range is missing"):
        TrajectoryLog.from_pandas(rows, LAYOUT, **names)
    with pytest.raises(of.OpoError, match=r"column 'gain', episode 'b', step 1: 2\.0: a reward from -2 to 1 is needed"):
        TrajectoryLog.from_pandas(rows, LAYOUT, reward_range=(-2, 1), **names)


def test_labels_of_states_and_actions():
    names = {**NAMES, "context": "age"}
    rows = changed(ROWS, bed=["home", "home", "icu", "icu", "ward", "ward"], dose=["low", "low", "high", "high", "low", "low"])
    beds = [["home"], ["ward", "icu"], ["icu", "ward"]]
    log = TrajectoryLog.from_pandas(rows, LAYOUT, **names, states=beds, actions=["low", "high"])
    assert log.states.tolist() == [[0, 1, 3, 5], [0, 2, 4, 5]]
    assert log.actions.tolist() == [[0, 0, 1], [0, 1, 0]]
    assert log.state_labels == (("home",), ("ward", "icu"), ("icu", "ward"))
    with pytest.raises(of.OpoError, match="column 'bed', episode 'a', step 3: state 'icu' is not in its layer, which has 'ward', 'cellar'"):
        TrajectoryLog.from_pandas(rows, LAYOUT, **names, states=[["home"], ["ward", "icu"], ["ward", "cellar"]], actions=["low", "high"])
    with pytest.raises(of.OpoError, match="column 'dose', episode 'a', step 3: action 'high': one of 'low', 'none' is needed"):
        TrajectoryLog.from_pandas(rows, LAYOUT, **names, states=beds, actions=["low", "none"])


def test_without_a_layout_the_table_says_what_the_layers_are():
    rows = changed(ROWS, bed=["home", "home", "icu", "icu", "ward", "ward"])
    log = TrajectoryLog.from_pandas(rows, **NAMES, context="age")
    assert log.layout == of.Layout([1, 2, 2], 2)
    assert log.state_labels == (("home",), ("icu", "ward"), ("icu", "ward"))
    assert log.action_labels == (0, 1)
    assert log.states.tolist() == [[0, 2, 3, 5], [0, 1, 4, 5]]
    assert log.action_mask is None


def test_several_first_states_get_a_state_before_them():
    rows = changed(ROWS, bed=["icu", "home", "icu", "icu", "ward", "ward"])
    log = TrajectoryLog.from_pandas(rows, **NAMES, context="age", propensity="chance")
    assert log.layout == of.Layout([1, 2, 2, 2], 2)
    assert log.state_labels[:2] == (("start",), ("home", "icu"))
    assert log.states.tolist() == [[0, 1, 4, 5, 7], [0, 2, 3, 6, 7]]
    assert log.losses[:, 0].tolist() == [0, 0]
    assert log.actions[:, 0].tolist() == [0, 0]
    assert log.propensities[:, 0].tolist() == [1, 1]
    assert log.action_mask.tolist() == [[True, False]] + [[True, True]] * 6
    layout = of.Layout([1, 2, 2, 2], 2)
    again = TrajectoryLog.from_pandas(
        rows, layout, **NAMES, context="age", states=[["home", "icu"], ["icu", "ward"], ["icu", "ward"]], start_layer=True
    )
    assert again.states.tolist() == log.states.tolist()


def test_an_episode_that_ends_early_stays_in_the_absorbing_state():
    log = TrajectoryLog.from_pandas(CLINIC, context=None, absorbing="home")
    assert log.state_labels == (("ward",), ("home", "icu", "ward"), ("home", "icu"))
    assert log.action_labels == ("treat", "wait")
    assert log.states.tolist() == [[0, 3, 5, 6], [0, 2, 4, 6], [0, 1, 4, 6]]
    assert log.actions.tolist() == [[1, 0, 0], [1, 0, 0], [0, 0, 0]]
    assert log.losses.tolist() == [[0.5, 0.5, 1.0], [0.25, 1.0, 0.0], [0.125, 0.0, 0.0]]
    # An absorbing state has one action.
    assert np.flatnonzero(~log.action_mask.all(axis=1)).tolist() == [1, 4]
    assert log.action_mask[[1, 4]].tolist() == [[True, False]] * 2
    with pytest.raises(of.OpoError, match="episode 8 ends after 2 of 3 steps: name the state in which it stays by absorbing="):
        TrajectoryLog.from_pandas(CLINIC, context=None)


def test_the_next_state_says_where_an_episode_ends():
    rows = changed(CLINIC, next=["ward", "icu", None, "icu", "dead", "home"])
    ends = {"home": 0.0, "dead": 1.0}
    log = TrajectoryLog.from_pandas(rows, context=None, next_state="next", absorbing=ends)
    assert log.state_labels == (("ward",), ("home", "icu", "ward"), ("dead", "home", "icu"))
    assert log.states[:, 2].tolist() == [6, 4, 5]
    assert log.losses.tolist() == [[0.5, 0.5, 1.0], [0.25, 1.0, 1.0], [0.125, 0.0, 0.0]]
    for change, message in (
        (["ward", "icu", None, "icu", "lost", "home"], "episode 8 ends after 2 of 3 steps in next 'lost', which absorbing does not name"),
        (
            ["ward", "ward", None, "icu", "dead", "home"],
            "column 'next', episode 7, step 1: next state 'ward', but the next row's state is 'icu'",
        ),
        (["ward", "icu", None, None, "dead", "home"], "column 'next', episode 8, step 0: the value is missing"),
    ):
        with pytest.raises(of.OpoError, match=message):
            TrajectoryLog.from_pandas(changed(CLINIC, next=change), context=None, next_state="next", absorbing=ends)
    with pytest.raises(
        of.OpoError,
        match="episode 8 ends after 2 of 3 steps: absorbing names several states, so a column next_state, or",
    ):
        TrajectoryLog.from_pandas(CLINIC, context=None, absorbing=ends)


def test_a_last_row_may_be_in_the_absorbing_state_and_needs_no_action():
    rows = {
        name: [*values, *more]
        for (name, values), more in zip(CLINIC.items(), ([8, 9, 9], [2, 1, 2], ["home"] * 3, [None] * 3, [None, 0.0, None]), strict=True)
    }
    log = TrajectoryLog.from_pandas(rows, context=None, absorbing=["home", "dead"])
    assert log.states.tolist() == [[0, 3, 5, 6], [0, 2, 4, 6], [0, 1, 4, 6]]
    assert log.losses[2].tolist() == [0.125, 0, 0]
    with pytest.raises(of.OpoError, match=r"column 'loss', episode 9, step 1: 0\.0 in state 'home': 0\.5, as absorbing says, is needed"):
        TrajectoryLog.from_pandas(rows, context=None, absorbing={"home": 0.5})
    rows["state"][-1] = "ward"
    with pytest.raises(of.OpoError, match="episode 9, step 2: state 'ward' follows the absorbing state 'home'"):
        TrajectoryLog.from_pandas(rows, context=None, absorbing="home")


def test_rewards_of_an_absorbing_state_are_rescaled():
    rows = {**CLINIC, "gain": [0, 0, 10, 5, -10, 0]}
    log = TrajectoryLog.from_pandas(rows, context=None, reward="gain", reward_range=(-10, 10), absorbing={"home": 5})
    assert log.losses.tolist() == [[0.5, 0.5, 0.0], [0.25, 1.0, 0.25], [0.5, 0.25, 0.25]]
    assert TrajectoryLog.from_pandas(rows, context=None, reward="gain", reward_range=(-10, 10), absorbing="home").losses[1, 2] == 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": [0.5, 0.25, 1.0, 0.0, np.nan, 0.75]}, "column 'cost', episode 'a', step 2: the value is missing"),
        ({"dose": [1, 0, None, 0, 1, 1]}, "column 'dose', episode 'a', step 3: the value is missing"),
        ({"bed": [0, 0, 1, None, 0, 0]}, "column 'bed', episode 'b', step 2: the value is missing"),
        ({"age": [60, 40, None, 60, 40, 60]}, "column 'age', episode 'a', step 3: the value is missing"),
        ({"chance": [0.5, 1.0, 0.25, 0.0, 0.75, 1.0]}, r"column 'chance', episode 'b', step 2: 0\.0: a number in \(0, 1\]"),
        ({"visit": ["b", "a", None, "b", "a", "b"]}, "column 'visit': row 2 has no value"),
        ({"day": [1, 1, None, 2, 2, 3]}, "column 'day': episode 'a' has a row without a step"),
        ({"day": [1, 1, 4, 2, 2, 3]}, "episode 'a': step 3 is missing, step 4 follows"),
        ({"day": [2, 1, 3, 3, 2, 4]}, "episode 'b': step 1 is missing: its first step is 2"),
        ({"day": [1.5, 1, 3, 2, 2, 3]}, "column 'day' does not hold whole numbers"),
        ({"bed": [0, 0, 2, 1, 0, 0]}, "column 'bed', episode 'a', step 3: state 2 is not in its layer, which has 0, 1"),
        ({"dose": [1, 0, 2, 0, 1, 1]}, "column 'dose', episode 'a', step 3: action 2: 0 to 1 is needed"),
        ({"dose": [1, 0, 0.5, 0, 1, 1]}, r"column 'dose', episode 'a', step 3: 0\.5 is not a whole number"),
        ({"dose": ["x", 0, 1, 0, 1, 1]}, "column 'dose' holds 'x': whole numbers, or labels for them, are needed"),
        ({"age": [60, 40, 41, 60, 40, 60]}, "column 'age', episode 'a', step 3: 41 after 40: an episode has one context"),
        ({"cost": [0.5, 0.25, 1.5, 0.0, 0.5, 0.75]}, r"column 'cost', episode 'a', step 3: 1\.5: a loss in \[0, 1\] is needed"),
        ({"cost": ["0.5", "x", "1", "0", "0", "0"]}, "column 'cost' holds 'x': numbers are needed"),
    ],
)
def test_what_is_wrong_is_named_by_column_episode_and_step(change, message):
    def objects(values):
        column = np.empty(len(values), object)
        column[:] = values
        return column if None in values or {type(value) for value in values} & {str} else np.array(values)

    rows = {name: objects(values) for name, values in changed(ROWS, **change).items()}
    with pytest.raises(of.OpoError, match=message):
        TrajectoryLog.from_pandas(rows, LAYOUT, **NAMES, context="age", propensity="chance", states="local")


def test_what_pandas_has_for_missing_values_is_missing():
    pd = pytest.importorskip("pandas")
    for values in (
        pd.array([1, 0, None, 0, 1, 1], "Int64"),
        pd.Series([1, 0, pd.NA, 0, 1, 1], dtype=object),
        pd.Categorical([1, 0, None, 0, 1, 1]),
    ):
        with pytest.raises(of.OpoError, match="column 'dose', episode 'a', step 3: the value is missing"):
            TrajectoryLog.from_pandas(pd.DataFrame({**ROWS, "dose": values}), LAYOUT, **NAMES, context="age", states="local")


def test_tables_that_are_none_are_named():
    with pytest.raises(of.OpoError, match="table is a list: a data frame"):
        TrajectoryLog.from_pandas([1, 2], LAYOUT)
    with pytest.raises(of.OpoError, match="the table has no column 'episode': its columns are visit, day"):
        TrajectoryLog.from_pandas(ROWS, LAYOUT)
    with pytest.raises(of.OpoError, match=r"has no column 'context': its columns are .* pass context=None if there is none"):
        TrajectoryLog.from_pandas(CLINIC)
    with pytest.raises(of.OpoError, match="the log is empty"):
        TrajectoryLog.from_pandas({name: [] for name in CLINIC}, context=None)
    with pytest.raises(of.OpoError, match="action_mask is given without a layout"):
        TrajectoryLog.from_pandas(CLINIC, context=None, action_mask=[[True]])
    with pytest.raises(of.OpoError, match=r"episode 7 has 3 steps: at most 2, those of Layout\(\[1, 2\], n_actions=2\), are needed"):
        TrajectoryLog.from_pandas(CLINIC, of.Layout([1, 2], 2), context=None, states=["ward", "icu"])
    with pytest.raises(of.OpoError, match="pass states='local' or labels"):
        TrajectoryLog.from_pandas(CLINIC, LAYOUT, context=None, absorbing=2)


CONTEXTS = [[3, 1, 3], ["a", "ä,b", 'c"'], [0.1, 1 / 3, -1e-300], np.array([[0.1, 2.0], [1 / 3, 0.0], [1.0, 1e-9]])]


@pytest.mark.parametrize("contexts", CONTEXTS)
@pytest.mark.parametrize("way", ["csv", "pandas", "parquet", "npz"])
def test_a_log_comes_back_as_it_was(tmp_path, way, contexts):
    rng = np.random.default_rng(0)
    log = TrajectoryLog(
        LAYOUT,
        contexts,
        [[0, 1, 3], [0, 1, 4], [0, 2, 3]],
        rng.integers(2, size=(3, 3)),
        rng.random((3, 3)),
        propensities=1 - rng.random((3, 3)),
        episodes=["x", "y", "z"],
        state_labels=[["home"], ["ward", "icu"], ["ward", "icu"]],
        action_labels=["low", "high"],
    )
    context = ["context_0", "context_1"] if isinstance(contexts, np.ndarray) else "context"
    options = {"context": context, "propensity": "propensity", "states": log.state_labels, "actions": log.action_labels}
    if way == "csv":
        log.to_csv(tmp_path / "log.csv")
        again = TrajectoryLog.from_csv(tmp_path / "log.csv", LAYOUT, **options)
    elif way == "pandas":
        pytest.importorskip("pandas")
        again = TrajectoryLog.from_pandas(log.to_pandas(), LAYOUT, **options)
    else:
        log.save(tmp_path / f"log.{way}")
        again = TrajectoryLog.load(tmp_path / f"log.{way}")
    assert [np.array_equal(a, b) and type(a) is type(b) for a, b in zip(again.contexts, log.contexts, strict=True)] == [True] * 3
    for name in ("states", "actions", "losses", "propensities"):
        assert getattr(again, name).tobytes() == getattr(log, name).tobytes()
    assert again.episodes == log.episodes
    if way != "parquet":
        assert (again.state_labels, again.action_labels) == (log.state_labels, log.action_labels)


def test_csv_cells(tmp_path):
    path = tmp_path / "log.csv"
    path.write_bytes("\ufeffepisode,step,state,action,loss\r\nv1,0,0,1,0.5\r\n\r\nv1,1,2,0,1\r\nv1,2,3,0,NA\r\n".encode())
    with pytest.raises(of.OpoError, match="column 'loss', episode 'v1', step 2: the value is missing"):
        TrajectoryLog.from_csv(path, LAYOUT, context=None)
    path.write_text("episode;step;state;action;loss\nv1;0;0;1;0.5\nv1;1;2;0;1\nv1;2;3;0;0\n")
    assert TrajectoryLog.from_csv(path, LAYOUT, delimiter=";", context=None).states.tolist() == [[0, 2, 3, 5]]
    path.write_text("episode,step\nv1,0,1\n")
    with pytest.raises(of.OpoError, match="row 0 has 3 cells, but the header has 2"):
        TrajectoryLog.from_csv(path, LAYOUT)
    path.write_text("episode,episode\n1,1\n")
    with pytest.raises(of.OpoError, match="two columns 'episode'"):
        TrajectoryLog.from_csv(path, LAYOUT)
    path.write_text("")
    with pytest.raises(of.OpoError, match="it has no header"):
        TrajectoryLog.from_csv(path, LAYOUT)
    with pytest.raises(of.OpoError, match="there is no file"):
        TrajectoryLog.from_csv(tmp_path / "absent.csv", LAYOUT)


def test_parquet_of_any_columns(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(CLINIC), tmp_path / "log.parquet")
    log = TrajectoryLog.from_parquet(tmp_path / "log.parquet", context=None, absorbing="home")
    assert log.states.tolist() == [[0, 3, 5, 6], [0, 2, 4, 6], [0, 1, 4, 6]]


def test_episodes_are_named_in_errors_and_taken_by_position():
    log = TrajectoryLog.from_pandas(ROWS, LAYOUT, **NAMES, context="age", states="local", propensity="chance")
    with pytest.raises(of.OpoError, match="episode 'b', step 0: action 1 is masked in state 0"):
        TrajectoryLog.of(LAYOUT, log, [[True, False]] + [[True, True]] * 4)
    twice = log.take([1, 1, 0])
    assert (twice.contexts, twice.episodes) == ([60, 60, 40], ["b", "b", "a"])
    assert twice.propensities.tolist() == [[0.5, 0.125, 1.0], [0.5, 0.125, 1.0], [1.0, 0.75, 0.25]]
    assert log.visits.tolist() == [[1, 1], [0, 1], [1, 0], [0, 1], [0, 1]]
    assert log.logged.tolist() == [[True, True], [False, True], [True, False], [False, True], [False, True]]


def test_collecting_keeps_the_propensities():
    mdp = of.LayeredMDP(LAYOUT, np.full((5, 2), 0.5), [np.full((n, 2, 2), 0.5) for n in (1, 2)])
    log = TrajectoryLog.collect(of.FiniteContexts([mdp]), 30, policy=lambda context: np.tile([0.25, 0.75], (5, 1)))
    assert np.array_equal(log.propensities, np.where(log.actions == 0, 0.25, 0.75))


def test_the_log_of_a_run_is_exported_and_read_back_in(tmp_path):
    rng = np.random.default_rng(3)
    mdps = [of.LayeredMDP(LAYOUT, rng.random((5, 2)), [rng.dirichlet([1, 1], size=(n, 2)) for n in (1, 2)]) for _ in range(2)]
    F, P = of.FiniteLossClass([lambda c: mdps[c].losses]), of.FiniteDynamicsClass([lambda c: mdps[c].transitions.arrays()])

    def agent():
        return of.OPO(LAYOUT, F, P, episodes=40, bonus_scale=1e-4, eta_scale=10)

    played = agent()
    result = of.simulate(of.FiniteContexts(mdps), played, 40, seed=2, log=True)
    assert of.simulate(of.FiniteContexts(mdps), agent(), 40, seed=2).log is None
    assert np.array_equal(result.log.losses.sum(axis=1), result.observed_loss)
    result.log.to_csv(tmp_path / "run.csv")
    again = TrajectoryLog.from_csv(tmp_path / "run.csv", LAYOUT, propensity="propensity")
    for name in ("states", "actions", "losses", "propensities"):
        assert getattr(again, name).tobytes() == getattr(result.log, name).tobytes()
    # An agent that observes the log is in the same state as the run's agent, and the propensities are those of its policies.
    observer = agent()
    for trajectory, chances in zip(again, again.propensities, strict=True):
        policy = observer.policy(trajectory.context)
        assert np.array_equal(policy[trajectory.states[:-1], trajectory.actions], chances)
        observer.observe(trajectory)
    assert np.array_equal(observer.policy(0), played.policy(0))


def test_an_episode_that_leaves_an_absorbing_state_is_refused_whatever_the_others_do(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("episode,step,state,action,loss,context\n0,0,s,a,.5,c\n0,1,home,n,0,c\n0,2,s,a,0,c\n")
    with pytest.raises(of.OpoError, match="episode 0, step 2: state 's' follows the absorbing state 'home'"):
        TrajectoryLog.from_csv(path, absorbing="home")
