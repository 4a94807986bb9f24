"""Plausible sets of finite classes: coverage, nestedness, empty sets, least losses, schedules, saving."""

from __future__ import annotations

import math

import numpy as np
import pytest
from oracle_worlds import draw_log, random_blocks

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.oracles import TrajectoryLog, check_oracle, scheduled

LAYOUT = of.Layout([1, 2, 2], 2)
CONTEXTS, DELTA, N = [0, 1], 0.1, 5


class World:
    """N candidates for each; number 0 is the truth."""

    def __init__(self, seed, spread=0.3, truth_inside=True):
        self.rng = rng = np.random.default_rng(seed)
        self.tables = np.clip(0.5 + spread * rng.uniform(-1, 1, (N, 2, *LAYOUT.shape)), 0, 1)
        self.blocks = [random_blocks(rng, LAYOUT, 2, concentration=2.0) for _ in range(N)]
        first = 0 if truth_inside else 1
        self.F = of.FiniteLossClass([lambda c, k=k: self.tables[k, c] for k in range(first, N)])
        self.P = of.FiniteDynamicsClass([lambda c, k=k: [block[c] for block in self.blocks[k]] for k in range(first, N)])

    def log(self, n):
        return draw_log(self.rng, LAYOUT, CONTEXTS, self.tables[0], self.blocks[0], n)

    def squared_errors(self, log):
        """Sums of squared errors after each episode, (n, N), by hand."""
        c = np.array(log.contexts)[:, None]
        predicted = self.tables[:, c, log.states[:, :-1], log.actions]
        return np.square(predicted - log.losses).sum(axis=2).cumsum(axis=1).T

    def log_likelihoods(self, log):
        c, total = np.array(log.contexts), 0.0
        for h in range(LAYOUT.horizon - 1):
            local, following = log.states[:, h] - LAYOUT.offsets[h], log.states[:, h + 1] - LAYOUT.offsets[h + 1]
            p = np.array([self.blocks[k][h][c, local, log.actions[:, h], following] for k in range(N)])
            total = total + np.log(p)
        return total.cumsum(axis=1).T


def keeping(function_class, delta=DELTA):
    oracle = function_class.oracle(LAYOUT, None)
    oracle.keep_plausible(delta)
    return oracle


def nested_by_hand(costs, radius):
    """The recursion of the definition, literally: the set after each episode."""
    alive, sets = set(range(costs.shape[1])), []
    for row in costs:
        passing = {i for i in range(row.size) if row[i] <= row.min() + radius}
        alive = alive & passing or {int(row.argmin())}
        sets.append(tuple(sorted(alive)))
    return sets


def members(oracle, version):
    if hasattr(oracle, "candidates"):
        return oracle.candidates(version)
    constants = oracle.lower(version, 0), oracle._set.at(version)
    return tuple(constants[1].tolist())


@pytest.mark.parametrize("seed", range(6))
def test_sets_and_fits_are_those_of_the_recursion(seed):
    world = World(seed, truth_inside=True)
    log = world.log(150)
    for oracle, costs, radius in (
        (keeping(world.F), world.squared_errors(log), 0.5 * math.log(N / DELTA)),
        (keeping(world.P), -world.log_likelihoods(log), math.log(N / DELTA)),
    ):
        assert oracle.plausible() == (0, 0)
        assert oracle.plausible_count(0) == N
        known = {}
        for trajectory, expected, row in zip(log, nested_by_hand(costs, radius), costs, strict=True):
            oracle.observe(trajectory)
            fit, version = oracle.plausible()
            assert members(oracle, version) == expected
            assert fit == min(expected, key=lambda i, row=row: (row[i], i))
            assert oracle.plausible_count(version) == len(expected)
            assert known.setdefault(version, expected) == expected
        assert len(known) > 1
        for version, expected in known.items():
            assert members(oracle, version) == expected


def test_the_truth_leaves_in_no_more_runs_than_delta():
    """400 runs of 60 episodes with close candidates; errors and likelihoods in arrays, with the oracle's own radii."""
    runs, left = 400, np.zeros(2)
    for seed in range(runs):
        world = World(seed, spread=0.15)
        log = world.log(60)
        oracles = keeping(world.F), keeping(world.P)
        costs = world.squared_errors(log), -world.log_likelihoods(log)
        for i, (oracle, cost) in enumerate(zip(oracles, costs, strict=True)):
            left[i] += (cost[:, 0] > cost.min(axis=1) + oracle._radius()).any()
    most = DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / runs)
    assert (left / runs <= most).all()


