"""Refit schedules, warm starts from a log, and held-out errors in the result."""

from __future__ import annotations

import numpy as np
import pytest
from oracle_worlds import random_blocks

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.oracles import LinearLossClass, Refit, TabularDynamicsClass, TabularLossClass, TrajectoryLog, scheduled

LAYOUT = of.Layout([1, 3, 3], 2)


def environment(seed=0, n=2):
    rng = np.random.default_rng(seed)
    return of.FiniteContexts([of.LayeredMDP(LAYOUT, rng.random(LAYOUT.shape), random_blocks(rng, LAYOUT)) for _ in range(n)])


def agent(refit="every", **options):
    loss, dynamics = TabularLossClass(per_context=True), TabularDynamicsClass(per_context=True, smoothing=0.5)
    return of.OPO(LAYOUT, scheduled(loss, refit), scheduled(dynamics, refit), episodes=200, bonus_scale=1e-6, eta_scale=50, **options)


# -- schedules -----------------------------------------------------------------------------------------------------------


def test_when_a_refit_is_due():
    doubling = Refit.parse("doubling")
    fitted, at = 0, []
    for n in range(1, 100):
        if doubling.due(n, fitted):
            fitted = n
            at.append(n)
    assert at == [1, 2, 4, 8, 16, 32, 64]
    assert [n for n in range(1, 10) if Refit.parse(3).due(n, 0)] == list(range(3, 10))
    assert Refit.parse("every").due(5, 4)
    assert not Refit.parse(("gain", 1.0)).due(5, 5)
    assert Refit.parse(Refit("doubling")) == doubling
    assert [str(Refit.parse(x)) for x in ("every", "doubling", 7, ("gain", 2.5))] == [
        "every",
        "doubling",
        "every 7 episodes",
        "gain above 2.5",
    ]
    for bad in ("sometimes", 0, -1, 1.5, ("gain",), None, ("loss", 1)):
        with pytest.raises(of.OpoError, match=r"refit is .*: 'every', 'doubling', a number of episodes"):
            Refit.parse(bad)
    with pytest.raises(of.OpoError, match="threshold, is -1"):
        Refit.parse(("gain", -1))


@pytest.mark.parametrize(("refit", "episodes"), [("doubling", [1, 2, 4, 8, 16, 32]), (10, [10, 20, 30, 40])])
def test_the_result_records_the_schedule(refit, episodes):
    result = of.simulate(environment(), agent(refit), 45, seed=1)
    changes = np.flatnonzero(np.diff(np.concatenate([[0], result.dynamics_fit]))) + 1
    assert changes.tolist() == episodes
    assert set(np.flatnonzero(np.diff(result.loss_fit)) + 2) <= set(episodes)


def test_a_scheduled_fit_is_the_fit_on_the_data_of_its_time():
    log = TrajectoryLog.collect(environment(), 40)
    held, plain = scheduled(TabularLossClass(), 16).oracle(LAYOUT, None), TabularLossClass().oracle(LAYOUT, None)
    for n, t in enumerate(log, start=1):
        held.observe(t)
        plain.observe(t)
        if n % 16 == 0:
            newest = plain.losses(plain.fit(), 0)
        assert held.losses(held.fit(), 0).tobytes() == (newest if n >= 16 else np.zeros(LAYOUT.shape)).tobytes()


def test_a_refit_by_gain_waits_until_the_gain_exceeds_the_threshold():
    """In a model with one pair the gain is n (m - f)^2 for the mean m of n losses."""
    layout = of.Layout([1], 1)
    oracle = scheduled(TabularLossClass(), ("gain", 0.5)).oracle(layout, None)
    losses, fits, value = [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], [], None
    for n, loss in enumerate(losses, start=1):
        oracle.observe(of.Trajectory(0, np.array([0, 1]), np.array([0]), np.array([loss])))
        mean = np.mean(losses[:n])
        if value is None or n * (mean - value) ** 2 > 0.5:
            value = mean
        fits.append(float(oracle.losses(oracle.fit(), 0)[0, 0]))
        assert fits[-1] == pytest.approx(value, abs=1e-12)
    assert len(set(fits)) == 2

    class NoGain:
        def fit(self):
            return 0

    with pytest.raises(of.OpoError, match=r"cannot compute: it has no gain"):
        scheduled(NoGain(), ("gain", 1.0))


@pytest.mark.parametrize("refit", ["doubling", 7, ("gain", 0.3)])
def test_a_scheduled_oracle_goes_on_from_a_file(refit, tmp_path):
    log = TrajectoryLog.collect(environment(), 60)
    first = scheduled(TabularLossClass(), refit).oracle(LAYOUT, None)
    second = scheduled(TabularLossClass(), refit).oracle(LAYOUT, None)
    for n, t in enumerate(log):
        if n == 25:
            write_state(tmp_path / "s.npz", first.state())
            second.restore(read_state(tmp_path / "s.npz"))
        first.observe(t)
        if n >= 25:
            second.observe(t)
            assert first.fit() == second.fit()
            assert first.losses(first.fit(), 0).tobytes() == second.losses(second.fit(), 0).tobytes()
        first.fit()
    with pytest.raises(of.OpoError, match="belongs to an oracle that refits"):
        scheduled(TabularLossClass(), 3).oracle(LAYOUT, None).restore(first.state())
    plain = TabularLossClass()
    assert scheduled(plain, "every") is plain
    for refit in ("every", 3):
        with pytest.raises(of.OpoError, match="source is a NoneType without fit: a function class"):
            scheduled(None, refit)


