"""Adapters and tables: published values, round trips, refused input."""

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast.envs import TabularMDP, expected_rewards, from_gymnasium, from_mdptoolbox, from_pairs, from_quantecon, make, rewards_to_losses


def optimum(table, horizon):
    return float(table.reward_value(of.solve(table.layered(horizon)).v[0], horizon))


def uniform(table, horizon):
    m = table.layered(horizon)
    return float(table.reward_value(of.evaluate(m, m.uniform_policy()).v[0], horizon))


def at(table, start):
    """The same table from another start state."""
    span = (table.reward_map.low, table.reward_map.high)
    return TabularMDP(table.P, table.rewards, start, table.action_mask, reward_range=span)


# -- Gymnasium ------------------------------------------------------------------------------------------------------

LAKE = [
    ({}, {6: 3 / 729, 10: 0.0414062896916121, 20: 0.199132700834863, 100: 0.74419028782927}),
    ({"success_rate": 0.8}, {6: 0.8**5, 10: 0.689569792, 20: 0.784610576035938, 100: 0.893953899522463}),
    ({"success_rate": 0.5}, {6: 0.03125, 100: 0.793856289689}),
    ({"map_name": "8x8"}, {100: 0.640719270270889, 200: 0.913220150202}),
    ({"is_slippery": False}, {5: 0.0, 6: 1.0}),
]


@pytest.mark.parametrize(("options", "values"), LAKE)
def test_frozen_lake(options, values):
    pytest.importorskip("gymnasium")
    table = from_gymnasium("FrozenLake-v1", **options)
    for horizon, value in values.items():
        assert optimum(table, horizon) == pytest.approx(value, abs=1e-9)


def test_frozen_lake_tends_to_fourteen_seventeenths():
    pytest.importorskip("gymnasium")
    assert optimum(from_gymnasium("FrozenLake-v1"), 3000) == pytest.approx(14 / 17, abs=1e-9)


@pytest.mark.parametrize("rate", [0.2, 1 / 3, 0.5, 0.8, 1.0])
def test_the_uniform_policy_does_not_depend_on_the_success_rate(rate):
    pytest.importorskip("gymnasium")
    table = from_gymnasium("FrozenLake-v1", success_rate=rate)
    assert uniform(table, 6) == pytest.approx(0.000732421875, abs=1e-12)
    assert uniform(table, 100) == pytest.approx(0.013939795959, abs=1e-12)


TEXT = [
    ("Taxi-v4", {}, {20: 7.93, 200: 7.93}),
    ("Taxi-v4", {"is_rainy": True}, {200: 3.954574516550829}),
    ("CliffWalking-v1", {}, {13: -13.0, 20: -13.0, 100: -13.0}),
    ("CliffWalkingSlippery-v1", {}, {20: -19.9995630466858, 50: -47.1022302002147}),
]


@pytest.mark.parametrize(("name", "options", "values"), TEXT)
def test_taxi_and_cliff(name, options, values):
    pytest.importorskip("gymnasium")
    table = from_gymnasium(name, **options)
    for horizon, value in values.items():
        assert optimum(table, horizon) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize(("name", "horizon", "wrong"), [("Taxi-v4", 200, 1778.62), ("CliffWalking-v1", 100, -100.0)])
def test_ignoring_terminated_would_give_another_optimum(name, horizon, wrong):
    gymnasium = pytest.importorskip("gymnasium")
    P = gymnasium.make(name).unwrapped.P
    endless = {s: {a: [(p, t, r, False) for p, t, r, _ in row] for a, row in actions.items()} for s, actions in P.items()}
    table = from_gymnasium(endless, start=gymnasium.make(name).unwrapped.initial_state_distrib)
    assert optimum(table, horizon) == pytest.approx(wrong, abs=0.005)
    assert abs(optimum(from_gymnasium(name), horizon) - wrong) > 50


def test_taxi_values_range_over_its_starts():
    pytest.importorskip("gymnasium")
    table = from_gymnasium("Taxi-v4")
    v = table.reward_map.value(of.solve(table.layered(20)).v[1:502], 20)
    starts = np.flatnonzero(table.start)
    assert starts.size == 300
    assert (v[starts].min(), v[starts].max()) == (pytest.approx(3, abs=1e-9), pytest.approx(15, abs=1e-9))


