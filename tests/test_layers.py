"""Layouts and models: which inputs are accepted, that they are never written to, and that models are immutable."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from strategies import answers, models, random_model, random_policy, random_rows

import opo_fast as of
from opo_fast.model.transitions import Transitions

SPARSE = ["csr_array", "csr_matrix", "coo_array", "csc_array", "bsr_array", "lil_array", "dok_array", "dia_array"]


@pytest.fixture
def layout():
    return of.Layout([1, 3, 4], 2)


@pytest.fixture
def blocks():
    rng = np.random.default_rng(12)
    return [random_rows(rng, 2, 3).reshape(1, 2, 3), random_rows(rng, 6, 4, 0.5).reshape(3, 2, 4)]


@pytest.fixture
def losses():
    return np.random.default_rng(13).random((8, 2))


# -- layout ------------------------------------------------------------------------------------------------------------


def test_layout_numbers_states_layer_by_layer():
    layout = of.Layout([1, 3, 2], n_actions=2)
    assert (layout.horizon, layout.n_states, layout.shape) == (3, 6, (6, 2))
    assert layout.offsets.tolist() == [0, 1, 4, 6]
    assert [layout.layer_of(s) for s in range(7)] == [0, 1, 1, 1, 2, 2, 3]
    assert np.arange(6)[layout.layer(1)].tolist() == [1, 2, 3]
    assert layout == of.Layout(np.array([1, 3, 2]), np.int64(2))
    assert hash(layout) == hash(of.Layout((1, 3, 2), 2))
    assert layout != of.Layout([1, 3, 2], 3)
    assert layout != "layout"
    assert repr(layout) == "Layout([1, 3, 2], n_actions=2)"
    assert repr(of.Layout([1] + [7] * 20, 2)) == "Layout([1, 7, 7, ..., 7], n_actions=2)"
    with pytest.raises(ValueError, match="read-only"):
        layout.offsets[0] = 1


# -- accepted inputs ---------------------------------------------------------------------------------------------------


def test_rows_that_miss_1_by_rounding_are_accepted_as_they_are():
    """Rows of sixteenths of 0.9 and 0.1 sum to 1 - 2e-16 or 1 + 2e-16."""
    low = np.array([0.9 / 16] * 16 + [0.1 / 16] * 16)
    losses = np.random.default_rng(1).random((32, 1))

    def value(rows):
        return of.solve(of.LayeredMDP.stationary(np.broadcast_to(rows.reshape(-1, 1, 32), (32, 1, 32)), losses, 5)).v[0]

    for rows in (low, low[::-1], np.nextafter(low, 1)):
        assert value(rows) == pytest.approx(value(rows / rows.sum()), abs=1e-14)
    # float32 probabilities, normalised in float32, miss 1 by about 1e-7.
    single = (np.random.default_rng(0).random((32, 32)) ** 3).astype(np.float32)
    single /= single.sum(axis=1, keepdims=True)
    wide = single.astype(float)
    assert 1e-8 < np.abs(wide.sum(axis=1) - 1).max() < 1e-6
    assert value(single) == pytest.approx(value(wide / wide.sum(axis=1, keepdims=True)), abs=1e-5)


def test_rows_at_the_edge_of_the_tolerance(layout, losses, blocks):
    blocks[1][1, 0] = [0.25, 0.25, 0.25, 0.25 + 0.9e-8]
    of.LayeredMDP(layout, losses, blocks)
    blocks[1][1, 0, 3] = 0.25 + 1.1e-8
    with pytest.raises(of.OpoError, match="state 2"):
        of.LayeredMDP(layout, losses, blocks)


@pytest.mark.parametrize("kind", SPARSE)
def test_every_sparse_kind_is_the_same_model(layout, losses, blocks, kind):
    sparse = [getattr(sp, kind)(block.reshape(-1, block.shape[2])) for block in blocks]
    expected = answers(of.LayeredMDP(layout, losses, [sp.csr_array(block.reshape(-1, block.shape[2])) for block in blocks]))
    assert answers(of.LayeredMDP(layout, losses, sparse)) == expected


@pytest.mark.parametrize("kind", [*SPARSE, "coo_matrix", "dia_matrix", "bsr_matrix"])
@pytest.mark.parametrize("start", [1, [0.25, 0.5, 0.25]])
def test_every_sparse_kind_makes_a_stationary_model(kind, start):
    rng = np.random.default_rng(3)
    rows, losses = random_rows(rng, 6, 3, 0.5), rng.random((3, 2))
    expected = answers(of.LayeredMDP.stationary(sp.csr_array(rows), losses, 4, start))
    assert answers(of.LayeredMDP.stationary(getattr(sp, kind)(rows), losses, 4, start)) == expected


@pytest.mark.parametrize("kind", ["coo", "csr"])
def test_duplicate_entries_add_up_and_the_callers_matrix_is_untouched(kind):
    """A corner of the frozen lake: two of three moves stay, stored as two entries of 1/3."""
    rows, columns = [0, 0, 0, 1], [1, 0, 1, 0]
    values = np.array([1 / 3, 1 / 3, 1 / 3, 1.0])
    if kind == "coo":
        P = sp.coo_array((values, (rows, columns)), shape=(2, 2))
        parts = [P.data, *P.coords]
    else:
        P = sp.csr_array((values, np.array(columns), np.array([0, 3, 4])), shape=(2, 2))
        parts = [P.data, P.indices, P.indptr]
    before = [part.copy() for part in parts]
    mdp = of.LayeredMDP.stationary(P, [[1.0], [0.0]], 2, 0)
    assert mdp.transitions.arrays()[0].toarray().tolist() == [[1 / 3, 2 / 3]]
    assert of.evaluate(mdp, mdp.uniform_policy()).v[0] == pytest.approx(4 / 3, abs=1e-15)
    after = [P.data, *P.coords] if kind == "coo" else [P.data, P.indices, P.indptr]
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))
    assert P.nnz == 4


def test_unsorted_columns_and_a_wrong_sorted_flag_are_noticed():
    P = sp.csr_array((np.array([0.75, 0.25]), np.array([1, 0]), np.array([0, 2])), shape=(1, 2))
    P.has_sorted_indices = True
    P.has_canonical_format = True
    mdp = of.LayeredMDP(of.Layout([1, 2], 1), [[0.0], [1.0], [0.0]], [P])
    assert mdp.transitions.indices.tolist() == [0, 1]
    assert of.evaluate(mdp, [[1.0]] * 3).v[0] == 0.25
    assert P.indices.tolist() == [1, 0]


def test_explicit_zeros_and_spare_room_in_csr_arrays(losses, layout, blocks):
    first = blocks[0].reshape(2, 3)
    roomy = sp.csr_array(first)
    roomy.data, roomy.indices = np.append(roomy.data, [np.nan] * 5), np.append(roomy.indices, [99] * 5)
    zeros = sp.csr_array((np.append(blocks[1].reshape(6, 4).ravel(), []), np.tile(np.arange(4), 6), np.arange(0, 25, 4)), shape=(6, 4))
    assert (zeros.data == 0).any()
    mdp = of.LayeredMDP(layout, losses, [roomy, zeros])
    dense = of.LayeredMDP(layout, losses, blocks)
    np.testing.assert_allclose(of.solve(mdp).v, of.solve(dense).v, rtol=0, atol=1e-15)


def test_integers_booleans_and_lists_are_numbers():
    mdp = of.LayeredMDP(of.Layout([1, 2], 1), [[0], [1], [0]], [[[[0, 1]]]])
    assert of.evaluate(mdp, np.ones((3, 1), int)).v.tolist() == [0, 1, 0]
    assert of.LayeredMDP(of.Layout([1, 2], 1), np.array([[False], [True], [True]]), [np.array([[[False, True]]])]).losses.sum() == 2
    transitions = (block for block in [np.array([[[0, 1]]])])
    assert of.LayeredMDP(of.Layout([1, 2], 1), mdp.losses, transitions).transitions.n_transitions == 2
    stacked = of.LayeredMDP(of.Layout([1, 1, 1], 2), np.zeros((3, 2)), np.ones((2, 1, 2, 1)))
    assert stacked.transitions.n_transitions == 4


def odd_layouts(array):
    """The same numbers as a strided, a Fortran-ordered, a read-only, a reversed and a foreign-ordered array."""
    wide = np.full((*array.shape[:-1], array.shape[-1] * 2 + 1), 7.0)
    wide[..., 1::2] = array
    read_only = array.copy()
    read_only.flags.writeable = False
    backwards = array[..., ::-1].copy()[..., ::-1]
    transposed = np.ascontiguousarray(array.transpose()).transpose()
    return {
        "strided": wide[..., 1::2],
        "fortran": np.asfortranarray(array),
        "read-only": read_only,
        "backwards": backwards,
        "transposed": transposed,
        "byte-swapped": array.astype(array.dtype.newbyteorder()),
        "list": array.tolist(),
    }


@pytest.mark.parametrize("flavour", ["strided", "fortran", "read-only", "backwards", "transposed", "byte-swapped", "list"])
def test_every_memory_layout_gives_the_bits_of_a_contiguous_copy(layout, losses, blocks, flavour):
    rng = np.random.default_rng(5)
    expected = of.LayeredMDP(layout, losses, blocks)
    policy = random_policy(rng, expected)
    odd_blocks = [odd_layouts(block)[flavour] for block in blocks]
    mdp = of.LayeredMDP(layout, odd_layouts(losses)[flavour], odd_blocks)
    assert answers(mdp, odd_layouts(policy)[flavour]) == answers(expected, policy)
    q = rng.random(policy.shape)
    weights = of.exponential_weights(odd_layouts(policy)[flavour], odd_layouts(q)[flavour], 0.5)
    assert weights.tobytes() == of.exponential_weights(policy, q, 0.5).tobytes()
    assert of.bonus(odd_layouts(q)[flavour], 0.5).tobytes() == of.bonus(q, 0.5).tobytes()


def test_memory_mapped_inputs(tmp_path, layout, losses, blocks):
    names = {"losses": losses, "0": blocks[0], "1": blocks[1]}
    for name, array in names.items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {name: np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in names}
    mdp = of.LayeredMDP(layout, mapped["losses"], [mapped["0"], mapped["1"]])
    assert answers(mdp) == answers(of.LayeredMDP(layout, losses, blocks))
    assert type(mdp.losses) is np.ndarray


def test_strides_of_a_real_data_set():
    """The digits of scikit-learn are neither C nor Fortran contiguous: pixels as losses of a bandit."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn has the data")
    digits = datasets.load_digits().data
    assert not digits.flags.c_contiguous
    assert not digits.flags.f_contiguous
    for image in (digits[3:4], digits[7:8]):
        pixels = image / 16
        strided = np.lib.stride_tricks.as_strided(pixels, pixels.shape, pixels.strides)
        mdp = of.LayeredMDP(of.Layout([1], 64), strided, [])
        assert answers(mdp) == answers(of.LayeredMDP(of.Layout([1], 64), np.ascontiguousarray(pixels), []))
    assert of.bonus(digits, 3.0).tobytes() == of.bonus(np.ascontiguousarray(digits), 3.0).tobytes()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.longdouble, np.int8])
