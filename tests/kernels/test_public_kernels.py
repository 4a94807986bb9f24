"""The public kernels, against the package's own functions bit for bit and against their NumPy twins."""

from __future__ import annotations

import itertools

import numba
import numpy as np
import pytest
import twins
from kernel_calls import INTERPRETED, MODELS, close, model, name_of, own, policies
from twins import Rows

import opo_fast as of
from opo_fast import kernels
from opo_fast.algorithm import engine
from opo_fast.kernels import checked

cases = pytest.mark.parametrize("case", [case for case in MODELS if case[3] is np.float64], ids=name_of)
modules = pytest.mark.parametrize("module", [kernels, checked], ids=["plain", "checked"])


def arrays_of(mdp, module=kernels):
    arrays = kernels.arrays(mdp)
    n_rows, n_states = mdp.transitions.n_rows, mdp.layout.n_states
    return arrays, np.full(n_rows, np.nan), np.full(n_states, np.nan), np.full(module.work_size(arrays), np.nan)


def full(mdp, rows):
    return mdp.transitions.scatter(rows)


@cases
@modules
def test_one_policy(case, module):
    mdp = model(case)
    arrays, out, v, work = arrays_of(mdp, module)
    policy = own(policies(mdp, 1)[0])
    module.evaluate(arrays, policy, out, v)
    expected = of.evaluate(mdp, full(mdp, policy))
    assert (full(mdp, out) == expected.q).all()
    assert (v == expected.v).all()
    close(v, twins.evaluate(Rows(mdp), mdp.row_losses, policy)[1])
    module.occupancy(arrays, policy, out, work)
    assert (full(mdp, out) == of.occupancy(mdp, full(mdp, policy))).all()
    close(out, twins.occupancy(Rows(mdp), policy))


@cases
@modules
def test_the_optimum(case, module):
    mdp = model(case)
    arrays, q, v, _ = arrays_of(mdp, module)
    policy = np.full(q.size, np.nan)
    module.solve(arrays, q, v, policy)
    expected = of.solve(mdp)
    assert (full(mdp, q) == expected.q).all()
    assert (v == expected.v).all()
    assert (full(mdp, policy) == expected.policy).all()


@cases
@modules
def test_steps_of_algorithm_1(case, module, monkeypatch):
    monkeypatch.setattr(engine, "PACKED_MOST", -1)
    mdp = model(case)
    arrays, _, v, work = arrays_of(mdp, module)
    store = np.full((5, mdp.transitions.n_rows), np.nan)
    store[0] = mdp.transitions.gather(mdp.uniform_policy())
    sum_q, visits = np.zeros((2, store.shape[1]))
    chain = of.PolicyChain(mdp.layout, eta=0.8, beta_loss=1.2, beta_dynamics=0.3, action_mask=mdp.action_mask)
    for k in range(4):
        module.chain_step(arrays, 0.8, 1.2, 0.3, store[k], sum_q, visits, store[k + 1], v, work)
        chain.append(mdp)
        assert (full(mdp, store[k + 1]) == chain.policy()).all()
    close(visits, sum(twins.occupancy(Rows(mdp), policy) for policy in store[:-1]), 1e-11)


@modules
def test_bonus_and_weights(module):
    rng = np.random.default_rng(0)
    visits, out = 9 * rng.random(7), np.empty(7)
    module.bonus(visits, 3.0, out)
    assert (out == of.bonus(visits, 3.0)).all()
    policy, q, after = rng.dirichlet(np.ones(3), 5), rng.random((5, 3)), np.empty((5, 3))
    module.exponential_weights(policy, q, 0.7, after)
    assert (after == of.exponential_weights(policy, q, 0.7)).all()


def wrong_sizes():
    mdp = model(MODELS[0])
    arrays, q, v, work = arrays_of(mdp)
    good = {name: q.copy() for name in ("policy", "q", "out", "sum_q", "visits", "following")} | {"v": v, "work": work}
    orders = {
        "evaluate": ["policy", "q", "v"],
        "solve": ["q", "v", "policy"],
        "occupancy": ["policy", "out", "work"],
        "chain_step": ["policy", "sum_q", "visits", "following", "v", "work"],
    }
    for function, names in orders.items():
        for wrong in names:
            numbers = (0.1, 0.1, 0.1) if function == "chain_step" else ()
            yield function, wrong, [arrays, *numbers, *(good[name][:-1].copy() if name == wrong else good[name] for name in names)]
    grid = np.ones((4, 2))
    yield "bonus", "out", [np.zeros(3), 1.0, np.zeros(4)]
    yield "exponential_weights", "q", [grid, grid[:3].copy(), 1.0, grid.copy()]
    yield "exponential_weights", "out", [grid, grid.copy(), 1.0, grid[:3].copy()]


WRONG = list(wrong_sizes())