def test_a_table_by_hand_duplicates_add_up_zeros_go_and_ends_are_cut():
    P = {
        0: {0: [(0.25, 1, 1.0, False), (0.25, 1, 3.0, False), (0.5, 0, 0.0, True), (0.0, 1, 100.0, False)]},
        1: {0: [(1.0, 0, 5.0, False)]},
    }
    table = from_gymnasium(P)
    assert table.state_names == ("0", "1", "end")
    assert table.P.toarray().tolist() == [[0, 0.5, 0.5], [1, 0, 0], [0, 0, 1]]
    assert table.P.nnz == 4
    assert table.rewards.tolist() == [[1.0], [5.0], [0.0]]
    assert (table.reward_map.low, table.reward_map.high) == (0.0, 5.0)
    assert optimum(table, 2) == 1 + 0.5 * 5
    assert optimum(table, 3) == 1 + 0.5 * 5 + 0.5 * 1


GOOD = {0: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 0.0, False)]}, 1: {0: [(1.0, 0, 0.0, False)], 1: [(1.0, 1, 1.0, True)]}}


def broken(s, a, row):
    return {k: {b: (row if (k, b) == (s, a) else old) for b, old in actions.items()} for k, actions in GOOD.items()}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (broken(1, 0, [(0.6, 0, 0.0, False), (0.5, 1, 0.0, False)]), r"state 1, action 0: the probabilities sum to 1\.1"),
        (broken(0, 1, [(1.0, 2, 0.0, False)]), "state 0, action 1: next state is 2"),
        (broken(0, 1, [(1.0, -1, 0.0, False)]), "state 0, action 1: next state is -1"),
        (broken(0, 1, [(1.0, 0, 0.0)]), r"state 0, action 1: \(1\.0, 0, 0\.0\) is not"),
        (broken(0, 1, []), "state 0, action 1"),
        (broken(0, 1, [(float("nan"), 0, 0.0, False)]), "probability of next state 0 is nan"),
        (broken(0, 1, [(1.0, 0, float("inf"), False)]), "reward of next state 0 is inf"),
        ({0: GOOD[0], 1: {0: GOOD[1][0]}}, "state 1, action 1 is missing"),
        ({0: GOOD[0], 2: GOOD[1]}, "entry 1 is missing"),
        ({}, "empty"),
        (7, "int"),
    ],
)
def test_malformed_gymnasium_tables(table, words):
    with pytest.raises(of.OpoError, match=words):
        from_gymnasium(table)


def test_unknown_ids_and_options():
    pytest.importorskip("gymnasium")
    with pytest.raises(of.OpoError, match="NoSuchLake-v1"):
        from_gymnasium("NoSuchLake-v1")
    with pytest.raises(of.OpoError, match="FrozenLake-v1"):
        from_gymnasium("FrozenLake-v1", depth=3)
    with pytest.raises(of.OpoError, match="without a table P"):
        from_gymnasium("CartPole-v1")


# -- MDPtoolbox -----------------------------------------------------------------------------------------------------


def forest(p=0.1, r1=4.0, r2=2.0):
    P = np.array([[[p, 1 - p, 0], [p, 0, 1 - p], [p, 0, 1 - p]], [[1, 0, 0]] * 3])
    return P, np.array([[0.0, 0.0], [0.0, 1.0], [r1, r2]])


def test_forest_discounted_as_published_and_undiscounted():
    P, R = forest()
    for layout in (P, [sp.csr_matrix(block) for block in P]):
        table = from_mdptoolbox(layout, R)
        assert [optimum(at(table, s), 3) for s in range(3)] == [pytest.approx(v, abs=1e-9) for v in (3.33, 6.93, 10.93)]
        small = table.discounted(0.9)
        for h, values in ((1, (0, 1, 4)), (2, (0.81, 3.24, 7.24)), (3, (2.6973, 5.9373, 9.9373))):
            assert [optimum(at(small, s), h) for s in range(3)] == [pytest.approx(v, abs=1e-9) for v in values]
    m = at(from_mdptoolbox(P, R), 1).layered(3)
    policy = of.solve(m).policy.argmax(axis=1)
    assert (policy[0], policy[1:4].tolist(), policy[4:7].tolist()) == (0, [0, 0, 0], [0, 1, 0])  # as published