def test_other_number_types_are_converted(layout, dtype):
    first = np.zeros((1, 2, 3), dtype)
    first[..., 0] = 1
    second = np.zeros((3, 2, 4), dtype)
    second[..., 2] = 1
    mdp = of.LayeredMDP(layout, np.zeros((8, 2), dtype), [first, second])
    assert mdp.transitions.data.dtype == np.float64
    assert of.occupancy(mdp, mdp.uniform_policy())[6].tolist() == [0.5, 0.5]


def test_inputs_are_never_written_to():
    rng = np.random.default_rng(9)
    layout = of.Layout([1, 5, 5], 3)
    mask = rng.random(layout.shape) < 0.7
    mask[:, 0] = True
    losses = rng.random(layout.shape)
    block, first = random_rows(rng, 15, 5).reshape(5, 3, 5), random_rows(rng, 3, 5).reshape(1, 3, 5)
    sparse = [sp.csr_array(first[0]), sp.csr_array(block.reshape(15, 5))]
    policy = np.where(mask, 1.0, 0.0)
    policy /= policy.sum(axis=1, keepdims=True)
    q, visits, start = rng.random(layout.shape), rng.random(layout.shape), rng.dirichlet(np.ones(5))
    base_losses, base_mask = rng.random((5, 3)), mask[1:6].copy()
    arrays = [mask, losses, block, first, policy, q, visits, start, base_losses, base_mask]
    arrays += [part for P in sparse for part in (P.data, P.indices, P.indptr)]
    before = [array.tobytes() for array in arrays]
    for transitions in ([first, block], sparse):
        mdp = of.LayeredMDP(layout, losses, transitions, mask)
        for backend in ("numba", "numpy"):
            of.occupancy(mdp, policy, backend=backend)
            of.evaluate(mdp, policy, backend=backend)
            of.solve(mdp, backend=backend)
            of.rollout(mdp, policy, rng, backend=backend)
            of.exponential_weights(policy, q, 0.5, backend=backend)
            of.bonus(visits, 0.5, backend=backend)
            of.policy_chain([mdp, mdp.with_losses(q)], eta=1, beta_loss=1, beta_dynamics=1, backend=backend)
    of.LayeredMDP.stationary(block, base_losses, 3, start, base_mask)
    of.LayeredMDP.stationary(sparse[1], base_losses, 3, 2, base_mask)
    assert [array.tobytes() for array in arrays] == before
    assert all(array.flags.writeable for array in arrays)