def test_radii_of_a_hundredth_do_not_cover():
    """The test above would find a wrong radius: sets with a much smaller one lose the truth."""
    left = np.zeros(2)
    for seed in range(100):
        world = World(seed, spread=0.15)
        log = world.log(60)
        for i, cost in enumerate((world.squared_errors(log), -world.log_likelihoods(log))):
            left[i] += (cost[:, 0] > cost.min(axis=1) + 0.01 * math.log(N / DELTA)).any()
    assert (left > 50).all()


@pytest.mark.parametrize("seed", range(4))
def test_where_the_truth_is_outside_the_best_candidate_is_left_alone(seed):
    world = World(seed, truth_inside=False)
    log = world.log(400)
    for oracle, costs, radius in (
        (keeping(world.F), world.squared_errors(log)[:, 1:], 0.5 * math.log((N - 1) / DELTA)),
        (keeping(world.P), -world.log_likelihoods(log)[:, 1:], math.log((N - 1) / DELTA)),
    ):
        for trajectory, expected in zip(log, nested_by_hand(costs, radius), strict=True):
            oracle.observe(trajectory)
            assert members(oracle, oracle.plausible()[1]) == expected


def test_an_empty_set_is_replaced_by_the_best_candidate_alone():
    """Losses of 1 exclude 0.2, then losses of 0 exclude 0.8: only the best candidate is left."""
    layout = of.Layout([1], 1)
    oracle = of.FiniteLossClass([lambda c, x=x: np.array([[x]]) for x in (0.2, 0.8)]).oracle(layout, None)
    oracle.keep_plausible(0.1)

    def observe(loss, n):
        for _ in range(n):
            oracle.observe(of.Trajectory(0, np.array([0, 1]), np.array([0]), np.array([loss])))

    observe(1.0, 10)  # L = 6.4 and 0.4; the radius is log(20)/2 = 1.50
    _, excluded = oracle.plausible()
    assert members(oracle, excluded) == (1,)
    observe(0.0, 12)  # L = 6.88 and 8.08: within the radius
    assert oracle.plausible() == (1, excluded)
    observe(0.0, 1)  # 6.92 and 8.72
    fit, alone = oracle.plausible()
    assert (fit, members(oracle, alone)) == (0, (0,))
    assert alone != excluded
    assert oracle.lower(alone, 0) == 0.2
    assert oracle.lower(excluded, 0) == 0.8
    assert oracle.lower(0, 0) == 0.2
    observe(1.0, 12)
    fit, again = oracle.plausible()
    assert (fit, members(oracle, again)) == (1, (1,))


def test_least_losses_are_minima_over_the_set():
    world = World(3)
    oracle = keeping(world.F)
    pairs = {oracle.plausible()[1]: tuple(range(N))}
    for trajectory in world.log(200):
        oracle.observe(trajectory)
        version = oracle.plausible()[1]
        pairs[version] = members(oracle, version)
    assert len(pairs) > 2
    for _ in range(2):  # the second time from the cache
        for version, inside in pairs.items():
            for c in CONTEXTS:
                assert np.array_equal(oracle.lower(version, c), np.min([world.tables[i, c] for i in inside], axis=0))
        oracle._lowest.budget = 1


def test_equal_data_are_equal_sets_in_logs_and_one_at_a_time():
    world = World(1)
    log = world.log(100)
    for function_class in (world.F, world.P):
        first, second = keeping(function_class), keeping(function_class)
        for trajectory in log:
            first.observe(trajectory)
        second.observe_many(log)
        assert first.plausible() == second.plausible()
        before = second.state()
        bad = of.Trajectory(0, log[0].states, log[0].actions, np.array([0.0, 0.5, 2.0]))
        with pytest.raises(of.OpoError):
            second.observe_many([*log, bad])
        assert second.plausible() == first.plausible()
        assert all(np.array_equal(second.state()[key], value) for key, value in before.items())


