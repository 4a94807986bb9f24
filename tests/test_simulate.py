"""The episode loop: its order, its random streams, exact regret, and refused arguments."""

from __future__ import annotations

import itertools
import os
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from simulated_worlds import Fixed, Many, digest, two_contexts, uniform
from strategies import random_transitions

import opo_fast as of
from opo_fast.model.streams import Streams
from opo_fast.runs.simulation import Simulation

# -- order ------------------------------------------------------------------------------------------------------------


class Script:
    """Oracles whose fit is the number of observed episodes, with answers that are given in advance."""

    def __init__(self, losses: list[np.ndarray], transitions: list[list[np.ndarray]]) -> None:
        self.answers = {"losses": losses, "transitions": transitions}
        self.seen = 0

    def observe(self, trajectory: of.Trajectory) -> None:
        self.seen += 1

    def fit(self) -> int:
        return self.seen

    def losses(self, fit: int, context: Any) -> np.ndarray:
        return self.answers["losses"][fit]

    def transitions(self, fit: int, context: Any) -> list[np.ndarray]:
        return self.answers["transitions"][fit]


def played(cmdp: of.FiniteContexts, agent: of.OPO, episodes: int) -> list[np.ndarray]:
    """The policies of the episodes of a run."""
    policies = []
    run = Simulation(cmdp, agent, episodes)
    for _ in range(episodes):
        policies.append(agent.policy(0))
        run.step()
    return policies


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_policy_of_episode_t_uses_the_models_before_it_one_layer(backend):
    # H = 1, one state, two actions; half_loss = .2, half_dynamics = .05, weight 2H = 2, eta = 1.
    layout = of.Layout([1], 2)
    cmdp = of.FiniteContexts([of.LayeredMDP(layout, [[0.5, 0.5]], [])])
    f = [np.array([[0.5, 0.25]]), np.array([[0.0, 1.0]]), np.array([[0.9, 0.1]]), np.array([[0.3, 0.3]])]
    agent = of.OPO(layout, Script(f, [[]] * 4), Script(f, [[]] * 4), eta=1.0, beta_loss=0.4, beta_dynamics=0.1, backend=backend)
    got = played(cmdp, agent, 4)
    assert got[0].tolist() == [[0.5, 0.5]]
    # k = 1: N = 0, b = .2 + 2 * .05 = .3, Q = max{0, (.5, .25) - .3} = (.2, 0)
    weights = np.exp([-0.2, 0.0])
    second = weights / weights.sum()
    np.testing.assert_allclose(got[1], [second], rtol=1e-14)
    # k = 2: N = (.5, .5), b = .3 / 1.5 = .2, Q = max{0, (0, 1) - .2} = (0, .8); sums (.2, .8)
    weights = np.exp([-0.2, -0.8])
    third = weights / weights.sum()
    np.testing.assert_allclose(got[2], [third], rtol=1e-14)
    # k = 3: N = (.5, .5) + second, b = .3 / (1 + N), Q = max{0, (.9, .1) - b}
    b = [0.3 / (1.5 + second[0]), 0.3 / (1.5 + second[1])]
    weights = np.exp([-0.2 - (0.9 - b[0]), -0.8 - max(0.0, 0.1 - b[1])])
    np.testing.assert_allclose(got[3], [weights / weights.sum()], rtol=1e-14)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_policy_of_episode_t_recounts_past_policies_under_the_dynamics_of_each_step(backend):
    # H = 2, layers {0}, {1, 2}, two actions. P: action a leads to state 1 + a; P': to state 2 - a. Fits P, P', P.
    layout = of.Layout([1, 2], 2)
    straight, swapped = [np.array([[[1.0, 0.0], [0.0, 1.0]]])], [np.array([[[0.0, 1.0], [1.0, 0.0]]])]
    cmdp = of.FiniteContexts([of.LayeredMDP(layout, np.full((3, 2), 0.5), straight)])
    f = [
        np.array([[0.6, 0.5], [1.0, 0.4], [0.4, 0.4]]),
        np.array([[4 / 15 + 0.1, 4 / 15], [0.32, 1.0], [0.52, 0.32]]),
        np.array([[0.8, 0.7], [0.6, 0.5], [0.4, 0.3]]),
        np.zeros((3, 2)),
    ]
    script = Script(f, [straight, swapped, straight, swapped])
    other = Script(f, [straight, swapped, straight, swapped])
    agent = of.OPO(layout, script, other, eta=np.log(2.0), beta_loss=0.8, beta_dynamics=0.0, backend=backend)
    got = played(cmdp, agent, 4)
    np.testing.assert_array_equal(got[0], np.full((3, 2), 0.5))

    def softmax(sums: Any) -> np.ndarray:
        weights = 2.0 ** -np.array(sums)
        return weights / weights.sum(axis=1, keepdims=True)

    # k = 1, b = .4: Q(1) = (.6, 0), V(1) = .3; Q(2) = 0; Q(0) = (.6 - .4 + .3, .5 - .4).
    pi2 = softmax([[0.5, 0.1], [0.6, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(got[1], pi2, rtol=1e-14)
    # k = 2 under P': N(0) = (.5, .5), b = 4/15; N(1) = N(2) = (.25, .25), b = .32. Q(1) = (0, .68), Q(2) = (.2, 0),
    # V(2) = .1; Q(0) = (.1 + V(2), 0 + V(1)) since action 0 leads to state 2.
    v1 = pi2[1, 1] * 0.68
    sums = [[0.5 + 0.2, 0.1 + v1], [0.6, 0.68], [0.2, 0.0]]
    pi3 = softmax(sums)
    np.testing.assert_allclose(got[2], pi3, rtol=1e-14)
    # k = 3 under P: pi^1 and pi^2 are counted under P, pi^2(0) reaching state 1 with pi2[0, 0].
    n = np.array([0.5 + pi2[0], 0.25 + pi2[0, 0] * pi2[1], 0.25 + pi2[0, 1] * pi2[2]])
    gain = f[2] - 0.4 / (1 + n)
    q1, q2 = np.maximum(0, gain[1]), np.maximum(0, gain[2])
    q0 = np.maximum(0, gain[0] + [pi3[1] @ q1, pi3[2] @ q2])
    np.testing.assert_allclose(got[3], softmax(np.array(sums) + np.array([q0, q1, q2])), rtol=1e-14)


def test_the_loop_asks_plays_and_tells_in_turn():
    cmdp = two_contexts()
    agent = Fixed(cmdp.layout, uniform(cmdp))
    result = of.simulate(cmdp, agent, 30, seed=4)
    assert [what for what, _ in agent.log] == ["policy", "observe"] * 30
    asked = [context for what, context in agent.log if what == "policy"]
    told = [trajectory for what, trajectory in agent.log if what == "observe"]
    assert asked == [trajectory.context for trajectory in told]
    assert [result.contexts[i] for i in result.context_index] == asked
    assert result.observed_loss.tolist() == [float(trajectory.losses.sum()) for trajectory in told]


def test_prefetched_contexts_are_those_that_come():
    many = Many()
    asked, told = [], []

    class Spy(of.OPO):
        def prefetch(self, contexts):
            told.extend(float(c[0]) for c in contexts)
            super().prefetch(contexts)

        def policy(self, context):
            asked.append(float(context[0]))
            return super().policy(context)

    of.simulate(many, many.agent(Spy), 41)
    # The diagnostics compute the policy of a context again.
    assert [c for c, _ in itertools.groupby(told)] == [c for c, _ in itertools.groupby(asked)]


# -- values -----------------------------------------------------------------------------------------------------------


def by_enumeration(mdp: of.LayeredMDP, blocks: list[np.ndarray], policy: np.ndarray) -> float:
    """Expected sum of losses from every path of a model of three layers."""
    layout, total = mdp.layout, 0.0
    for path in itertools.product(*(range(n) for n in layout.layer_sizes)):
        for actions in itertools.product(range(layout.n_actions), repeat=layout.horizon):
            states = [int(layout.offsets[h]) + x for h, x in enumerate(path)]
            p = np.prod([policy[s, a] for s, a in zip(states, actions, strict=True)])
            p *= np.prod([blocks[h][path[h], actions[h], path[h + 1]] for h in range(layout.horizon - 1)])
            total += p * sum(mdp.losses[s, a] for s, a in zip(states, actions, strict=True))
    return float(total)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_values_are_exact(backend):
    rng = np.random.default_rng(5)
    sizes, layout = [1, 2, 2], of.Layout([1, 2, 2], 2)
    blocks = [random_transitions(rng, sizes, 2) for _ in range(2)]
    models = [of.LayeredMDP(layout, rng.random((5, 2)), b) for b in blocks]
    cmdp = of.FiniteContexts(models)
    policy = rng.dirichlet([1, 1], size=5)
    result = of.simulate(cmdp, Fixed(layout, policy), 12, seed=1, backend=backend)
    assert set(result.context_index.tolist()) == {0, 1}
    for c in (0, 1):
        mine = np.array([result.contexts[i] for i in result.context_index]) == c
        best = min(
            by_enumeration(models[c], blocks[c], np.eye(2)[list(choice)]) for choice in itertools.product(range(2), repeat=layout.n_states)
        )
        value = by_enumeration(models[c], blocks[c], policy)
        np.testing.assert_allclose(result.value[mine], value, rtol=1e-13)
        np.testing.assert_allclose(result.optimal_value[mine], best, rtol=1e-13)
        np.testing.assert_allclose(result.uniform_value[mine], by_enumeration(models[c], blocks[c], np.full((5, 2), 0.5)), rtol=1e-13)
        np.testing.assert_allclose(result.regret[mine], value - best, atol=1e-13)
    np.testing.assert_allclose(result.cumulative_regret, np.cumsum(result.regret), rtol=1e-15)


def test_observed_losses_have_the_true_mean():
    cmdp = two_contexts()
    result = of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 4000, seed=2)
    # The sum of 3 losses has a variance of at most 9 / 4.
    assert abs(result.observed_loss.mean() - result.value.mean()) < 5 * 1.5 / np.sqrt(4000)


def test_environment_may_draw_its_own_losses():
    class Graded(of.FiniteContexts):
        def sample_losses(self, means, uniforms):
            return np.clip(means + 0.1 * (uniforms - 0.5), 0, 1)

    cmdp = Graded(two_contexts().mdps)
    agent = Fixed(cmdp.layout, uniform(cmdp))
    of.simulate(cmdp, agent, 20)
    for what, trajectory in agent.log:
        if what == "observe":
            means = cmdp.mdp(trajectory.context).losses[trajectory.states[:-1], trajectory.actions]
            assert np.abs(trajectory.losses - means).max() <= 0.05 + 1e-15


def test_summary_by_hand():
    layout = of.Layout([1], 2)
    cmdp = of.FiniteContexts([of.LayeredMDP(layout, [[0.0, 1.0]], []), of.LayeredMDP(layout, [[0.4, 0.4]], [])], labels=["x", "y"])
    result = of.simulate(cmdp, Fixed(layout, np.array([[0.75, 0.25]])), 40, seed=0)
    first, second, total = result.summary(last=1.0)
    assert (first.label, second.label, total.label) == ("x", "y", "all")
    assert first.learned == 0.25
    assert (first.uniform, first.optimum, first.gap_closed) == (0.5, 0.0, 0.5)
    assert np.isnan(second.gap_closed)
    assert first.episodes + second.episodes == total.episodes == 40
    assert first.regret == pytest.approx(0.25 * first.episodes, rel=1e-14)
    assert total.regret == pytest.approx(first.regret, rel=1e-12)
    assert result.gap_closed() == pytest.approx(0.5, rel=1e-12)


# -- same seed, same bits ----------------------------------------------------------------------------------------------

SCRIPT = """
import sys
sys.path.insert(0, {root!r})
import opo_fast as of
from simulated_worlds import Many, digest
many = Many({large})
print(digest(of.simulate(many, many.agent(), 60, seed=7)))
"""


@pytest.mark.parametrize("large", [False, True])
def test_same_bits_in_other_processes_with_other_numbers_of_threads(large):
    many = Many(large)
    expected = digest(of.simulate(many, many.agent(), 60, seed=7))
    root = str(pathlib.Path(__file__).resolve().parent)
    for threads in ("1", "2"):
        environment = {**os.environ, "NUMBA_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        script = SCRIPT.format(root=root, large=large)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=True)
        assert done.stdout.split() == [expected]


@pytest.mark.parametrize("large", [False, True])
def test_same_bits_with_and_without_prefetching_and_memory(large, set_threads):
    class Eager(of.OPO):
        lookahead = 0

    many, digests = Many(large), set()
    for threads in (1, 2):
        set_threads(threads)
        digests.add(digest(of.simulate(many, many.agent(), 60, seed=7)))
        digests.add(digest(of.simulate(many, many.agent(Eager), 60, seed=7)))
        digests.add(digest(of.simulate(many, many.agent(memory=0), 60, seed=7)))
    assert len(digests) == 1
    assert digest(of.simulate(many, many.agent(), 60, seed=8)) not in digests


def test_no_global_random_state_is_touched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    of.simulate(two_contexts(), Fixed(two_contexts().layout, uniform(two_contexts())), 5)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_two_agents_see_the_same_contexts():
    cmdp = two_contexts()
    fixed, other = Fixed(cmdp.layout, uniform(cmdp)), Fixed(cmdp.layout, np.eye(2)[np.zeros(6, int)])
    a, b = of.simulate(cmdp, fixed, 50, seed=9), of.simulate(cmdp, other, 50, seed=9)
    np.testing.assert_array_equal(a.context_index, b.context_index)


def trajectories(cmdp: Any, seed: int = 0) -> list[of.Trajectory]:
    agent = Fixed(cmdp.layout, uniform(cmdp))
    of.simulate(cmdp, agent, 40, seed=seed)
    return [what for kind, what in agent.log if kind == "observe"]


def test_changing_one_stream_leaves_the_others():
    cmdp = two_contexts()
    base = trajectories(cmdp)
    # Other losses: the same contexts, states and actions.
    inverted = of.FiniteContexts([mdp.with_losses(1 - mdp.losses) for mdp in cmdp.mdps], [0.7, 0.3])
    for a, b in zip(base, trajectories(inverted), strict=True):
        assert a.context == b.context
        np.testing.assert_array_equal(a.states, b.states)
        np.testing.assert_array_equal(a.actions, b.actions)
    assert any((a.losses != b.losses).any() for a, b in zip(base, trajectories(inverted), strict=True))
    # Other contexts, the same model in each: the same states, actions and losses.
    one, other = (of.FiniteContexts([cmdp.mdps[0]] * 2, p) for p in ([0.5, 0.5], [0.9, 0.1]))
    first, second = trajectories(one), trajectories(other)
    assert [t.context for t in first] != [t.context for t in second]
    for a, b in zip(first, second, strict=True):
        for name in ("states", "actions", "losses"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    assert [t.actions.tolist() for t in trajectories(cmdp, 1)] != [t.actions.tolist() for t in base]


def test_streams_do_not_depend_on_the_order_of_asking():
    one, other = Streams(11, 5), Streams(11, 5)
    episodes = [0, 7000, 3, 6553, 6554, 1]
    forwards = {(name, e): one.uniforms(name, e).copy() for name in ("actions", "losses") for e in episodes}
    for (name, e), expected in reversed(list(forwards.items())):
        np.testing.assert_array_equal(other.uniforms(name, e), expected)
    lines = {tuple(value) for value in forwards.values()}
    assert len(lines) == len(forwards)
    assert one.generator("contexts", 3).random() == other.generator("contexts", 3).random()
    assert one.generator("contexts", 3).random() != one.generator("agent", 3).random()
    drawn = np.array([Streams(s, 4).uniforms("losses", e) for s in range(50) for e in range(50)])
    assert abs(drawn.mean() - 0.5) < 5 / np.sqrt(12 * drawn.size)
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.1


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"episodes": 0}, "episodes is 0: a whole number at least 1 is needed"),
        ({"episodes": -3}, "episodes is -3"),
        ({"episodes": 2.5}, "episodes is 2.5: a whole number is needed"),
        ({"episodes": True}, "episodes is True"),
        ({"episodes": "ten"}, "episodes is 'ten'"),
        ({"episodes": 10**15}, "episodes is 1000000000000000: the records of so many take"),
        ({"episodes": 10**30}, "episodes is 1000000000000000000000000000000: a whole number from 1 to "),
        ({"seed": -1}, "seed is -1: a whole number at least 0 is needed"),
        ({"seed": 0.5}, "seed is 0.5"),
        ({"seed": None}, "seed is None"),
        ({"backend": "cuda"}, "backend is 'cuda': 'numba' or 'numpy' is needed"),
        ({"agent": object()}, "agent is a object without policy"),
        ({"cmdp": "icu"}, "cmdp is a str without sample_context"),
    ],
)
def test_bad_arguments(arguments, text):
    cmdp = two_contexts()
    given = {"cmdp": cmdp, "agent": Fixed(cmdp.layout, uniform(cmdp)), "episodes": 3, "seed": 0, **arguments}
    with pytest.raises(of.OpoError, match=text):
        of.simulate(**given)