def test_a_model_keeps_nothing_of_its_inputs(layout, losses, blocks):
    mask = np.ones((8, 2), bool)
    mask[3, 1] = False
    for transitions in (blocks, [sp.csr_array(block.reshape(-1, block.shape[2])) for block in blocks]):
        mdp = of.LayeredMDP(layout, losses, transitions, mask)
        before = answers(mdp)
        for array in (losses, mask, *(getattr(t, "data", t) if sp.issparse(t) else t for t in transitions)):
            saved = array.copy()
            array[...] = 0
            assert answers(mdp) == before
            array[...] = saved


def test_flat_arrays_are_a_model_without_a_copy(layout, losses):
    mdp = random_model(np.random.default_rng(0), [1, 3, 4], 2, "csr", density=0.5)
    t = mdp.transitions
    data, indptr, indices = np.array(t.data), np.array(t.indptr), np.array(t.indices)
    flat = Transitions.from_flat(layout, data, indptr, indices, t.block)
    assert np.shares_memory(flat.data, data)
    assert not data.flags.writeable
    assert answers(of.LayeredMDP(layout, mdp.losses, flat)) == answers(mdp)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_rows_of_masked_pairs_are_not_looked_at(layout, losses, blocks):
    mask = np.ones((8, 2), bool)
    mask[2, 1] = mask[6, 0] = False
    clean = of.LayeredMDP(layout, losses, blocks, mask)
    for junk in (0.0, np.nan, -3.0):
        dirty = [blocks[0], blocks[1].copy()]
        dirty[1][1, 1] = junk
        for transitions in (dirty, [sp.csr_array(block.reshape(-1, block.shape[2])) for block in dirty]):
            mdp = of.LayeredMDP(layout, losses, transitions, mask)
            np.testing.assert_allclose(of.solve(mdp).v, of.solve(clean).v, rtol=0, atol=1e-15)
    assert (clean.transitions.arrays()[1][1, 1] == 0).all()
    assert clean.transitions.n_rows == 14
    assert (of.solve(clean).q[~mask] == 0).all()


