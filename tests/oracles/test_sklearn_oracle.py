"""scikit-learn estimators as oracles: the same numbers as the estimator itself, the support, refused estimators, the worked example."""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import pytest
from oracle_worlds import draw_log, random_blocks

import opo_fast as of
from opo_fast.oracles import ScheduledOracle, SklearnDynamicsClass, SklearnLossClass, TrajectoryLog, pair_features, scheduled

sklearn = pytest.importorskip("sklearn")
from sklearn.dummy import DummyClassifier, DummyRegressor  # noqa: E402
from sklearn.ensemble import RandomForestRegressor  # noqa: E402
from sklearn.linear_model import LinearRegression, LogisticRegression  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402

LAYOUT = of.Layout([1, 3, 3], 2)


def log_of(seed=0, n=60, concentration=1.0):
    rng = np.random.default_rng(seed)
    return draw_log(
        rng,
        LAYOUT,
        [np.array([0.2, 0.7]), np.array([0.9, 0.1])],
        rng.random((2, *LAYOUT.shape)),
        random_blocks(rng, LAYOUT, 2, concentration),
        n,
    )


def rows(log):
    features = pair_features(LAYOUT)
    return np.stack([features(t.context)[t.states[:-1], t.actions] for t in log])


def test_features_of_pairs():
    table = pair_features(LAYOUT)(np.array([0.2, 0.7]))
    assert table.shape == (7, 2, 2 + 7 + 2)
    assert table[4, 1].tolist() == [0.2, 0.7, 0, 0, 0, 0, 1, 0, 0, 0, 1]
    assert pair_features(LAYOUT)(3)[0, 0].tolist() == [3, 1, 0, 0, 0, 0, 0, 0, 1, 0]
    with pytest.raises(of.OpoError, match="context 'x' does not consist of numbers"):
        pair_features(LAYOUT)("x")


def test_losses_are_the_regressors_predictions_in_the_unit_interval():
    log = log_of()
    oracle = SklearnLossClass(LinearRegression(), unseen=0.25).oracle(LAYOUT)
    assert isinstance(oracle, ScheduledOracle)
    assert (oracle.losses(0, log[0].context) == 0.25).all()
    oracle.observe_many(log)
    alone = LinearRegression().fit(rows(log).reshape(-1, 11), log.losses.ravel())
    expected = np.clip(alone.predict(pair_features(LAYOUT)(log[0].context).reshape(-1, 11)), 0, 1)
    np.testing.assert_allclose(oracle.losses(oracle.fit(), log[0].context).ravel(), expected, atol=1e-12)


def test_probabilities_are_restricted_to_the_support_and_mixed():
    log = log_of()
    allowed = [np.ones((1, 2, 3), bool), np.ones((3, 2, 3), bool)]
    seen = np.zeros((3, 2, 3), bool)
    for t in log:
        seen[t.states[1] - 1, t.actions[1], t.states[2] - 4] = True
    allowed[1] = seen | ~seen.any(axis=2, keepdims=True)
    oracle = SklearnDynamicsClass(LogisticRegression(), support=allowed, smoothing=0.1, refit="every").oracle(LAYOUT)
    oracle.observe_many(log)
    alone = LogisticRegression(random_state=0).fit(rows(log)[:, 1], log.states[:, 2] - 4)
    context = log[0].context
    p = alone.predict_proba(pair_features(LAYOUT)(context)[1:4].reshape(-1, 11)).reshape(3, 2, 3) * allowed[1]
    expected = 0.9 * p / p.sum(axis=2, keepdims=True) + 0.1 * allowed[1] / allowed[1].sum(axis=2, keepdims=True)
    found = oracle.transitions(oracle.fit(), context)[1]
    np.testing.assert_allclose(found, expected, atol=1e-12)
    assert (found[~allowed[1]] == 0).all()


def test_a_single_next_state_needs_no_classifier():
    log = log_of(concentration=1.0)
    states = log.states.copy()
    states[:, 1] = 2
    one = TrajectoryLog(LAYOUT, log.contexts, states, log.actions, log.losses)
    oracle = SklearnDynamicsClass(LogisticRegression(), smoothing=0.0).oracle(LAYOUT)
    oracle.observe_many(one)
    first = oracle.transitions(oracle.fit(), log[0].context)[0]
    assert np.array_equal(first, np.broadcast_to([0.0, 1.0, 0.0], (1, 2, 3)))


