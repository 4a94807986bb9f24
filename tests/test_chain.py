"""The chain engine against a literal implementation of Algorithm 1, and the same bits whatever the form, memory, order and threads."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import layer_sizes, random_mask, random_model, random_policy, seeded

import opo_fast as of
from opo_fast import reference
from opo_fast.algorithm import chain as chain_module
from opo_fast.algorithm import engine as engine_module
from opo_fast.algorithm import forms as forms_module
from opo_fast.algorithm.engine import ChainEngine
from opo_fast.algorithm.history import Fits, History
from opo_fast.algorithm.rules import ChainRule, opo_rule, reference_chain
from opo_fast.model import operations
from opo_fast.model import transitions as transitions_module

SETTINGS = {"eta": 0.5, "beta_loss": 0.4, "beta_dynamics": 0.02}
STEPS = 200

# Sizes, actions and storage by which the engine picks its form: small layouts are packed, larger ones run one context
# at a time; "large" models use several threads inside a layer.
SMALL = ([1, 4, 5, 3], 3)
MIDDLE = ([1, 30, 31, 25], 4)
FORMS = {
    "packed dense": (*SMALL, "dense", False),
    "packed csr": (*SMALL, "csr", False),
    "packed stationary": ([1, 5, 5, 5], 3, "stationary", False),
    "single dense": (*MIDDLE, "dense", False),
    "single csr": (*MIDDLE, "csr", False),
    "single stationary csr": ([1, 40, 40, 40], 3, "stationary csr", False),
    "large dense": (*MIDDLE, "dense", True),
    "large csr": (*MIDDLE, "csr", True),
}


def five(form, seed=0, masked=True):
    """Five dynamics of one layout and mask, and five losses: fits 0..4 of each at one context."""
    sizes, n_actions, storage, _ = FORMS[form]
    rng = np.random.default_rng(100 + seed)
    n_states = sum(sizes)
    mask = random_mask(np.random.default_rng(7), (sizes[-1] if storage.startswith("stationary") else n_states, n_actions))
    mask = mask if masked else None
    models = [random_model(rng, sizes, n_actions, storage, mask=mask, density=0.6) for _ in range(5)]
    return models, [rng.random(models[0].layout.shape) for _ in range(5)]


def switching(n=STEPS, seed=3, fits=5):
    """Pairs (loss fit, dynamics fit) of n steps: all five early, long stays, fast changes, returns after long absence."""
    rng = np.random.default_rng(seed)
    dynamics = [0, 1, 0, 2, 3, 3, 4]
    while len(dynamics) < n:
        dynamics += [int(rng.integers(fits - 1))] * int(rng.choice([1, 1, 2, 7, 40]))
    dynamics = dynamics[:n]
    if n > 20:
        dynamics[-5] = 4
    return [(int(rng.integers(fits)) if k % 3 else 0, fit) for k, fit in enumerate(dynamics)]


@pytest.fixture
def large(monkeypatch):
    """Treat all models of the test as large enough for threads that wait for each other after each layer."""
    return lambda: monkeypatch.setattr(transitions_module, "_WORTH_A_BARRIER", {0: 1, 1: 1})


@pytest.fixture(scope="module")
def literal():
    """A literal implementation of Algorithm 1; the results, and the arrays of models, are cached."""
    done = {}

    def policy(key, history, **parameters):
        if key not in done:
            known = {}
            original = transitions_module.Transitions.arrays

            def arrays(transitions):
                if transitions not in known:
                    known[transitions] = original(transitions)
                return known[transitions]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(transitions_module.Transitions, "arrays", arrays)
                done[key] = of.policy_chain(history, backend="numpy", **parameters)
        return done[key]

    return policy


@pytest.mark.parametrize("form", FORMS)
def test_two_hundred_steps_that_switch_among_five_models(form, large, literal, set_threads):
    sizes, n_actions, storage, is_large = FORMS[form]
    if is_large:
        large()
        set_threads(3)
    models, losses = five(form)
    # The losses of a fit are the same array each time, so that the chain recognises it.
    pairs = {(f, p): models[p].with_losses(losses[f]) for f in range(5) for p in range(5)}
    history = [pairs[pair] for pair in switching()]
    mine = of.policy_chain(history, **SETTINGS)
    expected = literal((tuple(sizes), n_actions, storage), history, **SETTINGS)
    assert np.abs(expected - models[0].uniform_policy()).max() > 0.1, "the chain must have moved for the test to say anything"
    np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-10)
    assert (models[0].transitions.threads > 1) == is_large
    assert (models[0].transitions.parts > 1) == (form == "large csr")
    engine = ChainEngine(models[0].layout, models[0].action_mask, opo_rule(models[0].layout, 1, 1, 1), None, 0)
    assert engine.packed == form.startswith("packed")


@given(st.data())
@settings(max_examples=25)
def test_random_chains_equal_the_reference(data):
    """Any small shape, H = 1, one action and one-state layers included, under either form."""
    storage = data.draw(st.sampled_from(["dense", "csr", "stationary", "stationary csr"]))
    sizes = data.draw(layer_sizes(stationary=storage.startswith("stationary"), max_size=6))
    n_actions = data.draw(st.integers(1, 4))
    rng = seeded(data.draw)
    shape = (sizes[-1] if storage.startswith("stationary") else sum(sizes), n_actions)
    mask = random_mask(rng, shape) if data.draw(st.booleans()) else None
    models = [random_model(rng, sizes, n_actions, storage, mask=mask, density=0.5) for _ in range(3)]
    history = [models[i] for i in data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=12))]
    parameters = {
        "eta": data.draw(st.sampled_from([0.0, 0.1, 3.0])),
        "beta_loss": data.draw(st.sampled_from([0.0, 0.3, 50.0])),
        "beta_dynamics": data.draw(st.sampled_from([0.0, 0.01, 0.5])),
    }
    expected = of.policy_chain(history, backend="numpy", **parameters)
    with pytest.MonkeyPatch.context() as patch:
        for packed_most in (2048, -1):
            patch.setattr(engine_module, "PACKED_MOST", packed_most)
            np.testing.assert_allclose(of.policy_chain(history, **parameters), expected, rtol=0, atol=1e-12)


# -- the engine --------------------------------------------------------------------------------------------------------


class Source:
    """Contexts 0..n-1 with five dynamics and five losses each."""

    def __init__(self, form, n_contexts, masked=True):
        made = [five(form, seed, masked) for seed in range(n_contexts)]
        self.models = [models for models, _ in made]
        self.rows = [[models[0].with_losses(values).row_losses for values in losses] for models, losses in made]
        self.layout, self.mask = self.models[0][0].layout, self.models[0][0].action_mask

    def losses(self, fit, context):
        return self.rows[context][fit]

    def transitions(self, fit, context):
        return self.models[context][fit].transitions


def history_of(pairs):
    history = History()
    for loss_fit, fit in pairs:
        history.append(Fits(loss_fit, fit))
    return history


RULES = {
    "opo": {"visits": "latest", "greedy": False},
    "contemporaneous greedy": {"visits": "contemporaneous", "greedy": True},
    "actions greedy": {"visits": "actions", "greedy": True},
    "latest greedy": {"visits": "latest", "greedy": True},
    "contemporaneous": {"visits": "contemporaneous", "greedy": False},
}


def rule_of(layout, name="opo"):
    return ChainRule(0.4, np.linspace(0.04, 0.02, layout.horizon), 2.0 * layout.horizon, eta=0.5, **RULES[name])


def play(source, pairs, *, memory=1 << 28, order=None, prefetch=0, rule="opo"):
    """Bytes of all policies that an agent would play: context order[t] at step t, with models appended one by one."""
    order = order or [t % len(source.models) for t in range(len(pairs))]
    engine = ChainEngine(source.layout, source.mask, rule_of(source.layout, rule), source, memory)
    history, asked = History(), []
    for t, (pair, context) in enumerate(zip(pairs, order, strict=True)):
        history.append(Fits(*pair))
        if prefetch:
            engine.prefetch(order[t : t + prefetch], history, t)
        chain, lane = engine.chain(context, history, t)
        asked.append(chain.policy(lane).tobytes())
    return asked, engine


BIT_FORMS = ["packed csr", "single dense", "single csr", "large dense", "large csr"]


@pytest.mark.parametrize("form", BIT_FORMS)
def test_same_bits_whatever_the_memory_prefetch_and_threads(form, large, set_threads):
    if FORMS[form][3]:
        large()
    source = Source(form, 4)
    # Threads that wait for each other after each layer take long on a busy machine.
    steps = 20 if FORMS[form][3] else 60
    pairs = switching(steps, seed=5)
    order = [int(c) for c in np.random.default_rng(1).integers(4, size=steps)]
    set_threads(1)
    expected, _ = play(source, pairs, order=order)
    assert len(set(expected)) > steps // 2
    for threads, memory, prefetch in [(1, 1 << 28, 9), (2, 0, 0), (3, 40_000, 3), (1, 0, 2), (2, 200_000, 5)]:
        set_threads(threads)
        got, _ = play(source, pairs, order=order, memory=memory, prefetch=prefetch)
        assert got == expected, (threads, memory, prefetch)


@pytest.mark.parametrize("form", ["packed csr", "single csr", "single dense", "large csr"])
@pytest.mark.parametrize("rule", RULES)
def test_dropped_policies_and_restarts_keep_the_bits(form, rule, large, monkeypatch):
    """A store of two policies, and a memory of few steps: policies are dropped, and a returning dynamics restarts."""
    if FORMS[form][3]:
        large()
    source = Source(form, 1)
    pairs = [(0, 0)] * 9 + [(1, 1)] * 9 + [(1, 0), (2, 2), (1, 1)] + [(0, 0)] * 9 + [(3, 3), (0, 4), (0, 3), (4, 2), (0, 0)] * 3
    expected, roomy = play(source, pairs, rule=rule)
    monkeypatch.setattr(chain_module, "RECENT", 3)
    monkeypatch.setattr(chain_module, "SMALL_STORE", 0)
    begun = []
    original = chain_module.Chain._restart
    monkeypatch.setattr(chain_module.Chain, "_restart", lambda chain: begun.append(1) or original(chain))
    got, tight = play(source, pairs, rule=rule, memory=0)
    assert got == expected
    if RULES[rule]["visits"] == "latest":
        assert begun, "no restart happened"
        assert tight.planned > roomy.planned
    # With the whole history at once, the engine knows the coming dynamics.
    begun.clear()
    engine = ChainEngine(source.layout, source.mask, rule_of(source.layout, rule), source, 0)
    history = history_of(pairs)
    chain, lane = engine.chain(0, history, len(pairs) - 1)
    assert chain.policy(lane).tobytes() == expected[-1]
    assert len(chain.policies.lines) <= 4


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("form", ["packed dense", "single csr", "large dense"])
def test_every_rule_equals_its_reference(form, rule, large):
    if FORMS[form][3]:
        large()
    source = Source(form, 1, masked=form != "large dense")
    pairs = switching(30, seed=2)
    models, losses = five(form, masked=form != "large dense")
    history = [models[p].with_losses(losses[f]) for f, p in pairs]
    expected = reference_chain(history, rule_of(source.layout, rule))
    engine = ChainEngine(source.layout, source.mask, rule_of(source.layout, rule), source, 1 << 20)
    chain, lane = engine.chain(0, history_of(pairs), len(pairs))
    np.testing.assert_allclose(models[0].transitions.scatter(chain.policy(lane).copy()), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("form", ["packed dense", "packed csr", "single dense", "single csr", "large csr"])
def test_greedy_rules_play_the_lowest_of_equal_actions(form, large):
    """With equal losses and saturated bonuses all Q of a state are equal, and the lowest allowed action has probability 1."""
    if FORMS[form][3]:
        large()
    source = Source(form, 2)
    source.losses = lambda fit, context: np.full(int(source.mask.sum()), 0.5)
    rule = ChainRule(2e9, np.full(source.layout.horizon, 2e9), 2.0 * source.layout.horizon, "contemporaneous", greedy=True)
    engine = ChainEngine(source.layout, source.mask, rule, source, 1 << 20)
    history = history_of(switching(6))
    engine.prefetch([0, 1], history, 6)
    lowest = np.eye(source.layout.n_actions)[source.mask.argmax(axis=1)]
    for context in (0, 1):
        chain, lane = engine.chain(context, history, 6)
        policy = source.models[context][0].transitions.scatter(chain.policy(lane).copy())
        np.testing.assert_array_equal(policy, lowest)


@pytest.mark.parametrize("n_contexts", range(1, 9))
def test_neighbours_in_a_pack_do_not_matter(n_contexts):
    source = Source("packed dense", n_contexts)
    history = history_of(switching(40, seed=8))

    def engine():
        return ChainEngine(source.layout, source.mask, rule_of(source.layout), source, 1 << 28)

    together = engine()
    together.prefetch(range(n_contexts), history, 40)
    assert len({id(together.chain(c, history, 40)[0]) for c in range(n_contexts)}) == 1
    for context in range(n_contexts):
        alone, lane = engine().chain(context, history, 40)
        chain, other = together.chain(context, history, 40)
        assert chain.policy(other).tobytes() == alone.policy(lane).tobytes()
        assert chain.saturation(other) == alone.saturation(lane)


@pytest.mark.parametrize("form", ["packed dense", "single dense", "single csr"])
def test_same_bits_in_one_call_and_step_by_step(form):
    source = Source(form, 1)
    pairs = switching(50, seed=4)
    asked, _ = play(source, pairs)
    engine = ChainEngine(source.layout, source.mask, rule_of(source.layout), source, 1 << 28)
    chain, lane = engine.chain(0, history_of(pairs), 49)
    assert chain.policy(lane).tobytes() == asked[-1]


@pytest.mark.parametrize("form", ["single csr", "large csr"])
def test_chunks_of_states_do_not_change_bits(form, large, monkeypatch):
    if FORMS[form][3]:
        large()
    source = Source(form, 1)
    expected, _ = play(source, switching(20))
    for chunk in (8, 24, 64):
        monkeypatch.setattr(forms_module, "chunk_of", lambda model, chunk=chunk: chunk)
        assert play(source, switching(20))[0] == expected


def test_many_contexts_are_dropped_within_the_budget():
    source = Source("single csr", 3)
    order = [t % 3 for t in range(30)]
    _, engine = play(source, switching(30), order=order, memory=1)
    assert len(engine._chains) == 1
    expected, roomy = play(source, switching(30), order=order)
    assert len(roomy._chains) == 3
    assert sum(chain.nbytes for chain, _ in roomy._chains.values()) < 1 << 28
    assert engine.planned > roomy.planned == 29 + 28 + 27
    assert play(source, switching(30), order=order, memory=1)[0] == expected


def test_history_counts_steps_of_equal_fits():
    history = history_of([(0, "a"), (0, "a"), (1, "a"), (1, "b"), (0, "a")])
    assert len(history) == 5
    assert [history[k][:2] for k in range(5)] == [(0, "a"), (0, "a"), (1, "a"), (1, "b"), (0, "a")]
    assert [history.equal_steps(k, 5) for k in range(5)] == [2, 1, 1, 1, 1]
    assert history.equal_steps(0, 1) == 1
    assert history.dynamics(0, 3) == {"a"}
    assert history.dynamics(2, 5) == {"a", "b"}
    assert history.dynamics(3, 3) == set()


# -- by hand -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_three_steps_by_hand(backend):
    """One state, two actions, f = (1/2, 1/4), beta_loss = 1/2: the bonus is (1/4)/(1 + N), N the past probabilities."""
    model = of.LayeredMDP(of.Layout([1], 2), [[0.5, 0.25]], [])
    eta = 2.0
    sums, visits, policy = [0.0, 0.0], [0.0, 0.0], [0.5, 0.5]
    for steps in (1, 2, 3):
        for a, f in enumerate((0.5, 0.25)):
            sums[a] += max(0.0, f - min(1.0, 0.25 / (1 + visits[a])))
        for a in range(2):
            visits[a] += policy[a]
        odds = math.exp(-eta * (sums[0] - sums[1]))
        policy = [odds / (1 + odds), 1 / (1 + odds)]
        mine = of.policy_chain([model] * steps, eta=eta, beta_loss=0.5, beta_dynamics=0.0, backend=backend)
        np.testing.assert_allclose(mine, [policy], rtol=0, atol=1e-15)
    # The first step: Q = (1/4, 0); the second: N = (1/2, 1/2), bonus 1/6, Q = (1/3, 1/12).
    two = of.policy_chain([model] * 2, eta=eta, beta_loss=0.5, beta_dynamics=0.0, backend=backend)
    assert math.log(two[0, 1] / two[0, 0]) == pytest.approx(float(eta * (Fraction(1, 4) + Fraction(1, 3) - Fraction(1, 12))), abs=1e-14)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("packed_most", [2048, -1])
def test_past_policies_are_visited_under_the_newest_dynamics(backend, packed_most, monkeypatch):
    """Dynamics A sends half to each of two states, dynamics B all to the first: N^2 is B's, also for policy 1."""
    monkeypatch.setattr(engine_module, "PACKED_MOST", packed_most)
    layout = of.Layout([1, 2], 2)
    losses = [[0.0, 0.0], [0.75, 0.5], [0.75, 0.5]]
    a = of.LayeredMDP(layout, losses, [[[[1.0, 0.0], [0.0, 1.0]]]])
    b = of.LayeredMDP(layout, losses, [[[[1.0, 0.0], [1.0, 0.0]]]])
    eta, beta = 1.0, 1.0
    # First step, N = 0, bonus 1/2: Q of the last layer (1/4, 0).
    # Second step under B: N = 1/2 for each pair of the first state, 0 for the second. Bonuses 1/3 and 1/2.
    first_state = Fraction(1, 4) + (Fraction(3, 4) - Fraction(1, 3)) - (Fraction(1, 2) - Fraction(1, 3))
    second_state = Fraction(1, 4) + Fraction(1, 4)
    policy = of.policy_chain([a, b], eta=eta, beta_loss=beta, beta_dynamics=0.0, backend=backend)
    assert math.log(policy[1, 1] / policy[1, 0]) == pytest.approx(float(first_state), abs=1e-14)
    assert math.log(policy[2, 1] / policy[2, 0]) == pytest.approx(float(second_state), abs=1e-14)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_dynamics_bonus_has_weight_2h_and_q_is_clipped_at_0(backend):
    """Two layers of one state: b = min(1, beta_P / 2) 2H = 4/8 = 1/2 at first; f = (1, 0): Q of the last layer (1/2, 0)."""
    model = of.LayeredMDP(of.Layout([1, 1], 2), [[1.0, 0.0], [1.0, 0.0]], [[[[1.0], [1.0]]]])
    policy = of.policy_chain([model], eta=1.0, beta_loss=0.0, beta_dynamics=0.25, backend=backend)
    assert math.log(policy[1, 1] / policy[1, 0]) == pytest.approx(0.5, abs=1e-15)
    # V of the last layer is 1/4: Q of the first is (1/2 + 1/4, max(0, 1/4 - 1/2)).
    assert math.log(policy[0, 1] / policy[0, 0]) == pytest.approx(0.75, abs=1e-15)