def test_a_mask_that_allows_everything_is_no_mask(layout, losses, blocks):
    assert of.LayeredMDP(layout, losses, blocks, np.ones((8, 2), bool)).action_mask is None
    assert answers(of.LayeredMDP(layout, losses, blocks, np.ones((8, 2), bool))) == answers(of.LayeredMDP(layout, losses, blocks))


def test_layers_of_one_array_share_a_block_only_under_one_mask():
    rng = np.random.default_rng(2)
    block = random_rows(rng, 6, 3).reshape(3, 2, 3)
    first = random_rows(rng, 2, 3).reshape(1, 2, 3)
    layout = of.Layout([1, 3, 3, 3, 3], 2)
    mask = np.ones(layout.shape, bool)
    mask[5, 1] = False
    losses = rng.random(layout.shape)
    mdp = of.LayeredMDP(layout, losses, [first, block, block, block], mask)
    assert mdp.transitions.block[1] == mdp.transitions.block[3] != mdp.transitions.block[2]
    apart = of.LayeredMDP(layout, losses, [first, block.copy(), block.copy(), block.copy()], mask)
    assert answers(mdp) == answers(apart)
    shared = mdp.transitions.arrays()
    assert shared[1] is shared[3]
    np.testing.assert_array_equal(shared[2][1, 1], 0)