def test_the_package_gives_the_same_tables():
    example = pytest.importorskip("mdptoolbox.example")
    for dense in (True, False):
        P, R = example.forest(S=3, r1=4, r2=2, p=0.1, is_sparse=not dense)
        assert optimum(from_mdptoolbox(P, R), 3) == pytest.approx(3.33, abs=1e-9)


def test_rewards_of_transitions_are_averaged():
    P, _ = forest()
    R3 = np.random.default_rng(0).random((2, 3, 3))
    expected = (P * R3).sum(axis=2).T
    by_array = from_mdptoolbox(P, R3)
    by_lists = from_mdptoolbox([sp.csr_matrix(b) for b in P], [sp.csr_matrix(b) for b in R3])
    by_vectors = from_mdptoolbox(P, [np.array([1.0, 2.0, 3.0]), np.array([4.0, 5.0, 6.0])])
    assert np.abs(by_array.rewards - expected).max() <= 1e-15
    assert np.abs(by_lists.rewards - expected).max() <= 1e-15
    assert by_vectors.rewards.tolist() == [[1, 4], [2, 5], [3, 6]]
    assert from_mdptoolbox(P, np.array([1.0, 2.0, 3.0])).rewards.tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("P", "R", "words"),
    [
        (np.ones((2, 3, 2)), np.zeros((3, 2)), r"P\[0\] has shape \(3, 2\)"),
        ([np.eye(3), np.eye(2)], np.zeros((3, 2)), r"P\[1\] has shape \(2, 2\)"),
        ([], np.zeros((3, 2)), "P is empty"),
        (sp.eye_array(3), np.zeros((3, 2)), "single sparse"),
        (np.stack([np.eye(3)] * 2), np.zeros((2, 5)), "R has shape"),
        (np.stack([np.eye(3) * 1.1, np.eye(3)]), np.zeros((3, 2)), "state 0, action 0: the row sums to 1.1"),
        (np.stack([np.eye(3)] * 2), np.zeros((3, 3, 3)), r"R has shape \(3, 3, 3\)"),
    ],
)
def test_malformed_toolbox_tables(P, R, words):
    with pytest.raises(of.OpoError, match=words):
        from_mdptoolbox(P, R)


# -- quantecon and pairs --------------------------------------------------------------------------------------------

PAIRS_S, PAIRS_A = [0, 0, 0, 0, 1, 1, 1, 2, 2, 3], [0, 1, 2, 3, 0, 1, 2, 0, 1, 0]
PUTERMAN_R = np.array([0, -1, -2, -5, 5, 0, -3, 6, -1, 5], float)


def puterman_q():
    Q = np.zeros((10, 4))
    for i, (s, a) in enumerate(zip(PAIRS_S, PAIRS_A, strict=True)):
        for demand, p in enumerate((1 / 4, 1 / 2, 1 / 4)):
            Q[i, max(s + a - demand, 0)] += p
    return Q


@pytest.mark.parametrize("sparse", [False, True])
def test_puterman_inventory_in_exact_sixteenths(sparse):
    Q = sp.csr_array(puterman_q()) if sparse else puterman_q()
    table = from_pairs(PUTERMAN_R, Q, PAIRS_S, PAIRS_A)
    assert [optimum(at(table, s), 3) * 16 for s in range(4)] == [67, 129, 194, 227]
    assert [optimum(at(table, s), 2) for s in range(4)] == [2, 25 / 4, 10, 21 / 2]
    assert [optimum(at(table, s), 1) for s in range(4)] == [0, 5, 6, 5]
    assert [of.solve(at(table, s).layered(3)).v[0] for s in range(4)] == pytest.approx(
        [1.25568182, 0.90340909, 0.53409091, 0.34659091], abs=1e-8
    )
    order = np.random.default_rng(1).permutation(10)
    shuffled = from_pairs(PUTERMAN_R[order], puterman_q()[order], np.array(PAIRS_S)[order], np.array(PAIRS_A)[order])
    assert optimum(shuffled, 3) * 16 == 67


