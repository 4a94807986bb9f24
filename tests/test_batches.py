"""Batches of policies and models give the same bits as single calls; results are written to the `out` arrays."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from strategies import FORMS, random_model, random_policy

import opo_fast as of
from opo_fast import kernels

BACKENDS = ("numba", "numpy")
SHAPES = [(form, n_actions, masked) for form in FORMS for n_actions, masked in ((3, True), (4, False))]
cases = pytest.mark.parametrize("case", SHAPES, ids=[f"{form}-{n}{'-masked' if masked else ''}" for form, n, masked in SHAPES])


def problem(case, count=9, seed=0):
    form, n_actions, masked = case
    rng = np.random.default_rng(seed)
    mdp = random_model(rng, [1, 11, 11, 11], n_actions, form, masked=masked)
    return mdp, np.stack([random_policy(rng, mdp) for _ in range(count)])


def same(actual, expected):
    np.testing.assert_array_equal(actual, expected)


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_policies_under_one_model(case, backend):
    mdp, policies = problem(case)
    visits, found = of.occupancy(mdp, policies, backend=backend), of.evaluate(mdp, policies, backend=backend)
    for i, policy in enumerate(policies):
        one = of.evaluate(mdp, policy, backend=backend)
        same(found.q[i], one.q)
        same(found.v[i], one.v)
        same(visits[i], of.occupancy(mdp, policy, backend=backend))
    same(of.evaluate(mdp, policies, returns="v", backend=backend), found.v)
    same(of.evaluate(mdp, policies, returns="start", backend=backend), found.v[:, 0])
    same(of.evaluate(mdp, policies[:1], backend=backend).q, found.q[:1])


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_models(case, backend):
    mdp, policies = problem(case, 3)
    rng = np.random.default_rng(1)
    changed = of.LayeredMDP(mdp.layout, rng.random(mdp.layout.shape), mdp.transitions.arrays(), mdp.action_mask, dtype=np.float32)
    mdps = [mdp, changed, pickle.loads(pickle.dumps(mdp.with_losses(rng.random(mdp.layout.shape))))]
    for given in (policies[0], policies):
        visits, found = of.occupancy(mdps, given, backend=backend), of.evaluate(mdps, given, backend=backend)
        alone = of.evaluate(mdps, given, returns="v", backend=backend)
        for i, one in enumerate(mdps):
            policy = given if given.ndim == 2 else given[i]
            expected = of.evaluate(one, policy, backend=backend)
            same(found.q[i], expected.q)
            same(found.v[i], expected.v)
            same(alone[i], expected.v)
            same(visits[i], of.occupancy(one, policy, backend=backend))
    best = of.solve(mdps, backend=backend)
    for i, one in enumerate(mdps):
        for part, expected in zip(best, of.solve(one, backend=backend), strict=True):
            same(part[i], expected)
    same(of.solve(mdps, returns="v", backend=backend), best.v)
    same(of.solve(mdps, returns="start", backend=backend), best.v[:, 0])


@cases
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_alone(case, backend):
    mdp, (policy, *_) = problem(case, 1)
    value, best = of.evaluate(mdp, policy, backend=backend).v, of.solve(mdp, backend=backend).v
    same(of.evaluate(mdp, policy, returns="v", backend=backend), value)
    same(of.solve(mdp, returns="v", backend=backend), best)
    assert of.evaluate(mdp, policy, returns="start", backend=backend) == value[0]
    assert of.solve(mdp, returns="start", backend=backend) == best[0]


@cases
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("batch", [False, True])
def test_results_are_written_to_out(case, backend, batch):
    mdp, policies = problem(case, 3)
    policy, models = (policies, [mdp] * 3) if batch else (policies[0], mdp)
    q, v, chosen = np.full(policy.shape, np.nan), np.full(policy.shape[:-1], np.nan), np.full(policy.shape, np.nan)
    found = of.evaluate(models, policy, out=(q, v), backend=backend)
    assert found.q is q
    assert found.v is v
    same(q, of.evaluate(models, policy, backend=backend).q)
    same(v, of.evaluate(models, policy, backend=backend).v)
    best = of.solve(models, out=(q, v, chosen), backend=backend)
    assert best.policy is chosen
    for part, expected in zip(best, of.solve(models, backend=backend), strict=True):
        same(part, expected)
    assert of.solve(models, returns="v", out=v, backend=backend) is v
    same(v, best.v)
    assert of.occupancy(models, policy, out=q, backend=backend) is q
    same(q, of.occupancy(models, policy, backend=backend))
    expected = of.exponential_weights(policies, q if batch else policies, 0.5, backend=backend)
    in_place = policies.copy()
    assert of.exponential_weights(in_place, q if batch else policies, 0.5, out=in_place, backend=backend) is in_place
    same(in_place, expected)
    same(expected[1], of.exponential_weights(policies[1], q[1] if batch else policies[1], 0.5, backend=backend))
    visits = 5 * np.abs(policies)
    expected = of.bonus(visits, 1.0, backend=backend)
    assert of.bonus(visits, 1.0, out=visits, backend=backend) is visits
    same(visits, expected)
    assert of.bonus(policies, 1.0, out=visits, backend=backend) is visits


def test_the_policy_of_a_chain_is_written_to_out():
    for masked in (False, True):
        mdp, _ = problem(("dense", 3, masked), 1)
        chain = of.PolicyChain(mdp.layout, eta=0.1, beta_loss=0.1, beta_dynamics=0.1, action_mask=mdp.action_mask)
        chain.append(mdp)
        out = np.full(mdp.layout.shape, np.nan)
        assert chain.policy(out=out) is out
        same(out, chain.policy())


def test_no_memory_is_taken_in_a_loop():
    import tracemalloc

    rng = np.random.default_rng(0)
    mdp = random_model(rng, [1, 50, 50], 4, "csr", masked=True)
    policy = random_policy(rng, mdp)
    q, v, chosen = np.empty(mdp.layout.shape), np.empty(mdp.layout.n_states), np.empty(mdp.layout.shape)

    def loop():
        of.evaluate(mdp, policy, out=(q, v))
        of.solve(mdp, out=(q, v, chosen))
        of.occupancy(mdp, policy, out=q)

    # By then the transposed copy for repeated occupancies of sparse models has been made, and CPython 3.11
    # has its free list of 2,000 tuples with twenty entries, which it keeps.
    for _ in range(2_100):
        loop()
    tracemalloc.start()
    for _ in range(10):
        loop()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 0.5 * q.nbytes + 2000


REFUSED = {
    "shape": lambda mdp, p, q, v: of.evaluate(mdp, p[:, :-1]),
    "axes": lambda mdp, p, q, v: of.evaluate(mdp, p[None]),
    "none": lambda mdp, p, q, v: of.evaluate(mdp, p[:0]),
    "models": lambda mdp, p, q, v: of.evaluate([], p[0]),
    "no model": lambda mdp, p, q, v: of.evaluate([mdp, 3], p[0]),
    "another layout": lambda mdp, p, q, v: of.solve([mdp, random_model(np.random.default_rng(0), [1, 2], 3, "dense")]),
    "another mask": lambda mdp, p, q, v: of.solve([mdp, problem(("dense", 3, True))[0]]),
    "numbers": lambda mdp, p, q, v: of.occupancy([mdp] * 3, p[:2]),
    "policy": lambda mdp, p, q, v: of.evaluate(mdp, 2 * p),
    "policies": lambda mdp, p, q, v: of.occupancy([mdp] * 3, 2 * p),
    "weights": lambda mdp, p, q, v: of.exponential_weights(2 * p, p, 1.0),
    "q": lambda mdp, p, q, v: of.exponential_weights(p, p + np.inf, 1.0),
    "returns": lambda mdp, p, q, v: of.evaluate(mdp, p, returns="q"),
    "out of start": lambda mdp, p, q, v: of.evaluate(mdp, p, returns="start", out=v),
    "one of two": lambda mdp, p, q, v: of.evaluate(mdp, p[0], out=q[0]),
    "list": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=p[0].tolist()),
    "size": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=q),
    "single": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=q[0].astype(np.float32)),
    "strided": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=np.repeat(q[0], 2, axis=1)[:, ::2]),
    "read-only": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=np.broadcast_to(np.zeros(()), q[0].shape)),
    "same": lambda mdp, p, q, v: of.occupancy(mdp, p[0], out=p[0]),
    "same of two": lambda mdp, p, q, v: of.evaluate(mdp, p[0], out=(q[0], q.reshape(-1)[: v.shape[1]])),
    "overlapping": lambda mdp, p, q, v: of.bonus(p[:2], 1.0, out=p[1:]),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_does_not_fit_is_refused(which):
    mdp, policies = problem(("dense", 3, False), 3)
    q, v = np.empty(policies.shape), np.empty(policies.shape[:-1])
    with pytest.raises(of.OpoError, match=r"policy|mdp|returns|out|q"):
        REFUSED[which](mdp, policies, q, v)


def test_a_policy_of_a_batch_is_named():
    mdp, policies = problem(("dense", 3, False), 3)
    policies[2, 4, 1] = -1.0
    calls = [
        lambda backend=backend, op=op: op(mdp, policies, backend=backend) for backend in BACKENDS for op in (of.evaluate, of.occupancy)
    ]
    for call in (*calls, lambda: of.exponential_weights(policies, policies, 1.0)):
        with pytest.raises(of.OpoError, match=r"policy\[2\]: state 4"):
            call()
    with pytest.raises(of.OpoError, match="policy: state 4"):
        of.evaluate([mdp, mdp], policies[2])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_policies_in_single_precision_are_taken(backend, masked):
    """Their probabilities sum to 1 up to 1e-7 only."""
    mdp, policies = problem(("dense", 3, masked), 20)
    single = policies.astype(np.float32)
    assert (np.abs(single.astype(float).sum(axis=2) - 1) > 1e-8).any()
    for one in (of.evaluate(mdp, single, backend=backend).v, of.evaluate([mdp] * 20, single, backend=backend).v):
        np.testing.assert_allclose(one, of.evaluate(mdp, policies).v, rtol=1e-6)
    np.testing.assert_allclose(of.occupancy(mdp, single, backend=backend), of.occupancy(mdp, policies), rtol=1e-5)


# -- models whose numbers change -------------------------------------------------------------------------------------------


def updatable(mdp):
    return of.UpdatableMDP(mdp.layout, mdp.losses, mdp.transitions.arrays(), mdp.action_mask)


def other_numbers(mdp, seed=3):
    """Other losses, and transitions with each row reversed, so that the indices differ but their number does not."""
    rng = np.random.default_rng(seed)
    turned, arrays = {}, mdp.transitions.arrays()
    for array in arrays:
        if id(array) not in turned:
            turned[id(array)] = array[..., ::-1].copy() if isinstance(array, np.ndarray) else array[:, ::-1].tocsr()
    return rng.random(mdp.layout.shape), [turned[id(array)] for array in arrays]


@cases
def test_an_update_is_a_model_built_anew(case):
    mdp, policies = problem(case, 2)
    model = updatable(mdp)
    for copied in (model, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        same(of.solve(copied).q, of.solve(mdp).q)
        losses, _ = other_numbers(mdp)
        copied.update(losses=losses)
        same(of.evaluate(copied, policies[0]).q, of.evaluate(mdp.with_losses(losses), policies[0]).q)
        arrays = mdp.transitions.arrays()
        _, turned = other_numbers(mdp)
        copied.update(transitions=turned)
        anew = of.LayeredMDP(mdp.layout, losses, turned, mdp.action_mask)
        same(of.evaluate(copied, policies[0]).q, of.evaluate(anew, policies[0]).q)
        same(of.occupancy(copied, policies), of.occupancy(anew, policies))
        same(of.solve([copied]).q[0], of.solve(anew).q)
        same(of.solve(copied, backend="numpy").v, of.solve(anew, backend="numpy").v)
        copied.update(losses=mdp.losses, transitions=arrays)
        same(of.solve(copied).q, of.solve(mdp).q)


def test_an_update_keeps_the_memory():
    mdp, _ = problem(("csr", 4, False), 1)
    model = updatable(mdp)
    data, losses = model.transitions.data.ctypes.data, model.row_losses.ctypes.data
    model.update(*other_numbers(mdp))
    assert (model.transitions.data.ctypes.data, model.row_losses.ctypes.data) == (data, losses)
    assert not model.transitions.data.flags.writeable
    assert not model.losses.flags.writeable


@pytest.mark.parametrize("form", ["dense", "csr", "stationary", "stationary csr"])
def test_a_model_is_refused_from_a_failed_update_to_one_of_the_same_part(form):
    mdp, _ = problem((form, 3, False), 1)
    model = updatable(mdp)
    right = {"losses": mdp.losses, "transitions": mdp.transitions.arrays()}
    doubled = {id(array): array * 2 for array in right["transitions"]}
    wrong = {"losses": mdp.losses - 2, "transitions": [doubled[id(array)] for array in right["transitions"]]}
    calls = (
        lambda: of.solve(model),
        lambda: of.solve([model]),
        lambda: of.solve_layer(model, 0),
        lambda: of.evaluate(model, mdp.uniform_policy()),
        lambda: kernels.arrays(model),
        lambda: pickle.dumps(model),
    )
    for part, other in (("losses", "transitions"), ("transitions", "losses")):
        with pytest.raises(of.OpoError):
            model.update(**{part: wrong[part]})
        model.update(**{other: right[other]})
        for call in calls:
            with pytest.raises(of.OpoError, match=rf"half updated, since an update of its {part} failed.* call update\({part}=\.\.\.\)"):
                call()
        model.update(**{part: right[part]})
        same(of.solve(model).q, of.solve(mdp).q)
    for part in right:
        with pytest.raises(of.OpoError):
            model.update(**{part: wrong[part]})
    with pytest.raises(of.OpoError, match=r"losses and transitions failed: call update\(losses=\.\.\., transitions=\.\.\.\)"):
        of.solve(model)
    model.update(**right)
    same(of.solve(model).q, of.solve(mdp).q)


@pytest.mark.parametrize("form", ["dense", "csr", "stationary", "stationary csr"])
def test_a_wrong_kind_of_argument_leaves_the_model_as_it_was(form):
    mdp, _ = problem((form, 3, False), 1)
    model = updatable(mdp)
    expected = of.solve(mdp).q
    losses, arrays = other_numbers(mdp)
    last = arrays[-1]
    faulty = [
        {"losses": losses[1:]},
        {"losses": losses + 0j},
        {"losses": np.ma.masked_array(losses, losses > 0.5)},
        {"losses": losses, "transitions": arrays[1:]},
        {"losses": losses, "transitions": [*arrays[:-1], last[:-1]]},
        {"losses": losses, "transitions": [*arrays[:-1], (last + 0j if isinstance(last, np.ndarray) else last.toarray())]},
        {"losses": losses[1:], "transitions": arrays},
    ]
    for arguments in faulty:
        with pytest.raises(of.OpoError):
            model.update(**arguments)
        same(of.solve(model).q, expected)


@pytest.mark.parametrize("form", ["dense", "csr"])
def test_a_failed_update_names_the_row(form):
    """Small dense models are filled in one call, which says only that something is wrong."""
    mdp, _ = problem((form, 3, False), 1)
    model, arrays = updatable(mdp), [array.copy() for array in mdp.transitions.arrays()]
    if form == "dense":
        arrays[1][1, 2] *= 2
    else:
        first = arrays[1].indptr[3 + 2]
        arrays[1].data[first : arrays[1].indptr[3 + 3]] *= 2
    state = int(mdp.layout.offsets[1]) + 1
    with pytest.raises(of.OpoError, match=rf"layer 1, state {state} \(position 1\), action 2: the row sums to 2.0"):
        model.update(transitions=arrays)


def test_attributes_of_an_updatable_model_cannot_be_assigned():
    mdp, _ = problem(("dense", 3, False), 1)
    model = updatable(mdp)
    for name in ("losses", "transitions", "layout", "action_mask", "row_losses", "keeps_losses_once", "horizon"):
        with pytest.raises(of.OpoError, match=rf"{name} .*update\(losses=\.\.\., transitions=\.\.\.\)"):
            setattr(model, name, None)
    same(of.solve(model).q, of.solve(mdp).q)


@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("many", [False, True])
def test_results_that_overlap_are_named(backend, many):
    mdp, policies = problem(("dense", 3, False), 2)
    policy = policies if many else policies[0]
    q = np.empty(policy.shape)
    v = q.reshape(-1)[: q.size // 3].reshape(q.shape[:-1])
    with pytest.raises(of.OpoError, match=r"out\[1\] shares memory with out\[0\]"):
        of.evaluate(mdp, policy, out=(q, v), backend=backend)
    apart = np.empty(q.shape[:-1])
    with pytest.raises(of.OpoError, match=r"out\[2\] shares memory with out\[0\]"):
        of.solve([mdp] * 2 if many else mdp, out=(q, apart, q), backend=backend)


def test_what_an_update_cannot_hold_is_refused():
    sparse, _ = problem(("csr", 3, False), 1)
    stationary, _ = problem(("stationary", 3, False), 1)
    dense, _ = problem(("dense", 3, False), 1)
    arrays = sparse.transitions.arrays()
    fuller = [*arrays[:-1], type(arrays[-1])(np.full(arrays[-1].shape, 1 / 11))]
    thinner = [*arrays[:-1], type(arrays[-1])(np.eye(11)[[0] * arrays[-1].shape[0]])]
    for mdp, given, says in (
        (sparse, thinner, "as many as before"),
        (of.LayeredMDP(sparse.layout, sparse.losses, thinner), fuller, "as many as before"),
        (sparse, dense.transitions.arrays(), "sparse array is needed"),
        (dense, arrays, "dense array is needed"),
        (stationary, [array.copy() for array in stationary.transitions.arrays()], "share their memory"),
    ):
        with pytest.raises(of.OpoError, match=says):
            updatable(mdp).update(transitions=given)


def test_updatable_models_are_refused_where_models_are_kept():
    mdp, _ = problem(("dense", 3, False), 1)
    model = updatable(mdp)
    chain = of.PolicyChain(mdp.layout, eta=0.1, beta_loss=0.1, beta_dynamics=0.1)
    for call in (
        lambda: chain.append(model),
        lambda: of.policy_chain([model], eta=0.1, beta_loss=0.1, beta_dynamics=0.1),
        lambda: of.FiniteContexts([model]),
        lambda: of.LayeredMDP(mdp.layout, mdp.losses, model),
        lambda: of.LayeredMDP(mdp.layout, mdp.losses, model.transitions),
        lambda: of.UpdatableMDP(mdp.layout, mdp.losses, mdp.transitions),
    ):
        with pytest.raises(of.OpoError):
            call()


def test_the_repr_of_an_updatable_model():
    mdp, _ = problem(("dense", 3, True), 1)
    model = updatable(mdp)
    same(model.uniform_policy(), mdp.uniform_policy())
    assert repr(model).startswith("<UpdatableMDP Layout([1, 11, 11, 11], n_actions=3): 34 states")