def test_returning_dynamics_are_known_by_identity():
    """Equal copies of a dynamics and one shared object give the same policies."""
    models, losses = five("packed dense")
    shared = [models[k % 2].with_losses(losses[k % 3]) for k in range(30)]
    copies = []
    for k in range(30):
        model = models[k % 2]
        copies.append(of.LayeredMDP(model.layout, losses[k % 3], model.transitions.arrays(), model.action_mask))
    assert of.policy_chain(shared, **SETTINGS).tobytes() == of.policy_chain(copies, **SETTINGS).tobytes()


def test_one_agent_asked_by_several_threads_at_once():
    layout = of.Layout([1] + [120] * 4, n_actions=4)
    rng = np.random.default_rng(0)
    model = random_model(rng, layout.layer_sizes, 4, "dense")
    losses, dynamics = of.FiniteLossClass([lambda c: model.losses]), of.FiniteDynamicsClass([lambda c: model.transitions])

    def agent():
        learner = of.OPO(layout, losses, dynamics, eta=0.1, beta_loss=0.5, beta_dynamics=0.1)
        for _ in range(30):
            learner.observe(of.rollout(model, model.uniform_policy(), np.random.default_rng(1), context=0))
        return learner

    expected, asked = agent().policy(0).tobytes(), agent()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: asked.policy(0).tobytes(), range(8))) == {expected}