def test_quantecon_in_both_forms():
    markov = pytest.importorskip("quantecon.markov")
    pairs = markov.DiscreteDP(PUTERMAN_R, puterman_q(), 1.0, PAIRS_S, PAIRS_A)
    sparse = markov.DiscreteDP(PUTERMAN_R, sp.csr_matrix(puterman_q()), 1.0, PAIRS_S, PAIRS_A)
    R, Q = np.full((4, 4), -np.inf), np.full((4, 4, 4), 0.25)
    R[PAIRS_S, PAIRS_A], Q[PAIRS_S, PAIRS_A] = PUTERMAN_R, puterman_q()
    product = markov.DiscreteDP(R, Q, 1.0)
    for ddp in (pairs, sparse, product):
        table = from_quantecon(ddp)
        assert table.action_mask.sum() == 10
        assert [optimum(at(table, s), 3) * 16 for s in range(4)] == pytest.approx([67, 129, 194, 227], abs=1e-12)
    discounted = from_quantecon(markov.DiscreteDP(R, Q, 0.9))
    vs, _ = markov.backward_induction(markov.DiscreteDP(R, Q, 0.9), 5)
    assert optimum(discounted, 5) == pytest.approx(vs[0][0], abs=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"s_indices": [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]}, "states without an action: 3|listed twice"),
        ({"a_indices": [0, 1, 2, 3, 0, 1, 1, 0, 1, 0]}, "state 1, action 1 is listed twice, as pairs 5 and 6"),
        ({"s_indices": [0, 0, 0, 0, 1, 1, 1, 2, 2, 9]}, "pair 9 is state 9"),
        ({"a_indices": [0, 1, 2, 3, 0, 1, 2, 0, 1, -1]}, "pair 9 is state 3, action -1"),
        ({"s_indices": [0.5] * 10}, "s_indices has shape"),
        ({"R": [0.0] * 9}, "have shapes"),
    ],
)
def test_malformed_pairs(change, words):
    given = {"R": PUTERMAN_R, "Q": puterman_q(), "s_indices": PAIRS_S, "a_indices": PAIRS_A, **change}
    with pytest.raises(of.OpoError, match=words):
        from_pairs(**given)


# -- plain arrays -----------------------------------------------------------------------------------------------------


def small(seed=0, n=4, a=3, sparse=False):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.ones(n), size=(n, a))
    mask = rng.random((n, a)) < 0.7
    mask[np.arange(n), rng.integers(a, size=n)] = True
    return TabularMDP(
        sp.csr_array(P.reshape(-1, n)) if sparse else P,
        rng.normal(size=(n, a)),
        rng.dirichlet(np.ones(n)),
        mask,
        state_names=[f"state {s}" for s in range(n)],
        action_names=list("abcdefgh"[:a]),
        name="small",
    )


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_round_trips_keep_values_masks_start_and_names(tmp_path_factory, seed, n, a, sparse):
    table = small(seed, n, a, sparse)
    path = tmp_path_factory.mktemp("npz") / "table.npz"
    table.save(path)
    loaded = TabularMDP.load(path)
    back = TabularMDP.from_layered(table.layered(4))
    for other in (loaded, loaded.sparse(), loaded.dense(), back):
        span = table.reward_map if other is not back else back.reward_map
        m, mine = other.layered(4), table.layered(4)
        assert of.solve(m).v[0] == pytest.approx(of.solve(mine).v[0], abs=1e-14)
        assert (other.action_mask is None) == (table.action_mask is None)
        assert table.action_mask is None or (other.action_mask == table.action_mask).all()
        assert np.abs(np.asarray(other.start) - np.asarray(table.start)).max() == 0
        assert span.high >= span.low
    assert (loaded.state_names, loaded.action_names, loaded.name) == (table.state_names, table.action_names, "small")
    assert (loaded.rewards == table.rewards).all()
    assert loaded.reward_map == table.reward_map