def test_an_agent_of_another_layout_is_refused():
    cmdp = two_contexts()
    with pytest.raises(of.OpoError, match=r"agent has Layout\(\[1, 2\], n_actions=2\): the layout of the environment"):
        of.simulate(cmdp, Fixed(of.Layout([1, 2], 2), np.full((3, 2), 0.5)), 3)


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (np.full((6, 2), 0.6), r"policy: state 0 \(layer 0\): the probabilities sum to 1.2"),
        (np.full((5, 2), 0.5), r"policy has shape \(5, 2\)"),
        (np.where(np.arange(12).reshape(6, 2) == 7, np.nan, 0.5), r"policy: state 3 \(layer 1\), action 1: the probability is nan"),
    ],
)
def test_a_bad_policy_is_named_with_its_episode(policy, text):
    cmdp = two_contexts()
    with pytest.raises(of.OpoError, match=text) as caught:
        of.simulate(cmdp, Fixed(cmdp.layout, policy), 3)
    assert caught.value.__notes__ == ["in episode 1 of 3"]


def test_observed_losses_outside_the_unit_interval_are_refused():
    class Wrong(of.FiniteContexts):
        def sample_losses(self, means, uniforms):
            return means + 1.0

    cmdp = Wrong(two_contexts().mdps)
    with pytest.raises(of.OpoError, match=r"trajectory.losses\[0\] is 1\."):
        of.simulate(cmdp, Fixed(cmdp.layout, uniform(cmdp)), 3)
    with pytest.raises(of.OpoError, match=r"last is 0\.0"):
        of.simulate(two_contexts(), Fixed(cmdp.layout, uniform(cmdp)), 3).summary(0)