@pytest.mark.parametrize(("function", "wrong", "arguments"), WRONG, ids=[f"{function} {wrong}" for function, wrong, _ in WRONG])
def test_checked_kernels_name_an_array_of_a_wrong_size(function, wrong, arguments):
    with pytest.raises(ValueError, match=rf"\b{wrong}\b"):
        getattr(checked, function)(*arguments)


OVERLAPS = {
    "evaluate": (["policy", "q", "v"], []),
    "solve": (["q", "v", "policy"], []),
    "occupancy": (["policy", "out", "work"], []),
    "chain_step": (["policy", "sum_q", "visits", "following", "v", "work"], []),
    "bonus": (["visits", "out"], [("visits", "out")]),
    "exponential_weights": (["policy", "q", "out"], [("policy", "out"), ("q", "out")]),
}


@pytest.mark.parametrize("function", OVERLAPS)
def test_checked_kernels_refuse_arrays_that_overlap(function):
    """Each pair of arrays in the same memory, and shifted by one number; arrays that are only read may overlap."""
    names, may_be_same = OVERLAPS[function]
    arrays, q, v, work = arrays_of(model(MODELS[0]))
    sizes = {name: {"v": v, "work": work}.get(name, q).size for name in names}
    if function in ("bonus", "exponential_weights"):
        sizes = dict.fromkeys(names, 12)
    numbers = {"chain_step": (0.1, 0.1, 0.1), "bonus": (1.0,), "exponential_weights": (1.0,)}.get(function, ())
    for one, other in itertools.combinations(names, 2):
        for shift in (0, 1):
            room = np.full(2 * max(sizes.values()), 0.25)
            given = {name: np.full(sizes[name], 0.25) for name in names}
            given[one], given[other] = room[: sizes[one]], room[shift : shift + sizes[other]]
            ordered = [given[name] for name in names]
            if function == "exponential_weights":
                ordered = [array.reshape(4, 3) for array in ordered]
            if function == "bonus":
                arguments = [ordered[0], *numbers, ordered[1]]
            elif function == "exponential_weights":
                arguments = [*ordered[:2], *numbers, ordered[2]]
            else:
                arguments = [arrays, *numbers, *ordered]
            only_read = function == "exponential_weights" and other == "q"
            if only_read or (shift == 0 and (one, other) in may_be_same):
                getattr(checked, function)(*arguments)
            else:
                with pytest.raises(ValueError, match=rf"\b({one}|{other})\b.* overlaps|work overlaps"):
                    getattr(checked, function)(*arguments)


def test_adjoining_arrays_do_not_overlap():
    arrays, q, v, _ = arrays_of(model(MODELS[0]))
    room = np.full(2 * q.size + v.size, 0.25)
    checked.evaluate(arrays, room[: q.size], room[q.size : 2 * q.size], room[2 * q.size :])


def test_weights_and_bonus_in_place():
    rng = np.random.default_rng(0)
    policy, q, visits = rng.dirichlet(np.ones(3), 5), rng.random((5, 3)), rng.random(7)
    expected = of.exponential_weights(policy, q, 0.7), of.bonus(visits, 1.5)
    for module in (kernels, checked):
        onto_policy, onto_q, onto_visits = policy.copy(), q.copy(), visits.copy()
        module.exponential_weights(onto_policy, q, 0.7, onto_policy)
        module.exponential_weights(policy, onto_q, 0.7, onto_q)
        module.bonus(onto_visits, 1.5, onto_visits)
        assert (onto_policy == expected[0]).all()
        assert (onto_q == expected[0]).all()
        assert (onto_visits == expected[1]).all()


@pytest.mark.parametrize("given", [None, 3, [], "model"])
def test_what_is_no_model_has_no_arrays(given):
    with pytest.raises(ValueError, match=rf"mdp is a {type(given).__name__}: an opo_fast.LayeredMDP"):
        kernels.arrays(given)


def test_transitions_alone_have_no_arrays():
    with pytest.raises(ValueError, match="mdp is a Transitions"):
        kernels.arrays(model(MODELS[0]).transitions)


@pytest.mark.skipif(INTERPRETED, reason="types exist where kernels are compiled")
@pytest.mark.parametrize("which", ["strided", "single", "read-only", "matrix"])
def test_arrays_of_another_kind_are_refused_at_compilation(which):
    mdp = model(MODELS[0])
    arrays, q, v, _ = arrays_of(mdp)
    policy = {"strided": np.empty((q.size, 2))[:, 0], "single": q.astype(np.float32), "read-only": q.copy(), "matrix": q.reshape(1, -1)}[
        which
    ]
    policy.flags.writeable = which != "read-only"
    with pytest.raises(numba.TypingError):
        kernels.evaluate(arrays, policy, q, v)


def test_the_public_names_are_there():
    assert set(kernels.__all__) - set(checked.__all__) == {"VERSION", "ModelArrays", "arrays"}
    assert all(hasattr(kernels, name) for name in kernels.__all__)