# -- warm start ----------------------------------------------------------------------------------------------------------


def test_the_first_models_are_the_fits_on_the_log():
    cmdp = environment()
    log = TrajectoryLog.collect(cmdp, 300, seed=9)
    warm = agent()
    warm.policy(0)
    warm.warm_start(log)
    assert warm.episode == 0
    by_hand = [
        TabularLossClass(per_context=True).oracle(LAYOUT, None),
        TabularDynamicsClass(per_context=True, smoothing=0.5).oracle(LAYOUT, None),
    ]
    for oracle in by_hand:
        oracle.observe_many(list(log))
    models = []
    for t in TrajectoryLog.collect(cmdp, 3, seed=1):
        models.append(of.LayeredMDP(LAYOUT, by_hand[0].losses(by_hand[0].fit(), 0), by_hand[1].transitions(by_hand[1].fit(), 0)))
        expected = (
            of.policy_chain(models[:-1], eta=warm.eta, beta_loss=warm.beta_loss, beta_dynamics=warm.beta_dynamics)
            if len(models) > 1
            else None
        )
        np.testing.assert_allclose(warm.policy(0), np.full(LAYOUT.shape, 0.5) if expected is None else expected, atol=1e-12)
        warm.observe(t)
        for oracle in by_hand:
            oracle.observe(t)
    with pytest.raises(of.OpoError, match="was called after 3 episodes: call it before the first one"):
        warm.warm_start(log)


def test_reading_a_log_shows_a_bar_and_stops_whole(capsys, monkeypatch):
    log = TrajectoryLog.collect(environment(), 30)
    assert [len(part) for part in log.parts("x", size=12)] == [12, 12, 6]
    one, other = agent(), agent()
    one.warm_start(log, progress=True)
    assert "TabularLossOracle reads the log" in capsys.readouterr().err.replace("ScheduledOracle", "TabularLossOracle")
    other.warm_start(log, progress=False)
    assert capsys.readouterr().err == ""
    assert one.loss_oracle.state()["0.sums"].tobytes() == other.loss_oracle.state()["0.sums"].tobytes()

    stopped = agent()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(stopped.dynamics_oracle, "observe_many", interrupt)
    with pytest.raises(KeyboardInterrupt):
        stopped.warm_start(log)
    assert stopped.loss_oracle.episodes == 0
    assert stopped.loss_oracle.fit() == 0


def test_a_log_helps():
    cmdp = environment(3)
    cold, warm = agent(), agent()
    warm.warm_start(TrajectoryLog.collect(cmdp, 2000, seed=9))
    regrets = [of.simulate(cmdp, one, 100, seed=2).cumulative_regret[-1] for one in (cold, warm)]
    assert regrets[1] < 0.5 * regrets[0]


@pytest.mark.parametrize("bad", ["empty", "loss", "support", "custom"])
def test_a_log_that_is_refused_is_not_half_added(bad):
    cmdp = environment()
    log = list(TrajectoryLog.collect(cmdp, 20))
    allowed = [np.ones((1, 2, 3), bool), np.ones((3, 2, 3), bool)]
    if bad == "support":
        last = log[-1]
        position, following = last.states[1] - 1, last.states[2] - 4
        allowed[1][position, last.actions[1], following] = False
    one = of.OPO(LAYOUT, TabularLossClass(), TabularDynamicsClass(allowed), episodes=5)
    before = one.policy(0)
    if bad == "loss":
        log[-1] = of.Trajectory(0, log[-1].states, log[-1].actions, np.full(3, np.nan))
    if bad == "custom":

        class Refusing:
            """Refuses in `observe` alone."""

            def __init__(self):
                self.count = 0

            def observe(self, trajectory):
                if self.count == 5:
                    raise of.OpoError("enough")
                self.count += 1

            def fit(self):
                return 0

            def transitions(self, fit, context):
                return cmdp.mdp(0).transitions

        one = of.OPO(LAYOUT, TabularLossClass(), Refusing(), episodes=5)
    with pytest.raises(
        of.OpoError, match={"empty": "the log is empty", "loss": "trajectory 19", "support": "outside the support", "custom": "enough"}[bad]
    ):
        one.warm_start([] if bad == "empty" else log)
    assert one.episode == 0
    assert one.loss_oracle.episodes == 0
    assert one.loss_oracle.fit() == 0
    assert np.array_equal(one.policy(0), before)


# -- held-out errors -----------------------------------------------------------------------------------------------------