def test_a_chain_that_was_interrupted_halfway_starts_anew(monkeypatch):
    source = Source("single dense", 1)
    pairs = switching(40)
    expected, _ = play(source, pairs)
    engine = ChainEngine(source.layout, source.mask, rule_of(source.layout), source, 1 << 28)
    run = forms_module.SingleChain._run
    calls = []

    def interrupted(chain, *arguments):
        run(chain, *arguments)
        calls.append(1)
        if len(calls) == 7:
            raise KeyboardInterrupt  # between the kernel and the count of the step

    monkeypatch.setattr(forms_module.SingleChain, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.chain(0, history_of(pairs), 39)
    chain, lane = engine.chain(0, history_of(pairs), 39)
    assert chain.policy(lane).tobytes() == expected[-1]


@pytest.mark.parametrize("storage", ["dense", "csr", "stationary", "stationary csr"])
@pytest.mark.parametrize("n_actions", [1, 3, 4])
def test_past_policies_pushed_through_a_dynamics_at_once_have_the_bits_of_one_after_the_other(storage, n_actions, large, set_threads):
    """Full and partial batches of 8 and 32, rows that do not fill a vector, and policies with actions of probability 0."""
    large()
    rng = np.random.default_rng(1)
    for sizes in ([1, 1, 1], [1, 6, 6, 6], [1, 17, 17]) if storage.startswith("stationary") else ([1, 2, 11, 9, 1], [1, 40, 7]):
        for masked in (False, True):
            model = random_model(rng, sizes, n_actions, storage, masked=masked, density=0.6)
            t, engine = model.transitions, ChainEngine(model.layout, model.action_mask, rule_of(model.layout), None, 0)
            chain = forms_module.SingleChain(engine, [0])
            policies = np.array([random_policy(rng, model, deterministic=k % 2 == 0) for k in range(71)])
            chain.policies.lines = np.ascontiguousarray([t.gather(policy) for policy in policies])
            before = rng.random(t.n_rows)
            for first, count in ((0, 1), (0, 2), (3, 8), (3, 9), (5, 16), (5, 17), (0, 32), (2, 33), (1, 49), (0, 71)):
                expected = before.copy()
                for k in range(first, first + count):
                    operations.visit_once(t, chain.policies.lines, k, expected, operations.Scratch(t))
                literal = before + sum(t.gather(reference.occupancy(model, policy)) for policy in policies[first : first + count])
                np.testing.assert_allclose(expected, literal, rtol=1e-12, atol=1e-13)
                for threads in (1, 2, 3):
                    set_threads(threads)
                    counts = before.copy()
                    chain._visit(t, counts, first, count)
                    assert counts.tobytes() == expected.tobytes(), (sizes, masked, first, count, threads)