def test_from_layered_knows_a_start_state_and_refuses_what_is_not_stationary():
    table = TabularMDP(small().P, small().rewards, 2, small().action_mask)
    assert TabularMDP.from_layered(table.layered(5)).start == 2
    m = table.layered(4)
    losses = m.losses.copy()
    losses[6] = 0.5
    with pytest.raises(of.OpoError, match="losses of layer 2 differ"):
        TabularMDP.from_layered(of.LayeredMDP(m.layout, losses, m.transitions))
    with pytest.raises(of.OpoError, match="at least 3"):
        TabularMDP.from_layered(table.layered(2))


@given(st.integers(0, 10_000), st.floats(-50, 50), st.floats(0.01, 100))
def test_rewards_as_losses_keep_the_optimum_and_come_back(seed, shift, scale):
    table = small(seed)
    mask = np.ones((4, 3), bool) if table.action_mask is None else table.action_mask
    other = TabularMDP(table.P, np.where(mask, shift + scale * table.rewards, 0), table.start, table.action_mask)
    assert optimum(other, 5) == pytest.approx(5 * shift + scale * optimum(table, 5), abs=1e-9 * (1 + abs(shift) + scale))


def test_the_map_rescales_absorbing_states():
    losses, scale = rewards_to_losses([[-1.0, 3.0], [0.0, 0.0]])
    assert losses.tolist() == [[1.0, 0.0], [0.75, 0.75]]
    assert scale.absorbing == 0.75
    assert scale.value(2.5, steps=4) == 4 * 3 - 4 * 2.5
    assert scale.loss_value(scale.value(2.5, 4), 4) == 2.5
    assert scale.rewards(losses).tolist() == [[-1.0, 3.0], [0.0, 0.0]]
    with pytest.raises(of.OpoError, match="absorbing"):
        rewards_to_losses([1.0, 2.0]).map.absorbing  # noqa: B018
    flat, constant = rewards_to_losses([2.0, 2.0])
    assert flat.tolist() == [0, 0]
    assert constant.value(0.0, 3) == 6


@pytest.mark.parametrize(
    ("rewards", "options", "words"),
    [
        ([[0.0, np.nan]], {}, "state 0, action 1 has nan"),
        ([[0.0, -np.inf]], {}, "state 0, action 1 has -inf"),
        ([[0.0, 5.0]], {"reward_range": (0, 1)}, r"rewards\[0, 1\] is 5.0"),
        ([[0.0, 5.0]], {"reward_range": (6, 1)}, "low"),
        ([[0.0, 5.0]], {"reward_range": 3}, "reward_range is 3"),
        ([[0.0, 5.0]], {"reward_range": (0, np.inf)}, "reward_range"),
        ([], {}, "empty"),
    ],
)
def test_bad_rewards(rewards, options, words):
    with pytest.raises(of.OpoError, match=words):
        rewards_to_losses(rewards, **options)


def test_masked_rewards_are_not_looked_at():
    losses, scale = rewards_to_losses([[0.0, -np.inf], [1.0, 2.0]], action_mask=[[True, False], [True, True]])
    assert (scale.low, scale.high) == (0.0, 2.0)
    assert losses[0, 1] == 1.0


ROWS = np.array([[[0.5, 0.5], [1.0, 0.0]], [[0.0, 1.0], [0.0, 1.0]]])


