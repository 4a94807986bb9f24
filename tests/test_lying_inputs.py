"""Inputs that are not what they claim to be: sparse arrays, contexts, masks, numbers at the limits of float64."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp

import opo_fast as of
from opo_fast import envs, oracles
from opo_fast.model.contextual import context_key
from opo_fast.model.transitions import Transitions

LAYOUT = of.Layout([1, 2], 2)
LOSSES = np.zeros((3, 2))
HALVES = sp.csr_array(np.full((2, 2), 0.5))


def model(transitions, **options):
    return of.LayeredMDP(LAYOUT, LOSSES, [transitions], **options)


def altered(matrix, **attributes):
    matrix = matrix.copy()
    for name, value in attributes.items():
        setattr(matrix, name, value)
    return matrix


def lil(rows, data):
    matrix = sp.lil_array((2, 2))
    for row in range(2):
        matrix.rows[row], matrix.data[row] = rows[row], data[row]
    return matrix


LIES = {
    "bool pointers": (altered(HALVES, indptr=np.array([False, True, True])), "row pointers have dtype bool"),
    "real positions": (altered(HALVES, indices=HALVES.indices.astype(float)), "next states have dtype float64"),
    "pointers in two axes": (altered(HALVES, indptr=HALVES.indptr[:, None]), "vectors"),
    "values in two axes": (altered(HALVES, data=HALVES.data[:, None]), "a vector is needed"),
    "positions beyond": (altered(HALVES, indices=HALVES.indices + 5), "has next state"),
    "lil, fewer values": (lil([[0, 1], [0]], [[1.0], [1.0]]), "row 0 has 2 positions, but 1 values"),
    "lil, fewer positions": (lil([[0], [0]], [[0.5, 0.5], [1.0]]), "row 0 has 1 positions, but 2 values"),
    "lil, beyond": (lil([[0, 7], [0]], [[0.5, 0.5], [1.0]]), "has next state 7"),
    "lil, negative": (lil([[-1], [0]], [[1.0], [1.0]]), "has next state -1"),
    "csc, bool pointers": (altered(sp.csc_array(HALVES), indptr=np.array([False, True, True])), "whole numbers"),
    "bsr, positions beyond": (altered(sp.bsr_array(HALVES), indices=sp.bsr_array(HALVES).indices + 9), "not a valid sparse array"),
}


@pytest.mark.parametrize("lie", LIES)
def test_sparse_arrays_whose_parts_do_not_fit(lie):
    matrix, message = LIES[lie]
    with pytest.raises(of.OpoError, match=message):
        model(matrix)
    with pytest.raises(of.OpoError, match=message):
        envs.TabularMDP(matrix, np.zeros((2, 1)))
    with pytest.raises(of.OpoError, match=message):
        envs.from_mdptoolbox([matrix], np.zeros(2))
    with pytest.raises(of.OpoError, match=message):
        envs.from_pairs([0.0, 0.0], matrix, [0, 1], [0, 0])
    oracle = of.FiniteDynamicsClass([lambda c: [matrix]]).oracle(LAYOUT, None)
    with pytest.raises(of.OpoError, match=message):
        oracle.transitions(0, 0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, bool])
def test_duplicates_do_not_wrap(dtype):
    """127 + 127 + 3 is 1 in eight bits."""
    entries = np.array([127, 127, 3, 1], np.int64).astype(dtype)
    matrix = sp.coo_array((entries, ([0, 0, 0, 1], [0, 0, 0, 0])), shape=(2, 2))
    total = float(entries[:3].astype(float).sum())
    with pytest.raises(of.OpoError, match=f"the row sums to {total!r}"):
        model(matrix)


def test_as_many_reward_vectors_as_states():
    P = np.full((2, 2, 2), 0.5)
    with pytest.raises(of.OpoError, match="one for each action or one for each state"):
        envs.from_mdptoolbox(P, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
    given = np.array([[1.0, 2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(envs.from_mdptoolbox(P, given).rewards, given)


# -- memory ----------------------------------------------------------------------------------------------------------------


def test_a_view_made_before_does_not_reach_what_kernels_follow():
    layout = of.Layout([1, 3], 1)
    data, indptr, indices = np.full(3, 1 / 3), np.array([0, 3]), np.arange(3, dtype=np.uint32)
    views = indptr[:], indices[:]
    t = Transitions.from_flat(layout, data, indptr, indices, np.array([0, 0]))
    before = of.evaluate(of.LayeredMDP(layout, np.full((4, 1), 0.5), t), np.ones((4, 1))).v
    for view, wild in zip(views, (2**40, 2**31), strict=True):
        view[:] = wild
    assert t.indptr.tolist() == [0, 3]
    assert t.indices.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(of.evaluate(of.LayeredMDP(layout, np.full((4, 1), 0.5), t), np.ones((4, 1))).v, before)


@pytest.mark.parametrize("make", [lambda a: of.LayeredMDP(LAYOUT, a["losses"], [a["P"]], a["mask"])], ids=["LayeredMDP"])
def test_no_model_shares_memory_with_what_it_was_made_of(make):
    arrays = {"losses": LOSSES.copy(), "P": np.full((1, 2, 2), 0.5), "mask": np.array([[True, True], [True, False], [True, True]])}
    mdp = make(arrays)
    t = mdp.transitions
    for own in (mdp.losses, t.data, t.rows, t.pairs, t.action_mask):
        assert not any(np.shares_memory(own, array) for array in arrays.values())


# -- contexts --------------------------------------------------------------------------------------------------------------

SAME = [
    (np.array([0.5, 0.25]), np.array([0.5, 0.25], np.float32)),
    (np.array([1, 2]), np.array([1.0, 2.0])),
    (np.array([1, 2], np.int8), np.array([1, 2], np.uint64)),
    (np.array([0.5, 0.25]), np.array([0.5, 0.25], ">f8")),
    (np.array([0.0]), np.array([-0.0])),
    (np.arange(4.0).reshape(2, 2), np.arange(4.0).reshape(2, 2).T.copy().T),
    (np.array(["a"]), np.array(["a"], "U9")),
    (np.array([2**60], np.int64), np.array([2**60], ">i8")),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_numbers_are_the_same_context(one, other):
    assert context_key(one) == context_key(other)


def test_other_contexts_are_others():
    arrays = [
        np.array([1.0]),
        np.array([[1.0]]),
        np.array([1.0, 1.0]),
        np.array([2**60]),
        np.array([2**60 + 1]),
        np.array([0.1], np.float32),
    ]
    arrays += [np.array([0.1]), np.array([np.inf]), np.array([-np.inf]), np.array(["1.0"])]
    assert len({context_key(array) for array in arrays}) == len(arrays)


@pytest.mark.parametrize(
    "missing", [np.nan, np.float32("nan"), np.datetime64("NaT"), (1, np.nan), np.array([1.0, np.nan]), np.array([np.nan, np.inf])]
)
def test_missing_values_are_no_context(missing):
    with pytest.raises(of.OpoError, match=r"missing value|dtype"):
        context_key(missing)


def test_a_context_learned_in_one_precision_is_known_in_another():
    env = envs.make("random-finite", n_contexts=2)
    agent = of.agents.TabularOPO(env.layout, episodes=20, bonus_scale=0.0)
    played = of.oracles.TrajectoryLog.collect(env, 20)
    for t in played:
        agent.observe(of.Trajectory(np.array([0.5, 1.0]), t.states, t.actions, t.losses))
    for same in (np.array([0.5, 1.0], np.float32), np.array([0.5, 1.0], ">f8")):
        np.testing.assert_array_equal(agent.policy(same), agent.policy(np.array([0.5, 1.0])))
    assert not np.array_equal(agent.policy(np.array([0.5, 1.0])), agent.uniform())
    with pytest.raises(of.OpoError, match="missing value"):
        agent.policy(np.array([0.5, np.nan]))


@pytest.mark.parametrize("name", ["random-linear", "random-softmax"])
@pytest.mark.parametrize("context", [np.zeros(9), np.zeros(1), 3, "x", None, np.array([np.nan, 0.0]), np.zeros((2, 2)), np.array([1j, 0])])
def test_a_context_of_another_length(name, context):
    env = envs.make(name, dimension=2, n_contexts=None)
    with pytest.raises(of.OpoError, match="context"):
        env.mdp(context)
    with pytest.raises(of.OpoError, match="context"):
        env.loss_models[0](context)


@pytest.mark.parametrize("name", ["inventory", "queue-network"])
def test_a_context_counted_from_the_end(name):
    env = envs.make(name)
    for context in (-1, len(env.contexts), "x", 0.0):
        with pytest.raises(of.OpoError, match="context"):
            env.dynamics_models[0](context)


def test_a_null_context_in_a_parquet_file(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1], "state": [0, 1, 0, 2], "action": [0, 1, 0, 1], "loss": [0.0, 1.0, 0.0, 1.0]}
    for i, contexts in enumerate(([1, 1, None, None], [None] * 4, [[1.0, None]] * 4, [np.nan, np.nan, 1.0, 1.0])):
        pq.write_table(pa.table({**columns, "context": contexts}), tmp_path / f"{i}.parquet")
        with pytest.raises(of.OpoError, match="missing"):
            oracles.TrajectoryLog.load(tmp_path / f"{i}.parquet", LAYOUT)


# -- masks, numbers --------------------------------------------------------------------------------------------------------


def test_masked_arrays_are_refused_everywhere():
    mask = np.ma.masked_array(np.ones((3, 2), bool), np.zeros((3, 2), bool))
    with pytest.raises(of.OpoError, match="action_mask is a masked array"):
        model(HALVES, action_mask=mask)
    with pytest.raises(of.OpoError, match="masked array"):
        of.LayeredMDP(LAYOUT, np.ma.masked_array(LOSSES, LOSSES > 0), [HALVES])
    with pytest.raises(of.OpoError, match="masked array"):
        of.bonus([np.ma.masked_array([1.0], [True])], 1.0)


@pytest.mark.parametrize(
    "number", [1j, np.complex128(1 + 2j), np.complex64(1), np.array([1.0]), np.array(1j), np.ma.masked, np.datetime64("2020")]
)
def test_what_is_no_real_number(number):
    with pytest.raises(of.OpoError, match="beta is"):
        of.bonus([1.0], number)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_weights_where_the_range_of_q_is_no_double(backend):
    start = np.array([[0.25, 0.75]])
    q = np.array([[-1e308, 1e308]])
    np.testing.assert_allclose(of.exponential_weights(start, q, 0.0, backend=backend), start, rtol=1e-15)
    # eta times the range is 2, so the ratio of the weights is exp(-2).
    found = of.exponential_weights([[0.5, 0.5]], q, 1e-308, backend=backend)
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))]], rtol=1e-12)
    np.testing.assert_array_equal(of.exponential_weights(start, q, 1.0, backend=backend), [[1.0, 0.0]])


def test_rewards_whose_range_is_no_double():
    with pytest.raises(of.OpoError, match="scale the rewards down"):
        of.rewards_to_losses([[-1e308, 1e308]])
    with pytest.raises(of.OpoError, match="scale the rewards down"):
        of.rewards_to_losses([[0.0, 1.0]], (-1e308, 1e308))
    np.testing.assert_array_equal(of.rewards_to_losses([[-8e307, 8e307]]).losses, [[1.0, 0.0]])


def test_the_reference_draws_from_float32_models_as_the_kernel_does():
    rng = np.random.default_rng(0)
    layout = of.Layout([1, 400, 400], 1)
    rows = [rng.dirichlet(np.ones(400), size=(n, 1)).astype(np.float32) for n in (1, 400)]
    mdp = of.LayeredMDP(layout, np.zeros((801, 1)), rows, dtype=np.float32)
    policy = np.ones((801, 1))
    for seed in range(300):
        one, two = (of.rollout(mdp, policy, np.random.default_rng(seed), backend=backend).states for backend in ("numba", "numpy"))
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("name", ["eta", "beta_loss", "beta_dynamics"])
def test_lemmas_at_parameters_whose_inverse_is_no_double(name):
    mdp = of.LayeredMDP(LAYOUT, LOSSES, [HALVES])
    parameters = {"eta": 1.0, "beta_loss": 1.0, "beta_dynamics": 1.0}
    with pytest.raises(of.OpoError, match=f"{name} is 1e-320"):
        of.analysis.lemma_checks(mdp, [], **{**parameters, name: 1e-320})


# -- a dynamics of another mask ---------------------------------------------------------------------------------------------


def test_a_dynamics_with_a_mask_in_an_agent_without():
    """The dynamics only has rows for allowed pairs, so a policy with one entry for each pair would be misread."""
    mask = np.array([[True, True], [True, False], [True, True]])
    t = Transitions(LAYOUT, [np.full((1, 2, 2), 0.5)], action_mask=mask)
    losses, dynamics = of.FiniteLossClass([lambda c: LOSSES]), of.FiniteDynamicsClass([lambda c: t])
    options = {"eta": 0.1, "beta_loss": 1.0, "beta_dynamics": 1.0}
    agent = of.OPO(LAYOUT, losses, dynamics, **options)
    played = of.Trajectory(0, np.array([0, 1, 3]), np.array([0, 0]), np.zeros(2))
    agent.observe(played)
    with pytest.raises(of.OpoError, match="give the agent the action_mask of the environment"):
        agent.policy(0)
    env = envs.Environment(LAYOUT, [lambda c: LOSSES], [lambda c: t], contexts=[0], action_mask=mask)
    with pytest.raises(of.OpoError, match="action_mask"):
        of.simulate(env, of.agents.Uniform(LAYOUT), 1)
    with pytest.raises(of.OpoError, match="give the agent the action_mask of the environment"):
        of.offline.learn_from_logs(LAYOUT, losses, dynamics, [played] * 5).policy(0)
    policy = of.OPO(LAYOUT, losses, dynamics, action_mask=mask, **options).policy(0)
    np.testing.assert_array_equal(policy.sum(axis=1), 1.0)
    assert policy[1, 1] == 0


AGENTS = {
    "opo": lambda *model: of.OPO(*model),
    "theory": lambda *model: of.OPO(*model, tuning="theory", episodes=9),
    "e-uc3rl": lambda *model: of.agents.EUC3RL(*model, episodes=9),
    "rm-ucdd": lambda *model: of.agents.RMUCDD(*model, p_min=0.1, episodes=9),
    "lolipop": lambda *model: of.agents.LOLIPOP(*model),
    "greedy": lambda *model: of.agents.Greedy(*model),
    "epsilon-greedy": lambda *model: of.agents.EpsilonGreedy(*model),
    "bonus-free": lambda *model: of.agents.BonusFreeOPO(*model, episodes=9),
}


@pytest.mark.parametrize("name", AGENTS)
def test_every_agent_meets_the_mask_of_a_dynamics_before_it_plans(name):
    mask = np.array([[True, True], [True, False], [True, True]])
    masked = Transitions(LAYOUT, [np.full((1, 2, 2), 0.5)], action_mask=mask)
    agent = AGENTS[name](LAYOUT, of.FiniteLossClass([lambda c: LOSSES]), of.FiniteDynamicsClass([lambda c: masked]))

    def play():
        for _ in range(3):
            agent.policy(0)
            agent.observe(of.Trajectory(0, np.array([0, 1, 3]), np.array([0, 0]), np.zeros(2)))

    with pytest.raises(of.OpoError, match="give the agent the action_mask of the environment"):
        play()