def test_sets_are_saved_and_loaded_to_the_bit(tmp_path):
    world = World(2)
    log = world.log(120)
    for function_class in (world.F, world.P):
        first = keeping(function_class)
        versions = [first.plausible()[1]]
        for trajectory in log[:60]:
            first.observe(trajectory)
            versions.append(first.plausible()[1])
        write_state(tmp_path / "state.npz", first.state())
        for second in (function_class.oracle(LAYOUT, None), keeping(function_class)):
            second.restore(read_state(tmp_path / "state.npz"))
            assert second.delta == DELTA
            assert [members(second, v) for v in versions] == [members(first, v) for v in versions]
            third = keeping(function_class)
            third.restore(first.state())
            for trajectory in log[60:]:
                second.observe(trajectory)
                third.observe(trajectory)
                assert second.plausible() == third.plausible()
        with pytest.raises(of.OpoError, match=r"plausible set at failure probability 0\.1: 0\.2 is needed"):
            keeping(function_class, 0.2).restore(first.state())
        with pytest.raises(of.OpoError, match="holds no plausible set"):
            first.restore(function_class.oracle(LAYOUT, None).state())


def test_what_is_refused():
    world = World(0)
    oracle = world.F.oracle(LAYOUT, None)
    for call in (oracle.plausible, lambda: oracle.lower(0, 0), lambda: oracle.plausible_count(0)):
        with pytest.raises(of.OpoError, match="keeps no plausible set"):
            call()
    with pytest.raises(of.OpoError, match=r"delta is 1\.0"):
        oracle.keep_plausible(1)
    oracle.observe(world.log(1)[0])
    with pytest.raises(of.OpoError, match="before any data"):
        oracle.keep_plausible(0.1)
    oracle = keeping(world.P)
    with pytest.raises(of.OpoError, match="once"):
        oracle.keep_plausible(0.1)
    for version in (1, -N - 1, "a", None, 0.5):
        with pytest.raises(of.OpoError, match="a version returned by plausible"):
            oracle.candidates(version)


@pytest.mark.parametrize("refit", ["doubling", 7, ("gain", 1.0)])
def test_a_schedule_holds_the_set_as_it_holds_the_fit(refit, tmp_path):
    world = World(4)
    log = world.log(90)
    for function_class in (world.F, world.P):
        plain, held = keeping(function_class), keeping(scheduled(function_class, refit))
        at = {0: plain.plausible()}
        for n, trajectory in enumerate(log, start=1):
            plain.observe(trajectory)
            held.observe(trajectory)
            at[n] = plain.plausible()
            held.fit()
            assert held.plausible() == at[held.fitted]
            assert held.plausible_count(held.plausible()[1]) >= plain.plausible_count(at[n][1])
        assert 0 < held.fitted < len(log) or refit == ("gain", 1.0)
        write_state(tmp_path / "state.npz", held.state())
        again = scheduled(function_class, refit).oracle(LAYOUT, None)
        again.restore(read_state(tmp_path / "state.npz"))
        assert again.plausible() == held.plausible()
    assert not hasattr(scheduled(MeanOracle(), "doubling"), "plausible")
    assert not hasattr(scheduled(MeanOracle(), "doubling"), "keep_plausible")


def test_least_squares_for_dynamics_keeps_the_truth_too():
    """The radius log(|P| / delta) for the squared errors |P(.|s,a) - 1{s'}|^2: 400 runs, errors in arrays."""
    runs, left, contexts = 400, 0, np.arange(2)
    for seed in range(runs):
        world = World(seed)
        log = world.log(60)
        c, costs = np.array(log.contexts), 0.0
        for h in range(LAYOUT.horizon - 1):
            local, following = log.states[:, h] - LAYOUT.offsets[h], log.states[:, h + 1] - LAYOUT.offsets[h + 1]
            p = np.array([block[h][c, local, log.actions[:, h]] for block in world.blocks])
            costs = costs + np.square(p - (following[:, None] == contexts)).sum(axis=2)
        costs = costs.cumsum(axis=1).T
        oracle = world.P.squared_oracle(LAYOUT, None)
        oracle.keep_plausible(DELTA)
        if seed < 3:
            for trajectory, expected in zip(log, nested_by_hand(costs, math.log(N / DELTA)), strict=True):
                oracle.observe(trajectory)
                assert oracle.candidates(oracle.plausible()[1]) == expected
        left += (costs[:, 0] > costs.min(axis=1) + math.log(N / DELTA)).any()
    assert left / runs <= DELTA + 2 * math.sqrt(DELTA * (1 - DELTA) / runs)


# -- the checker on sets that break a promise --------------------------------------------------------------------------