@pytest.mark.parametrize(
    ("P", "options", "words"),
    [
        (ROWS * [[[1.1]], [[1]]], {}, r"state 0, action 0: the row sums to 1\.1"),
        (ROWS - 0.5, {}, "state 0, action 1: the probability of next state 1 is -0.5"),
        (ROWS * np.nan, {}, "state 0, action 0: the probability of next state 0 is nan"),
        (ROWS[:1], {}, r"P has shape \(1, 2, 2\)"),
        (ROWS * [[[1]], [[0]]], {}, "state 1, action 0: the row is all zero"),
        (ROWS, {"terminals": [0]}, "terminals: state 0, action 0 leads to state 1 with probability 0.5"),
        (ROWS, {"terminals": [5]}, "terminals is 5"),
        (ROWS, {"start": [0.5, 0.4]}, "start sums to 0.9"),
        (ROWS, {"start": 2}, "start is 2"),
        (ROWS, {"start": [1.5, -0.5]}, "start: state 1 has probability -0.5"),
        (ROWS, {"action_mask": [[True, True], [False, False]]}, "state 1 allows no action"),
        (ROWS, {"state_names": ["one"]}, "state_names has 1"),
        (sp.csr_array(np.eye(3)[:, :2]), {}, r"P has shape \(3, 2\)"),
    ],
)
def test_malformed_arrays(P, options, words):
    with pytest.raises(of.OpoError, match=words):
        TabularMDP(P, np.zeros((2, 2)), **options)


def test_terminals_may_be_empty_rows_and_masked_rows_anything():
    P = ROWS * [[[1]], [[0]]]
    closed = TabularMDP(P, [[1.0, 2.0], [0.0, 0.0]], terminals=[1])
    assert closed.P[1].tolist() == [[0, 1], [0, 1]]
    assert optimum(closed, 3) == 6
    with pytest.raises(of.OpoError, match="has reward 3"):
        TabularMDP(P, [[1.0, 2.0], [3.0, 0.0]], terminals=[1])
    odd = ROWS.copy()
    odd[1, 1] = [7.0, -3.0]
    assert TabularMDP(odd, np.zeros((2, 2)), 0, [[True, True], [True, False]]).n_states == 2


def test_expected_rewards_skip_impossible_transitions():
    R = np.array([[[1.0, 3.0], [2.0, np.inf]], [[np.nan, 4.0], [-np.inf, 5.0]]])
    assert expected_rewards(ROWS, R).tolist() == [[2.0, 2.0], [4.0, 5.0]]
    assert expected_rewards(sp.csr_array(ROWS.reshape(4, 2)), np.where(np.isfinite(R), R, 0)).tolist() == [[2.0, 2.0], [4.0, 5.0]]


def test_inputs_are_not_written_to_nor_kept():
    P, R, start = ROWS.copy(), np.array([[0.0, 1.0], [2.0, 3.0]]), np.array([0.25, 0.75])
    before = [x.copy() for x in (P, R, start)]
    table = TabularMDP(P, R, start)
    assert all((x == y).all() for x, y in zip((P, R, start), before, strict=True))
    P[...] = 0
    assert table.P[0, 0].tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="read-only"):
        table.P[0, 0, 0] = 1


def test_damaged_files(tmp_path):
    path = tmp_path / "x.npz"
    with pytest.raises(of.OpoError, match="no file"):
        TabularMDP.load(path)
    path.write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(of.OpoError, match="is not a model"):
        TabularMDP.load(path)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(of.OpoError, match="is not a model"):
        TabularMDP.load(path)


@given(st.integers(0, 2**31), st.integers(1, 40))
def test_flipped_bytes_give_a_model_or_the_package_s_error(tmp_path_factory, seed, flips):
    path = tmp_path_factory.mktemp("flip") / "t.npz"
    small(3).save(path)
    blob = np.frombuffer(path.read_bytes(), np.uint8).copy()
    rng = np.random.default_rng(seed)
    blob[rng.integers(blob.size, size=flips)] = rng.integers(256, size=flips)
    path.write_bytes(blob.tobytes())
    for read in (TabularMDP.load, make):
        try:
            read(str(path))
        except of.OpoError:
            continue


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 2), inner, max_size=3) | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=12,
)


@given(ANYTHING, st.integers(0, 1), st.integers(0, 1), st.integers(0, 3))
def test_any_object_as_a_table_gives_a_model_or_the_package_s_error(anything, s, a, depth):
    table = [anything, {0: anything, 1: GOOD[1]}, broken(s, a, anything), broken(s, a, [anything])][depth]
    try:
        found = from_gymnasium(table)
    except of.OpoError:
        return
    assert np.isfinite(optimum(found, 2))