def test_losses_of_a_stationary_model_with_a_start_state_and_a_distribution():
    P = np.array([[[0.0, 1.0]], [[1.0, 0.0]]])
    at_state = of.LayeredMDP.stationary(P, [[0.25], [1.0]], 3, 1)
    assert at_state.layout.layer_sizes == (1, 2, 2)
    assert at_state.losses.ravel().tolist() == [1.0, 0.25, 1.0, 0.25, 1.0]
    assert of.solve(at_state).v[0] == 2.25
    drawn = of.LayeredMDP.stationary(P, [[0.25], [1.0]], 3, [0.0, 1.0])
    assert drawn.layout.layer_sizes == (1, 2, 2, 2)
    assert drawn.losses[0].tolist() == [0.0]
    assert of.solve(drawn).v[0] == 2.25


@given(models(), st.integers(0, 2**32 - 1))
def test_single_probabilities_and_those_along_a_path(mdp, seed):
    rng = np.random.default_rng(seed)
    episode = of.rollout(mdp, mdp.uniform_policy(), rng)
    offsets, n_actions = mdp.layout.offsets, mdp.layout.n_actions
    expected = []
    for h, block in enumerate(mdp.transitions.arrays()):
        local, following = episode.states[h] - offsets[h], episode.states[h + 1] - offsets[h + 1]
        action = int(episode.actions[h])
        rows = block.toarray().reshape(-1, n_actions, block.shape[1]) if sp.issparse(block) else block
        expected.append(rows[local, action, following])
        for other in rng.integers(mdp.layout.layer_sizes[h + 1], size=3):
            for a in range(n_actions):
                assert mdp.transitions.probability(h, int(local), a, int(other)) == rows[local, a, other]
    assert mdp.transitions.along(episode.states, episode.actions).tolist() == expected
    assert min(expected, default=1.0) > 0


# -- what is built stays -----------------------------------------------------------------------------------------------


def all_arrays(thing):
    for value in vars(thing).values():
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, (of.Layout, Transitions)):
            yield from all_arrays(value)


@pytest.mark.parametrize("form", ["dense", "csr", "stationary"])
@pytest.mark.parametrize("send", [lambda m: m, copy.deepcopy, copy.copy, lambda m: pickle.loads(pickle.dumps(m))])
def test_models_are_read_only_also_after_pickling_and_copying(form, send):
    mdp = random_model(np.random.default_rng(0), [1, 4, 4], 3, form, masked=True)
    before = answers(mdp)
    other = send(mdp)
    arrays = list(all_arrays(other))
    assert len(arrays) >= (7 if form == "stationary" else 8)  # rows and pairs of all layers are only made when they are used
    assert not any(array.flags.writeable for array in arrays)
    assert answers(other) == before
    assert other.layout == mdp.layout


def test_with_losses_shares_the_transitions(layout, losses, blocks):
    mdp = of.LayeredMDP(layout, losses, blocks)
    other = mdp.with_losses(1 - losses)
    assert other.transitions is mdp.transitions
    assert np.array_equal(other.losses, 1 - losses)
    assert of.LayeredMDP(layout, losses, mdp).transitions is mdp.transitions
    assert "3 states" not in repr(mdp)
    assert "8 states" in repr(mdp)


def test_what_is_built_cannot_be_changed():
    rng = np.random.default_rng(0)
    mdp = of.LayeredMDP(of.Layout([1, 2], 2), rng.random((3, 2)), [rng.dirichlet(np.ones(2), (1, 2))])
    for thing, name in ((mdp, "losses"), (mdp.transitions, "data"), (mdp.layout, "n_states"), (mdp, "anything")):
        with pytest.raises(of.OpoError, match=f"{name}: a {type(thing).__name__} is immutable"):
            setattr(thing, name, np.zeros(1))


def test_views_given_to_from_flat_are_copied():
    layout = of.Layout([1, 3], 1)
    base = np.array([0, 1, 2, 9], np.uint32)
    t = Transitions.from_flat(layout, np.full(3, 1 / 3), np.array([0, 3]), base[:3], np.array([0, 0]))
    base[0] = 7
    assert t.indices.tolist() == [0, 1, 2]
