"""The protocol of oracles: `check_oracle` accepts the package's oracles and names the faults of broken ones; bad data change nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from oracle_worlds import numbers, random_blocks

import opo_fast as of
from opo_fast._support.lru import LRU
from opo_fast._support.state import read_state, write_state
from opo_fast.oracles import (
    DisjointLinearLossClass,
    DynamicsOracle,
    LinearLossClass,
    LossOracle,
    MixtureDynamicsClass,
    ScheduledOracle,
    SklearnDynamicsClass,
    SklearnLossClass,
    SoftmaxDynamicsClass,
    TabularDynamicsClass,
    TabularLossClass,
    TrajectoryLog,
    check_oracle,
    scheduled,
)

LAYOUT = of.Layout([1, 3, 3], 2)
RNG = np.random.default_rng(0)
MASK = np.array([[True, True], [True, False], [True, True], [True, True], [False, True], [True, True], [True, True]])
CONTEXTS = [np.array([0.1, 0.9]), np.array([0.6, 0.2]), np.array([0.5, 0.5])]
BASES = [random_blocks(RNG, LAYOUT) for _ in range(3)]
TABLE = RNG.random((*LAYOUT.shape, 2))
PSI = [RNG.normal(size=(n, 2, 3, 2)) for n in (1, 3)]


def trees():
    tree = pytest.importorskip("sklearn.tree")
    return tree.DecisionTreeRegressor(max_depth=3), tree.DecisionTreeClassifier(max_depth=3)


CLASSES = {
    "linear": lambda: LinearLossClass(lambda c: TABLE * c, 2),
    "disjoint linear": lambda: DisjointLinearLossClass(lambda c: c, 2, ridge=0.1),
    "tabular loss": lambda: TabularLossClass(unseen=0.5),
    "tabular loss per context": lambda: TabularLossClass(per_context=True),
    "finite loss": lambda: of.FiniteLossClass([lambda c, x=x: np.full(LAYOUT.shape, x) for x in (0.2, 0.5, 0.6)]),
    "sklearn loss": lambda: SklearnLossClass(trees()[0], first=3),
    "softmax": lambda: SoftmaxDynamicsClass(lambda c: [psi * c for psi in PSI], 2),
    "mixture": lambda: MixtureDynamicsClass(BASES, 2, lambda c: [c[0], 1 - c[0]]),
    "tabular dynamics": lambda: TabularDynamicsClass(smoothing=0.1),
    "tabular dynamics per context": lambda: TabularDynamicsClass(per_context=True),
    "finite dynamics": lambda: of.FiniteDynamicsClass([lambda c, base=base: base for base in BASES]),
    "sklearn dynamics": lambda: SklearnDynamicsClass(trees()[1], first=3),
}


class World:
    layout = LAYOUT

    def __init__(self, mask=None):
        self.mdps = [of.LayeredMDP(LAYOUT, RNG.random(LAYOUT.shape), BASES[i], mask) for i in range(3)]

    def sample_context(self, rng):
        return CONTEXTS[int(rng.integers(3))]

    def mdp(self, context):
        return self.mdps[[c is context or np.array_equal(c, context) for c in CONTEXTS].index(True)]


@pytest.mark.parametrize("mask", [None, MASK], ids=["all allowed", "masked"])
@pytest.mark.parametrize("name", CLASSES)
def test_the_packages_oracles_keep_their_promises(name, mask):
    log = TrajectoryLog.collect(World(mask), 40, seed=1)
    passed = check_oracle(CLASSES[name](), LAYOUT, log, action_mask=mask, contexts=[np.array([0.3, 0.3])])
    oracle = CLASSES[name]().oracle(LAYOUT, mask)
    kept = hasattr(oracle, "keep_plausible")
    assert passed == [
        "shape and range without data",
        "purity, shape and range with data, equal fits are equal functions",
        "determinism",
        "incremental = batch",
        "refusals change nothing",
        *(
            ["error and gain"]
            if hasattr(oracle, "gain")
            else ["error", 'gain: not offered (no gain(fit)), so the schedule ("gain", threshold) cannot be used']
        ),
        "plausible sets"
        if kept
        else "plausible sets: not offered (no keep_plausible(delta)), so OPO has no guarantee where exploration is hard",
        "save and load",
    ]


def test_least_squares_for_dynamics_keeps_the_promises_too():
    function_class = CLASSES["finite dynamics"]()
    check_oracle(lambda: function_class.squared_oracle(LAYOUT, None), LAYOUT, TrajectoryLog.collect(World(), 40, seed=1))


def bad_trajectories(good):
    return {
        "unknown state": of.Trajectory(good.context, np.array([0, 9, 4, 7]), good.actions, good.losses),
        "state of another layer": of.Trajectory(good.context, np.array([0, 4, 4, 7]), good.actions, good.losses),
        "negative action": of.Trajectory(good.context, good.states, np.array([0, -1, 0]), good.losses),
        "NaN loss": of.Trajectory(good.context, good.states, good.actions, np.array([0, np.nan, 1])),
        "loss above 1": of.Trajectory(good.context, good.states, good.actions, np.array([0, 1, 1.5])),
        "too short": of.Trajectory(good.context, good.states[1:], good.actions[1:], good.losses[1:]),
        "no trajectory": "abc",
    }


@pytest.mark.parametrize("name", CLASSES)
def test_bad_data_are_refused_and_nothing_is_half_added(name):
    log = TrajectoryLog.collect(World(), 12, seed=2)
    oracle = CLASSES[name]().oracle(LAYOUT, None)
    oracle.observe_many(log)
    fit, before = oracle.fit(), numbers(oracle, oracle.fit(), CONTEXTS[0])
    state = oracle.state()
    for kind, bad in bad_trajectories(log[0]).items():
        with pytest.raises(of.OpoError):
            oracle.observe(bad)
        with pytest.raises(of.OpoError):
            oracle.observe_many([log[0], bad])
        assert oracle.fit() == fit, kind
        assert numbers(oracle, fit, CONTEXTS[0]).tobytes() == before.tobytes(), kind
        after = oracle.state()
        assert all(np.array_equal(after[key], value) for key, value in state.items()), kind
    with pytest.raises(of.OpoError, match="the log is empty"):
        oracle.observe_many([])


@pytest.mark.parametrize("name", CLASSES)
def test_masked_actions_are_refused(name):
    oracle = CLASSES[name]().oracle(LAYOUT, MASK)
    masked = of.Trajectory(CONTEXTS[0], np.array([0, 1, 5, 7]), np.array([0, 1, 0]), np.zeros(3))
    agent = of.OPO(LAYOUT, CLASSES["tabular loss"](), CLASSES["tabular dynamics"](), episodes=5, action_mask=MASK)
    with pytest.raises(of.OpoError, match="masked in state 1"):
        agent.observe(masked)
    if name not in ("finite loss", "finite dynamics"):  # These oracles do not know the mask, but their agent does.
        with pytest.raises(of.OpoError, match="masked in state 1"):
            oracle.observe(masked)


@pytest.mark.parametrize("name", CLASSES)
def test_a_state_of_another_kind_is_refused_and_changes_nothing(name, tmp_path):
    log = TrajectoryLog.collect(World(), 12, seed=2)
    oracle = CLASSES[name]().oracle(LAYOUT, None)
    oracle.observe_many(log)
    fit, before = oracle.fit(), numbers(oracle, oracle.fit(), CONTEXTS[0])
    bound = name.startswith("finite") or name == "mixture"  # The classes of these oracles know the layout.
    wrong = [] if bound else [CLASSES[name]().oracle(of.Layout([1, 3, 4], 2), None).state()]
    other_kind = CLASSES["tabular dynamics" if name != "tabular dynamics" else "linear"]().oracle(LAYOUT, None)
    for state in [*wrong, other_kind.state(), {}]:
        with pytest.raises(of.OpoError):
            oracle.restore(state)
        assert oracle.fit() == fit
        assert numbers(oracle, fit, CONTEXTS[0]).tobytes() == before.tobytes()
    write_state(tmp_path / "state.npz", oracle.state())
    again = CLASSES[name]().oracle(LAYOUT, None)
    again.restore(read_state(tmp_path / "state.npz"))
    assert numbers(again, again.fit(), CONTEXTS[0]).tobytes() == before.tobytes()


# -- the checker on oracles that break a promise -----------------------------------------------------------------------


class MeanOracle:
    """An oracle that a user might write, without the package: the running mean loss for all pairs."""

    def __init__(self):
        self.sums, self.fits = [0.0], [0.5]
        self.total, self.count = 0.0, 0

    def observe(self, trajectory):
        self.total += float(trajectory.losses.sum())
        self.count += trajectory.losses.size

    def fit(self):
        mean = self.total / self.count if self.count else 0.5
        if mean != self.fits[-1]:
            self.fits.append(mean)
        return len(self.fits) - 1

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, self.fits[fit])


class UniformDynamics:
    def observe(self, trajectory):
        pass

    def fit(self):
        return "uniform"

    def transitions(self, fit, context):
        return [np.full((1, 2, 3), 1 / 3), np.full((3, 2, 3), 1 / 3)]


class OutOfRange(MeanOracle):
    def losses(self, fit, context):
        return super().losses(fit, context) + 0.9


class WrongShape(MeanOracle):
    def losses(self, fit, context):
        return np.zeros((7, 3))


class Forgetful(MeanOracle):
    """All fits stand for the newest function."""

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, self.fits[-1])


class SameName(MeanOracle):
    def fit(self):
        super().fit()
        return 0

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, self.fits[-1])


class Restless(MeanOracle):
    def fit(self):
        self.fits.append(self.fits[-1])
        return len(self.fits) - 1


class Random(MeanOracle):
    def __init__(self):
        super().__init__()
        self.noise = np.random.default_rng().random()

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, 0.5 * self.fits[fit] + 0.5 * self.noise)


class Impure(MeanOracle):
    def losses(self, fit, context):
        context += 1e-3
        return super().losses(fit, context)


class DependsOnAsking(MeanOracle):
    """The fit depends on the number of calls."""

    def fit(self):
        if self.count:
            self.fits.append(0.9 * self.fits[-1] + 0.1 * self.total / self.count) if self.count != len(self.sums) else None
            self.sums = [0.0] * self.count
        return len(self.fits) - 1


class WrongError(MeanOracle):
    def error(self, fit, trajectory):
        return 1.0


class Leaky(MeanOracle):
    """A state that forgets the counts."""

    def state(self):
        return {"fits": np.array(self.fits)}

    def restore(self, state):
        self.fits = state["fits"].tolist()


class NotDistribution(UniformDynamics):
    def transitions(self, fit, context):
        return [np.full((1, 2, 3), 0.3), np.full((3, 2, 3), 1 / 3)]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (OutOfRange, "shape and range .*a number in .0, 1. is needed"),
        (WrongShape, r"has shape \(7, 3\)"),
        (Forgetful, "changed after more data"),
        (SameName, "equal fits: fit\\(\\) returned 0 twice, for different functions"),
        (Restless, "called twice without new data returns different values"),
        (Random, "determinism: two new oracles with the same data differ"),
        (Impure, "a context was written to"),
        (DependsOnAsking, "a fit after each episode and one fit at the end differ"),
        (WrongError, "error: error"),
        (Leaky, r"save and load: fit\(\) is \d+, but \d+ after loading"),
        (NotDistribution, "the row sums to"),
    ],
)
def test_the_checker_names_the_broken_promise(broken, message):
    log = TrajectoryLog.collect(World(), 20, seed=1)
    log = TrajectoryLog(LAYOUT, [np.array(c) for c in log.contexts], log.states, log.actions, log.losses)
    copies = [of.Trajectory(np.array(t.context), t.states, t.actions, t.losses) for t in log]
    with pytest.raises(of.OpoError, match=f"(?s)violates the protocol:.*{message}"):
        check_oracle(broken, LAYOUT, copies, contexts=[np.array(c) for c in CONTEXTS])


def test_users_own_oracles_work_in_every_agent_without_touching_the_package():
    assert isinstance(MeanOracle(), LossOracle)
    assert isinstance(UniformDynamics(), DynamicsOracle)
    world = World()
    log = TrajectoryLog.collect(world, 20, seed=1)
    for oracle in (MeanOracle, UniformDynamics):
        passed = check_oracle(oracle, LAYOUT, log)
        assert passed[-1].startswith("save and load: not offered")
    agent = of.OPO(LAYOUT, MeanOracle(), UniformDynamics(), episodes=30)
    agent.warm_start(log)
    result = of.simulate(world, agent, 30, seed=3)
    # Held-out errors of oracles without error() are computed from their predictions.
    np.testing.assert_allclose(result.held_out_log_loss, 2 * np.log(3))
    first = float(np.mean([log.losses.mean()]))
    assert agent.loss_oracle.fits[1] == pytest.approx(first)
    assert np.isfinite(result.held_out_squared_error).all()
    with pytest.raises(of.OpoError, match="cannot be saved"):
        agent.state()
    with pytest.raises(of.OpoError, match="source is a int"):
        check_oracle(3, LAYOUT, log)
    with pytest.raises(of.OpoError, match="at least 4"):
        check_oracle(MeanOracle, LAYOUT, log[:3])
    with pytest.raises(of.OpoError, match="without observe, fit, losses or transitions"):
        check_oracle(dict, LAYOUT, log)


def test_a_schedule_around_a_class_is_looked_through():
    log = TrajectoryLog.collect(World(), 20, seed=1)
    assert isinstance(scheduled(TabularLossClass(), "doubling").oracle(LAYOUT, None), ScheduledOracle)
    check_oracle(scheduled(TabularLossClass(), "doubling"), LAYOUT, log)


@pytest.mark.parametrize("name", CLASSES)
def test_answers_from_several_threads_are_the_same_bits(name):
    """Chains of different contexts use the oracle in parallel, with a cache that is too small for all of them."""
    world = World()
    oracle = CLASSES[name]().oracle(LAYOUT, None)
    fits = []
    for t in TrajectoryLog.collect(world, 30, seed=4):
        oracle.observe(t)
        fits.append(oracle.fit())
    asked = [(fit, c) for fit in sorted(set(fits)) for c in CONTEXTS]
    expected = [numbers(oracle, fit, c).tobytes() for fit, c in asked]
    inner = oracle.oracle if isinstance(oracle, ScheduledOracle) else oracle
    for value in [*vars(inner).values(), *vars(getattr(inner, "_features", inner)).values()]:
        if isinstance(value, LRU):
            value.budget = 1
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: [numbers(oracle, fit, c).tobytes() for fit, c in asked], range(4)):
            assert found == expected


class Bounded:
    """The mean of all losses, and a lower bound on the losses that exceeds it by `above`."""

    def __init__(self, above=0.0):
        self.above, self.sum, self.count = above, 0.0, 0

    def observe(self, trajectory):
        self.sum, self.count = self.sum + float(trajectory.losses.sum()), self.count + trajectory.losses.size

    def fit(self):
        return (self.sum + 0.1) / (self.count + 1)

    def losses(self, fit, context):
        return np.full(LAYOUT.shape, fit)

    def keep_plausible(self, delta):
        pass

    def plausible(self):
        return self.fit(), self.fit()

    def plausible_count(self, version):
        return float("nan")

    def lower(self, version, context):
        return np.full(LAYOUT.shape, min(1.0, version / 2 + self.above))


def test_faults_of_one_kind_are_told_once_with_their_number():
    log = TrajectoryLog.collect(World(), 12, seed=1)
    with pytest.raises(of.OpoError) as caught:
        check_oracle(lambda: Bounded(0.9), LAYOUT, log)
    (fault,) = [line for line in str(caught.value).split("\n") if "above the losses of the fit" in line]
    # The fault occurs before any data and after 1, 2, 6 and 12 episodes, at each context, in each history; the first is reported.
    assert fault.startswith("- plausible sets: lower(0.1, ")
    assert fault.endswith(" more like it")
    assert len(str(caught.value).split("\n")) == 2


def test_what_an_oracle_does_not_offer_is_named():
    log = TrajectoryLog.collect(World(), 12, seed=1)
    passed = check_oracle(Bounded, LAYOUT, log)
    assert "plausible sets" in passed
    assert not any(line.startswith("error and gain") for line in passed)
    assert [line for line in passed if line.startswith(("error", "gain"))] == [
        "error: not offered (no error(fit, trajectory)), so agents compute it from the whole function",
        'gain: not offered (no gain(fit)), so the schedule ("gain", threshold) cannot be used',
    ]


def test_schedules_of_oracles_and_of_classes_are_told_apart():
    log = TrajectoryLog.collect(World(), 12, seed=1)

    class Called(Bounded):
        def __call__(self):
            raise AssertionError

    with pytest.raises(of.OpoError, match="source is a ScheduledOracle: a function class, or a callable that makes an oracle, is needed"):
        check_oracle(scheduled(Bounded(), "doubling"), LAYOUT, log)
    with pytest.raises(of.OpoError, match="source is the class Bounded itself: an object of it"):
        scheduled(Bounded, "doubling")
    agent = of.OPO(LAYOUT, scheduled(Called(), "doubling"), TabularDynamicsClass(), episodes=5, bonus_scale=1e-5)
    assert isinstance(agent.loss_oracle, ScheduledOracle)