class MeanOracle:
    def __init__(self):
        self.n, self.total = [0], [0.0]

    def observe(self, trajectory):
        self.n.append(self.n[-1] + trajectory.losses.size)
        self.total.append(self.total[-1] + float(trajectory.losses.sum()))

    def fit(self):
        return len(self.n) - 1

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, self.total[fit] / self.n[fit] if self.n[fit] else 0.5)


class WithSet(MeanOracle):
    def keep_plausible(self, delta):
        self.delta = delta

    def plausible(self):
        return self.fit(), self.fit()

    def plausible_count(self, version):
        return math.nan

    def lower(self, version, context):
        return np.maximum(self.losses(version, context) - 1 / math.sqrt(1 + self.n[version]), 0)


class Above(WithSet):
    def lower(self, version, context):
        return np.minimum(self.losses(version, context) + 0.1, 1)


class Moving(WithSet):
    def lower(self, version, context):
        return np.maximum(self.losses(version, context) - 1 / self.n[-1] if self.n[-1] else 0.0 * self.losses(version, context), 0)


class SameVersion(WithSet):
    def plausible(self):
        self.newest = self.fit()
        return self.newest, "the set"

    def lower(self, version, context):
        return super().lower(self.newest, context)


class Restless(WithSet):
    asked = 0

    def plausible(self):
        self.asked += 1
        return self.fit(), (self.fit(), self.asked)

    def lower(self, version, context):
        return super().lower(version[0], context)


class NoLower(MeanOracle):
    keep_plausible, plausible, plausible_count = WithSet.keep_plausible, WithSet.plausible, WithSet.plausible_count


class CountOfNone(WithSet):
    def plausible_count(self, version):
        return 0


class Forgets(WithSet):
    """A saved state without the set's past."""

    def state(self):
        return {"n": self.n[-1:], "total": self.total[-1:]}

    def restore(self, state):
        self.n, self.total = [0, *state["n"]], [0.0, *state["total"]]


class Dynamics:
    def __init__(self):
        self.oracle = World(0).P.oracle(LAYOUT, None)
        for name in ("observe", "fit", "transitions", "keep_plausible", "plausible", "plausible_count"):
            setattr(self, name, getattr(self.oracle, name))


class WithoutTheFit(Dynamics):
    def candidates(self, version):
        found = self.oracle.candidates(version)
        return tuple(i for i in found if i != self.plausible()[0]) or (1,)


class AList(Dynamics):
    def candidates(self, version):
        return list(self.oracle.candidates(version))


class TooFew(Dynamics):
    def candidates(self, version):
        return (self.plausible()[0],)


class NegativeRadius(Dynamics):
    def radius(self, version, context):
        return np.full(LAYOUT.shape, -0.1)


class Both(NegativeRadius):
    def candidates(self, version):
        return self.oracle.candidates(version)


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (Above, r"lower\(0, 0\) is above the losses of the fit \(by up to 0.1\)"),
        (Moving, "the set of version 0 changed after more data .*, and 2 more like it"),
        (SameVersion, "version 'the set' was returned twice, for different sets"),
        (Restless, r"plausible\(\) called twice without new data"),
        (NoLower, "keep_plausible without lower"),
        (CountOfNone, r"plausible_count\(0\) is 0.0"),
        (Forgets, "a loaded oracle differs"),
        (WithoutTheFit, "a tuple with the fit, 0, is needed"),
        (AList, "a tuple with the fit"),
        (TooFew, "but there are 1 candidates"),
        (NegativeRadius, r"radius\(0, 0\): numbers in \[0, 1\] of shape"),
        (Dynamics, "without either candidates or radius"),
        (Both, "without either candidates or radius"),
    ],
)
def test_the_checker_names_the_broken_promise(broken, message):
    log = World(0).log(20)
    with pytest.raises(of.OpoError, match=f"(?s)violates the protocol:.*plausible sets: .*{message}"):
        check_oracle(broken, LAYOUT, log, contexts=CONTEXTS)


def test_the_checker_accepts_a_right_one():
    log = TrajectoryLog(LAYOUT, *(getattr(World(0).log(20), name) for name in ("contexts", "states", "actions", "losses")))
    assert "plausible sets" in check_oracle(WithSet, LAYOUT, log, contexts=CONTEXTS)
    assert "plausible sets" in check_oracle(World(0).F, LAYOUT, log, contexts=CONTEXTS)
    assert "plausible sets" in check_oracle(World(0).P, LAYOUT, log, contexts=CONTEXTS)