def test_training_follows_the_schedule_and_waits_for_enough_rows():
    trained = []

    class Counting(DummyRegressor):
        def fit(self, x, y):
            trained.append(len(y))
            return super().fit(x, y)

    oracle = SklearnLossClass(Counting(), first=5).oracle(LAYOUT)
    for t in log_of(n=40):
        oracle.observe(t)
        oracle.fit()
    assert trained == [3 * n for n in (8, 16, 32)]


def test_the_same_seed_the_same_bits_and_past_fits_are_trained_again(tmp_path):
    log = log_of(n=30)
    make = lambda seed=3: SklearnLossClass(RandomForestRegressor(n_estimators=5), refit="every", first=1, seed=seed).oracle(LAYOUT)  # noqa: E731
    one, other = make(), make()
    past = []
    for t in log:
        one.observe(t)
        past.append(one.losses(one.fit(), t.context).copy())
        other.observe(t)
        other.fit()
    assert one.losses(one.fit(), log[0].context).tobytes() == other.losses(other.fit(), log[0].context).tobytes()
    again = make()
    again.restore(one.state())
    for fit, (t, before) in enumerate(zip(log, past, strict=True), start=1):
        assert again.losses(fit, t.context).tobytes() == before.tobytes()
    different = make(4)
    different.observe_many(log)
    assert different.losses(different.fit(), log[0].context).tobytes() != past[-1].tobytes()


def test_what_cannot_be_an_oracle_is_refused():
    for estimator, message in (
        (LogisticRegression, r"estimator is the class LogisticRegression: an instance, LogisticRegression\(\.\.\.\), is needed"),
        (object(), "estimator is a object without fit"),
        (StandardScaler(), "estimator is a StandardScaler without predict"),
        (RandomForestRegressor(random_state=np.random.RandomState(0)), "random_state is RandomState.*which changes with use"),
    ):
        with pytest.raises(of.OpoError, match=message):
            SklearnLossClass(estimator)
    with pytest.raises(of.OpoError, match="LinearRegression without predict_proba"):
        SklearnDynamicsClass(LinearRegression())
    with pytest.raises(of.OpoError, match="refit is a gain, which is known only after training"):
        SklearnLossClass(LinearRegression(), refit=("gain", 1.0))

    class Broken(DummyRegressor):
        def predict(self, x):
            return np.full(len(x), np.nan)

    class Untrainable(DummyClassifier):
        def fit(self, x, y):
            raise RuntimeError("no")

    oracle = SklearnLossClass(Broken()).oracle(LAYOUT)
    oracle.observe_many(log_of())
    with pytest.raises(of.OpoError, match="the estimator Broken predicts losses at context"):
        oracle.losses(oracle.fit(), log_of()[0].context)
    oracle = SklearnDynamicsClass(Untrainable()).oracle(LAYOUT)
    oracle.observe_many(log_of())
    with pytest.raises(of.OpoError, match=r"Untrainable could not be trained on 60 rows \(RuntimeError: no\)"):
        oracle.fit()


def test_pipelines_and_own_features():
    log = log_of()
    features = lambda c: np.stack([np.full(LAYOUT.shape, c[0]), np.arange(14.0).reshape(7, 2)], axis=2)  # noqa: E731
    estimator = make_pipeline(StandardScaler(), RandomForestRegressor(n_estimators=3))
    function_class = SklearnLossClass(estimator, features, seed=11)
    assert function_class.estimator.get_params()["randomforestregressor__random_state"] == 11
    assert estimator.get_params()["randomforestregressor__random_state"] is None
    oracle = function_class.oracle(LAYOUT)
    oracle.observe_many(log)
    assert oracle.losses(oracle.fit(), log[0].context).shape == LAYOUT.shape
    uneven = scheduled(SklearnLossClass(LinearRegression(), lambda c: np.zeros((7, 2, 1 + int(c[0] > 0.5)))), 1).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match=r"features at context .* have shape \(7, 2, [12]\): \(7, 2, [12]\) is needed"):
        uneven.observe_many(log)


def test_the_worked_example_learns_with_both_estimators_and_not_with_the_wrong_class(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "learned_models.py"
    spec = importlib.util.spec_from_file_location("learned_models", path)
    assert spec is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    results = example.main(120, str(tmp_path / "curves.png"), 300)
    assert (tmp_path / "curves.png").stat().st_size > 10_000
    closed = {name: result.gap_closed(slice(60, None)) for name, result in results.items()}
    assert closed["gradient boosting"] > 0.8
    assert closed["neural network"] > 0.7
    assert closed["linear (wrong class)"] < 0.5
    assert len(capsys.readouterr().out.splitlines()) == 3