def test_held_out_errors_are_those_of_the_fits_before_the_episode():
    cmdp = environment(1)
    one = agent("doubling")
    mirror = [
        TabularLossClass(per_context=True).oracle(LAYOUT, None),
        TabularDynamicsClass(per_context=True, smoothing=0.5).oracle(LAYOUT, None),
    ]
    seen = []

    class Spy:
        layout = LAYOUT

        def __getattr__(self, name):
            return getattr(one, name)

        def observe(self, trajectory):
            seen.append(trajectory)
            one.observe(trajectory)

    result = of.simulate(cmdp, Spy(), 40, seed=4)
    fits = (0, 0)
    for t, trajectory in enumerate(seen):
        s, a = trajectory.states, trajectory.actions
        f = mirror[0].losses(fits[0], trajectory.context)
        blocks = mirror[1].transitions(fits[1], trajectory.context)
        truth = cmdp.mdp(trajectory.context)
        local = s - LAYOUT.offsets
        assert result.held_out_squared_error[t] == pytest.approx(
            sum((f[s[h], a[h]] - trajectory.losses[h]) ** 2 for h in range(3)), abs=1e-12
        )
        assert result.held_out_log_loss[t] == pytest.approx(
            -sum(np.log(blocks[h][local[h], a[h], local[h + 1]]) for h in range(2)), abs=1e-12
        )
        assert result.true_squared_error[t] == pytest.approx(
            sum((truth.losses[s[h], a[h]] - trajectory.losses[h]) ** 2 for h in range(3)), abs=1e-12
        )
        assert result.true_log_loss[t] == pytest.approx(
            -sum(np.log(truth.transitions.probability(h, local[h], a[h], local[h + 1])) for h in range(2)), abs=1e-12
        )
        for oracle in mirror:
            oracle.observe(trajectory)
        if (t + 1) & t == 0:
            fits = mirror[0].fit(), mirror[1].fit()


def test_agents_without_oracles_have_no_held_out_errors(tmp_path):
    class Uniform:
        layout = LAYOUT

        def policy(self, context):
            return np.full(LAYOUT.shape, 0.5)

        def observe(self, trajectory):
            pass

    result = of.simulate(environment(), Uniform(), 3)
    assert np.isnan(result.held_out_log_loss).all()
    result = of.simulate(environment(), agent(), 5)
    result.save(tmp_path / "result.npz")
    again = of.SimulationResult.load(tmp_path / "result.npz")
    assert again.held_out_squared_error.tobytes() == result.held_out_squared_error.tobytes()
    assert again.true_log_loss.tobytes() == result.true_log_loss.tobytes()


# -- a wrong class shows -------------------------------------------------------------------------------------------------


class LinearWorld:
    """Losses linear in (1, x, 1 - x), x being the context; with x hidden the class cannot tell which action is good."""

    layout = of.Layout([1, 2], 2)

    def __init__(self):
        rng = np.random.default_rng(0)
        self.blocks = random_blocks(rng, self.layout)
        self.base = np.zeros((*self.layout.shape, 2))
        self.base[:, 0] = [0.9, 0.1]
        self.base[:, 1] = [0.1, 0.9]

    def sample_context(self, rng):
        return float(rng.integers(2))

    def mdp(self, context):
        return of.LayeredMDP(self.layout, self.base @ [context, 1 - context], self.blocks)

    def right(self, context):
        return np.concatenate([self.base * context, self.base * (1 - context)], axis=2)

    def wrong(self, context):
        return np.broadcast_to(np.eye(6).reshape(3, 2, 6), (3, 2, 6))


def test_a_wrong_class_has_linear_regret_and_an_excess_that_stays():
    world, n = LinearWorld(), 1500
    runs = {}
    for name, features, d in (("right", world.right, 4), ("wrong", world.wrong, 6)):
        dynamics = of.FiniteDynamicsClass([lambda c: world.blocks])
        loss = scheduled(LinearLossClass(features, d, ridge=1e-3), "doubling")
        one = of.OPO(world.layout, loss, dynamics, episodes=n, bonus_scale=1e-6, eta_scale=50)
        runs[name] = of.simulate(world, one, n, seed=1)
    half = n // 2
    for name, low, high in (("right", -0.01, 0.05), ("wrong", 0.9, 1.1)):
        regret = runs[name].cumulative_regret
        # Regret of the second half divided by that of the first: 1 for linear regret.
        assert low <= (regret[-1] - regret[half]) / regret[half] <= high, name
    excess = {name: (run.held_out_squared_error - run.true_squared_error)[half:].mean() for name, run in runs.items()}
    assert excess["right"] == pytest.approx(0.0, abs=0.01)
    # The best constant is 1/2 where the truth is 0.1 or 0.9: (0.4)^2 for each of the two steps.
    assert excess["wrong"] == pytest.approx(2 * 0.4**2, rel=0.1)
    assert (np.abs(runs["wrong"].held_out_log_loss - runs["wrong"].true_log_loss) < 1e-12).all()