class _OneBuffer:
    """An environment that writes every context into the same array, or into a new one."""

    layout = of.Layout([1, 3, 3], n_actions=2)

    def __init__(self, shared):
        rng = np.random.default_rng(5)
        self.shared, self.buffer = shared, np.zeros(1)
        self.models = [(rng.random(self.layout.shape), [rng.dirichlet(np.ones(3), size=(n, 2)) for n in (1, 3)]) for _ in range(3)]

    def sample_context(self, rng):
        self.buffer[:] = rng.integers(3)
        return self.buffer if self.shared else self.buffer.copy()

    def mdp(self, context):
        return of.LayeredMDP(self.layout, *self.models[int(context[0])])

    def agent(self):
        losses = of.FiniteLossClass([lambda c, i=i: self.models[(int(c[0]) + i) % 3][0] for i in (1, 0)])
        dynamics = of.FiniteDynamicsClass([lambda c, i=i: self.models[(int(c[0]) + i) % 3][1] for i in (1, 0)])
        return of.OPO(self.layout, losses, dynamics, eta=0.3, beta_loss=0.5, beta_dynamics=0.1)


def test_a_context_buffer_that_is_used_again_changes_nothing():
    own = of.simulate(_OneBuffer(False), _OneBuffer(False).agent(), 40, seed=1)
    for threads in (1, 2):
        of.set_threads(threads)
        try:
            shared = of.simulate(_OneBuffer(True), _OneBuffer(True).agent(), 40, seed=1)
        finally:
            of.set_threads(None)
        assert shared.value.tobytes() == own.value.tobytes()
        assert shared.context_index.tolist() == own.context_index.tolist()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_model_that_is_wrong_at_a_coming_context_stops_its_own_episode(threads):
    layout = of.Layout([1, 3, 3], n_actions=2)
    rng = np.random.default_rng(0)
    losses = rng.random(layout.shape)
    arrays = [rng.dirichlet(np.ones(3), size=(n, 2)) for n in (1, 3)]

    class Endless:
        layout = of.Layout([1, 3, 3], n_actions=2)

        def sample_context(self, rng):
            return float(rng.random())

        def mdp(self, context):
            return of.LayeredMDP(self.layout, losses, arrays)

    def dynamics(context):
        return arrays if context <= 0.97 else [2 * arrays[0], arrays[1]]

    streams = Streams(0, 3)
    wrong = next(t for t in range(200) if streams.generator("contexts", t).random() > 0.97)
    agent = of.OPO(
        layout, of.FiniteLossClass([lambda c: losses]), of.FiniteDynamicsClass([dynamics]), eta=0.1, beta_loss=0.1, beta_dynamics=0.1
    )
    of.set_threads(threads)
    try:
        with pytest.raises(of.OpoError, match="sums to 2") as caught:
            of.simulate(Endless(), agent, 200, seed=0)
    finally:
        of.set_threads(None)
    assert agent.episode == wrong > 16
    assert f"in episode {wrong + 1} of 200" in caught.value.__notes__[0]
