"""Bad inputs of models and operations: each is refused with an `OpoError` that names the argument, the place and the value."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.sparse as sp
from strategies import random_model

import opo_fast as of
from opo_fast.model.contextual import check_trajectory
from opo_fast.model.transitions import Transitions

LAYOUT = of.Layout([1, 3, 4], 2)
MASK = np.ones(LAYOUT.shape, bool)
MASK[2, 1] = False


def losses(place=None, value=0.5):
    array = np.full(LAYOUT.shape, 0.5)
    if place is not None:
        array[place] = value
    return array


def blocks(place=None, value=0.0):
    """Uniform transitions; `place` is (layer, local state, action, next state) or a shorter index."""
    arrays = [np.full((1, 2, 3), 1 / 3), np.full((3, 2, 4), 0.25)]
    if place is not None:
        arrays[place[0]][place[1:]] = value
    return arrays


def sparse(place=None, value=0.0):
    return [sp.csr_array(block.reshape(-1, block.shape[2])) for block in blocks(place, value)]


def csr(**parts):
    """The second layer as a CSR array whose parts are changed after SciPy has checked them."""
    array = sparse()[1]
    for name, value in parts.items():
        setattr(array, name, value)
    return [sparse()[0], array]


def damaged_coo(axis, value):
    array = sp.coo_array(sparse()[1])
    array.coords[axis][5] = value
    return [sparse()[0], array]


def damaged_csc():
    array = sp.csc_array(sparse()[1])
    array.indices = array.indices.copy()
    array.indices[2] = 99
    return [sparse()[0], array]


def flat(dtype=np.float64, **changes):
    """Flat CSR arrays, as `Transitions.from_flat` takes them, with one number changed."""
    t = of.LayeredMDP(LAYOUT, losses(), sparse()).transitions
    arrays = {name: np.array(getattr(t, name)) for name in ("data", "indptr", "indices", "block")}
    for name, (place, value) in changes.items():
        arrays[name][place] = value
    arrays["data"] = arrays["data"].astype(dtype)
    return Transitions.from_flat(LAYOUT, **arrays)


def model(loss=None, transitions=None, mask=None, **options):
    return of.LayeredMDP(LAYOUT, losses() if loss is None else loss, blocks() if transitions is None else transitions, mask, **options)


def policy(place=None, value=0.5):
    array = np.full(LAYOUT.shape, 0.5)
    if place is not None:
        array[place] = value
    return array


def changed(array, place, value):
    array = np.array(array)
    array[place] = value
    return array


UNIFORM = np.full((2, 1, 2), 0.5)


def stationary(P=UNIFORM, loss=((0.0,), (1.0,)), horizon=3, start=0, **options):
    return of.LayeredMDP.stationary(P, loss, horizon, start, **options)


def chain(history=None, **parameters):
    settings = {"eta": 1.0, "beta_loss": 1.0, "beta_dynamics": 1.0, **parameters}
    return of.policy_chain([model()] if history is None else history, **settings)


BAD = {
    # layout
    "no layer": (lambda: of.Layout([], 2), ["layer_sizes", "at least one layer"]),
    "empty layer": (lambda: of.Layout([1, 3, 0, 2], 2), ["layer_sizes[2]", "0", "at least 1"]),
    "negative layer": (lambda: of.Layout([1, -3], 2), ["layer_sizes[1]", "-3"]),
    "several start states": (lambda: of.Layout([2, 3], 2), ["layer_sizes[0]", "2", "single start state"]),
    "fractional layer": (lambda: of.Layout([1, 2.5], 2), ["layer_sizes[1]", "2.5", "whole number"]),
    "layer of truth": (lambda: of.Layout([True, 2], 2), ["layer_sizes[0]", "True"]),
    "layers are a number": (lambda: of.Layout(3, 2), ["layer_sizes", "3", "sequence"]),
    "layer too large for a position": (lambda: of.Layout([1, 2**32], 2), ["layer_sizes", str(2**32)]),
    "no action": (lambda: of.Layout([1], 0), ["n_actions", "0", "at least 1"]),
    "actions are text": (lambda: of.Layout([1], "2"), ["n_actions", "'2'"]),
    # losses
    "loss above 1": (lambda: model(losses((3, 1), 1.5)), ["losses", "state 3", "action 1", "1.5", "[0, 1]"]),
    "negative loss": (lambda: model(losses((0, 0), -1e-9)), ["losses", "state 0", "action 0", "-1e-09"]),
    "loss nan": (lambda: model(losses((7, 1), np.nan)), ["losses", "state 7", "action 1", "nan"]),
    "loss -inf for an action that is not there": (lambda: model(losses((2, 1), -np.inf)), ["losses", "state 2", "-inf", "mask"]),
    "losses of another shape": (lambda: model(np.zeros((8, 3))), ["losses", "(8, 3)", "(8, 2)"]),
    "losses of text": (lambda: model(np.full((8, 2), "a")), ["losses", "<U1"]),
    "complex losses": (lambda: model(losses() + 0j), ["losses", "complex128"]),
    "losses of objects": (lambda: model(np.full((8, 2), None)), ["losses", "object"]),
    "ragged losses": (lambda: model([[0.0, 1.0], [0.0]]), ["losses", "rectangular"]),
    "sparse losses": (lambda: model(sp.csr_array(losses())), ["losses", "sparse"]),
    "losses with holes": (lambda: model(np.ma.masked_equal(losses(), 0.5)), ["losses", "masked array"]),
    "losses of with_losses": (lambda: model().with_losses(losses((1, 0), 2.0)), ["losses", "state 1", "2.0"]),
    # transitions
    "row above 1": (
        lambda: model(transitions=blocks((1, 2, 0), [0.45, 0.9, 0.45, 0.0])),
        ["transitions[1]", "layer 1", "state 3", "position 2", "action 0", "1.8"],
    ),
    "row of 1.1": (lambda: model(transitions=blocks((0, 0, 1), [0.8, 0.1, 0.2])), ["transitions[0]", "layer 0", "state 0", "1.1"]),
    "row of a half": (lambda: model(transitions=blocks((1, 0, 1), 0.125)), ["transitions[1]", "state 1", "action 1", "0.5"]),
    "row off by 1e-7": (
        lambda: model(transitions=blocks((1, 0, 1, 0), 0.25 + 1e-7)),
        ["transitions[1]", "state 1", "action 1", "1.0000001", "not renormalised"],
    ),
    "all-zero row": (
        lambda: model(transitions=blocks((1, 1, 1), 0.0)),
        ["transitions[1]", "state 2", "action 1", "all zero", "terminal"],
    ),
    "negative probability": (
        lambda: model(transitions=blocks((1, 1, 0), [-0.5, 0.5, 0.5, 0.5])),
        ["transitions[1]", "state 2", "action 0", "next state 0", "-0.5"],
    ),
    "nan probability": (
        lambda: model(transitions=blocks((1, 2, 1, 3), np.nan)),
        ["transitions[1]", "state 3", "action 1", "next state 3", "nan"],
    ),
    "infinite probability": (lambda: model(transitions=blocks((0, 0, 0, 1), np.inf)), ["transitions[0]", "next state 1", "inf"]),
    "sparse row above 1": (
        lambda: model(transitions=sparse((1, 2, 0, 1), 0.75)),
        ["transitions[1]", "state 3", "position 2", "action 0", "1.5"],
    ),
    "sparse all-zero row": (lambda: model(transitions=sparse((1, 0, 0), 0.0)), ["transitions[1]", "state 1", "action 0", "all zero"]),
    "sparse nan": (lambda: model(transitions=sparse((0, 0, 1, 2), np.nan)), ["transitions[0]", "action 1", "next state 2", "nan"]),
    "sparse negative": (
        lambda: model(transitions=sparse((1, 1, 1), [0.5, 0.5, 0.5, -0.5])),
        ["transitions[1]", "state 2", "next state 3", "-0.5"],
    ),
    "fault in a masked model": (
        lambda: model(transitions=blocks((1, 2, 0), 0.5), mask=MASK),
        ["transitions[1]", "state 3", "position 2", "action 0", "2.0"],
    ),
    "fault in a masked sparse model": (
        lambda: model(transitions=sparse((1, 2, 1), 0.5), mask=MASK),
        ["transitions[1]", "state 3", "action 1", "2.0"],
    ),
    "row of float32 too far off": (
        lambda: model(transitions=[b.astype(np.float32) for b in blocks((1, 0, 0, 0), 0.2501)]),
        ["transitions[1]", "state 1", "1.00009"],
    ),
    "too few layers": (lambda: model(transitions=blocks()[:1]), ["transitions", "1 arrays", "H - 1 = 2"]),
    "a layer into the end state": (lambda: model(transitions=[*blocks(), np.ones((4, 2, 1))]), ["transitions", "3 arrays", "end state"]),
    "wrong block shape": (lambda: model(transitions=[blocks()[0], np.ones((3, 2, 3)) / 3]), ["transitions[1]", "(3, 2, 3)", "(3, 2, 4)"]),
    "wrong sparse shape": (lambda: model(transitions=[sparse()[0], sparse()[0]]), ["transitions[1]", "(2, 3)", "(6, 4)"]),
    "dense and sparse": (lambda: model(transitions=[blocks()[0], sparse()[1]]), ["transitions[0]", "dense", "transitions[1]", "sparse"]),
    "one sparse array": (lambda: model(transitions=sparse()[1]), ["transitions", "csr_array", "sequence of 2 arrays"]),
    "transitions are a number": (lambda: model(transitions=7), ["transitions", "int"]),
    "transitions are text": (lambda: model(transitions="ab"), ["transitions", "str"]),
    "complex block": (lambda: model(transitions=[blocks()[0], blocks()[1] + 0j]), ["transitions[1]", "complex128"]),
    "complex sparse block": (lambda: model(transitions=[sparse()[0], sparse()[1] * (1 + 0j)]), ["transitions[1]", "complex128"]),
    "position outside the next layer": (
        lambda: model(transitions=csr(indices=changed(sparse()[1].indices, 6, 4))),
        ["transitions[1]", "row 1", "next state 4", "0 to 3"],
    ),
    "negative position": (
        lambda: model(transitions=csr(indices=changed(sparse()[1].indices, 23, -1))),
        ["transitions[1]", "row 5", "next state -1"],
    ),
    "pointer beyond the entries": (
        lambda: model(transitions=csr(indptr=changed(sparse()[1].indptr, -1, 10**6))),
        ["transitions[1]", "row pointers", "24"],
    ),
    "falling pointers": (lambda: model(transitions=csr(indptr=changed(sparse()[1].indptr, 2, 20))), ["transitions[1]", "row pointers"]),
    "too few pointers": (lambda: model(transitions=csr(indptr=sparse()[1].indptr[:-1])), ["transitions[1]", "row pointers", "6 rows"]),
    "entries cut": (lambda: model(transitions=csr(data=sparse()[1].data[:-1])), ["transitions[1]", "row pointers"]),
    "coordinate outside the rows": (lambda: model(transitions=damaged_coo(0, 6)), ["transitions[1]", "entry 5", "row 6", "0 to 5"]),
    "coordinate outside the layer": (lambda: model(transitions=damaged_coo(1, -2)), ["transitions[1]", "entry 5", "next state -2"]),
    "column form outside the rows": (lambda: model(transitions=damaged_csc()), ["transitions[1]", "not a valid sparse array"]),
    "flat pointers beyond the entries": (lambda: flat(indptr=(1, 10**9)), ["indices", "layer 0, row 0"]),
    "flat pointers end too far": (lambda: flat(indptr=(-1, 10**9)), ["block[1]", "layer 1", "do not fit"]),
    "flat block too far": (lambda: flat(block=(1, 99)), ["block[1]", "99"]),
    "flat block negative": (lambda: flat(block=(0, -1)), ["block[0]", "-1"]),
    "flat position outside the layer": (lambda: flat(indices=(3, 3)), ["indices", "layer 0, row 1", "0 to 2"]),
    "flat positions out of order": (lambda: flat(indices=(1, 0)), ["indices", "layer 0, row 0"]),
    "flat row sum": (lambda: flat(data=(6, 0.75)), ["data[1]", "layer 1", "state 1", "action 0", "1.5"]),
    "flat nan": (lambda: flat(data=(0, np.nan)), ["data[0]", "state 0", "next state 0", "nan"]),
    "flat data of integers": (lambda: flat(data=(0, 1), dtype=np.int64), ["data", "float64 or float32"]),
    "transitions of another layout": (
        lambda: of.LayeredMDP(of.Layout([1, 3], 2), np.zeros((4, 2)), model().transitions),
        ["transitions", "[1, 3, 4]", "[1, 3]"],
    ),
    "another mask than that of the transitions": (
        lambda: of.LayeredMDP(LAYOUT, losses(), model().transitions, MASK),
        ["action_mask", "transitions"],
    ),
    "layout is a list": (lambda: of.LayeredMDP([1, 3, 4], losses(), blocks()), ["layout", "list", "Layout"]),
    "unknown storage": (lambda: model(dtype=np.float16), ["dtype", "float16", "float32"]),
    "storage is no type": (lambda: model(dtype="double precision"), ["dtype", "'double precision'"]),
    # masks
    "fully masked state": (lambda: model(mask=changed(MASK, 5, False)), ["action_mask", "state 5", "layer 2", "no action"]),
    "mask of numbers": (lambda: model(mask=np.ones((8, 2))), ["action_mask", "float64", "booleans"]),
    "mask of another shape": (lambda: model(mask=np.ones((8, 3), bool)), ["action_mask", "(8, 3)", "(8, 2)"]),
    # stationary models
    "no step": (lambda: stationary(horizon=0), ["horizon", "0", "at least 1"]),
    "half a step": (lambda: stationary(horizon=1.5), ["horizon", "1.5"]),
    "P of another shape": (lambda: stationary(P=np.ones((3, 1, 3)) / 3), ["P", "(3, 1, 3)", "(2, 1, 2)"]),
    "sparse P of another shape": (lambda: stationary(P=sp.csr_array(np.eye(3))), ["P", "(3, 3)", "(S * A, S)"]),
    "P does not sum to 1": (lambda: stationary(P=changed(UNIFORM, (1, 0, 1), 0.75)), ["P[1]", "position 1", "action 0", "1.25"]),
    "start outside the states": (lambda: stationary(start=2), ["start", "2", "0 to 1"]),
    "negative start": (lambda: stationary(start=-1), ["start", "-1"]),
    "start is text": (lambda: stationary(start="first"), ["start", "'first'"]),
    "start distribution too short": (lambda: stationary(start=[1.0]), ["start", "(1,)", "(2,)"]),
    "start distribution sums to 0.9": (lambda: stationary(start=[0.4, 0.5]), ["start", "0.9"]),
    "start distribution negative": (lambda: stationary(start=[1.5, -0.5]), ["start", "state 1", "-0.5"]),
    "start distribution all zero": (lambda: stationary(start=[0.0, 0.0]), ["start", "0.0", "1 is needed"]),
    "stationary losses in one dimension": (lambda: stationary(loss=[0.0, 1.0]), ["losses", "(2,)", "(S, A)"]),
    "stationary loss above 1": (lambda: stationary(loss=[[0.0], [3.0]]), ["losses", "state 1", "action 0", "3.0"]),
    "stationary mask without an action": (lambda: stationary(action_mask=[[True], [False]]), ["action_mask", "state 1", "no action"]),
    "values to unroll": (lambda: stationary().unroll(np.ones((3, 1))), ["values", "(3, 1)", "[2]"]),
    "first row to unroll": (lambda: stationary().unroll(np.ones((2, 1)), first=np.ones(3)), ["first", "(3,)", "(1,)"]),
    "V without a first value": (lambda: stationary(start=[0.5, 0.5]).unroll(np.ones(2)), ["first", "()", "first state"]),
    # policies
    "policy of another shape": (lambda: of.occupancy(model(), np.ones((8, 3)) / 3), ["policy", "(8, 3)", "(8, 2)"]),
    "policy sums to 1.1": (lambda: of.evaluate(model(), policy((4, 1), 0.6)), ["policy", "state 4", "layer 2", "1.1"]),
    "policy nan": (lambda: of.occupancy(model(), policy((1, 0), np.nan)), ["policy", "state 1", "layer 1", "action 0", "nan"]),
    "policy negative": (lambda: of.occupancy(model(), policy((0, slice(None)), [1.5, -0.5])), ["policy", "state 0", "action 1", "-0.5"]),
    "policy row of an unreachable state": (lambda: of.occupancy(model(), policy(7, 0.0)), ["policy", "state 7", "0.0"]),
    "policy plays a masked action": (lambda: of.evaluate(model(mask=MASK), policy()), ["policy", "state 2", "action 1", "masked", "0.5"]),
    "sparse policy": (lambda: of.occupancy(model(), sp.csr_array(policy())), ["policy", "sparse"]),
    "mdp is a layout": (lambda: of.solve(model().layout), ["mdp", "Layout", "LayeredMDP"]),
    "a list of what are no models": (lambda: of.solve([model(), 3]), ["mdp[1]", "int", "LayeredMDP"]),
    "mdp is a list of arrays": (lambda: of.solve([model().losses]), ["mdp", "ndarray", "LayeredMDP"]),
    "unknown backend": (lambda: of.solve(model(), backend="cuda"), ["backend", "'cuda'", "'numba'"]),
    "seed instead of a generator": (lambda: of.rollout(model(), policy(), 3), ["rng", "int", "Generator"]),
    "legacy generator": (lambda: of.rollout(model(), policy(), np.random.RandomState(0)), ["rng", "RandomState"]),
    # bonus, weights, chain
    "negative visits": (lambda: of.bonus([[0.0, 1.0], [-2.0, 0.0]], 1.0), ["visits[1, 0]", "-2.0"]),
    "visits nan": (lambda: of.bonus(np.nan, 1.0), ["visits ", "nan"]),
    "negative beta": (lambda: of.bonus([0.0], -1.0), ["beta", "-1.0", "at least 0"]),
    "beta is text": (lambda: of.bonus([0.0], "1"), ["beta", "'1'", "number"]),
    "q of another shape": (lambda: of.exponential_weights(policy(), np.ones((8, 3)), 1.0), ["q", "(8, 3)", "(8, 2)"]),
    "q infinite": (lambda: of.exponential_weights(policy(), losses((3, 0), np.inf), 1.0), ["q", "state 3", "action 0", "inf"]),
    "eta nan": (lambda: of.exponential_weights(policy(), losses(), np.nan), ["eta", "nan"]),
    "negative eta": (lambda: of.exponential_weights(policy(), losses(), -0.5), ["eta", "-0.5"]),
    "weights of one row": (lambda: of.exponential_weights([0.5, 0.5], [0.0, 0.0], 1.0), ["policy", "(2,)"]),
    "weights of a policy that sums to 2": (lambda: of.exponential_weights(np.ones((1, 2)), [[0, 0]], 1.0), ["policy", "state 0", "2.0"]),
    "empty history": (lambda: chain([]), ["history", "at least one"]),
    "history of arrays": (lambda: chain([model(), losses()]), ["history[1]", "ndarray", "LayeredMDP"]),
    "history of two layouts": (lambda: chain([model(), stationary()]), ["history[1]", "[1, 2, 2]", "[1, 3, 4]"]),
    "history of two masks": (lambda: chain([model(), model(mask=MASK)]), ["history[1]", "mask"]),
    "chain's eta": (lambda: chain(eta=np.inf), ["eta", "inf"]),
    "chain's beta_loss": (lambda: chain(beta_loss=-2), ["beta_loss", "-2"]),
    "chain's beta_dynamics": (lambda: chain(beta_dynamics=None), ["beta_dynamics", "None"]),
    "chain's backend": (lambda: chain(backend="c"), ["backend", "'c'"]),
    # contexts, trajectories, threads
    "no context": (lambda: of.FiniteContexts([]), ["mdps", "at least one"]),
    "one model for mdps": (lambda: of.FiniteContexts(model()), ["mdps", "LayeredMDP", "sequence"]),
    "contexts of two layouts": (lambda: of.FiniteContexts([model(), stationary()]), ["mdps[1]", "[1, 2, 2]", "[1, 3, 4]"]),
    "context that is no model": (lambda: of.FiniteContexts([model(), None]), ["mdps[1]", "NoneType"]),
    "probabilities of contexts": (lambda: of.FiniteContexts([model()] * 2, [0.5, 0.6]), ["probabilities", "1.1"]),
    "negative probability of a context": (lambda: of.FiniteContexts([model()] * 2, [1.5, -0.5]), ["probabilities", "context 1", "-0.5"]),
    "too many probabilities": (lambda: of.FiniteContexts([model()], [0.5, 0.5]), ["probabilities", "(2,)", "(1,)"]),
    "too few labels": (lambda: of.FiniteContexts([model()] * 2, labels=["a"]), ["labels", "1 entries", "2 contexts"]),
    "unknown context": (lambda: of.FiniteContexts([model()] * 2).mdp(2), ["context", "2", "0 to 1"]),
    "context is text": (lambda: of.FiniteContexts([model()] * 2).mdp("0"), ["context", "'0'"]),
    "no thread": (lambda: of.set_threads(0), ["n is 0", "at least 1"]),
    "half a thread": (lambda: of.set_threads(0.5), ["n is 0.5"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_argument_place_and_value(name):
    call, words = BAD[name]
    with pytest.raises(of.OpoError) as caught:
        call()
    message = str(caught.value)
    missing = [word for word in words if word not in message]
    assert not missing, message
    assert len(message) < 400
    assert message.startswith(words[0])


@pytest.mark.parametrize("backend", ["numba", "numpy"])
def test_nan_is_refused_by_both_backends(backend):
    for call in (of.occupancy, of.evaluate):
        with pytest.raises(of.OpoError, match="policy: state 3"):
            call(model(), policy((3, 1), np.nan), backend=backend)
    with pytest.raises(of.OpoError, match="q: state 0"):
        of.exponential_weights([[0.5, 0.5]], [[np.nan, 0.0]], 1.0, backend=backend)


def trajectory(**changes):
    parts = {"context": 0, "states": [0, 2, 5, 8], "actions": [1, 0, 1], "losses": [0.0, 1.0, 0.5], **changes}
    return of.Trajectory(**parts)


BAD_TRAJECTORIES = {
    "state of another layer": ({"states": [0, 4, 5, 8]}, ["trajectory.states[1]", "4", "layer 1, 1 to 3"]),
    "no end state": ({"states": [0, 2, 5, 7]}, ["trajectory.states[3]", "7", "end state 8"]),
    "too few states": ({"states": [0, 2, 5]}, ["trajectory.states", "(3,)", "(4,)"]),
    "states are fractions": ({"states": [0.0, 2.0, 5.0, 8.0]}, ["trajectory.states", "float64", "whole"]),
    "unknown action": ({"actions": [1, 0, 2]}, ["trajectory.actions[2]", "2", "0 to 1"]),
    "masked action": ({"actions": [1, 1, 1]}, ["trajectory.actions[1]", "1", "masked in state 2"]),
    "loss above 1": ({"losses": [0.0, 1.0, 1.25]}, ["trajectory.losses[2]", "1.25", "[0, 1]"]),
    "loss nan": ({"losses": [np.nan, 1.0, 0.0]}, ["trajectory.losses[0]", "nan"]),
    "losses of text": ({"losses": ["a", "b", "c"]}, ["trajectory.losses", "<U1"]),
}


@pytest.mark.parametrize("name", BAD_TRAJECTORIES)
def test_bad_trajectory_is_refused_with_the_step(name):
    changes, words = BAD_TRAJECTORIES[name]
    with pytest.raises(of.OpoError) as caught:
        check_trajectory(LAYOUT, MASK, trajectory(**changes))
    assert [word for word in words if word not in str(caught.value)] == []


def test_something_that_is_no_trajectory_is_refused():
    with pytest.raises(of.OpoError, match="trajectory is a dict without context"):
        check_trajectory(LAYOUT, MASK, {"states": []})


@pytest.mark.parametrize("n_actions", [1, 2, 3, 4, 8, 11])
@pytest.mark.parametrize("function", [of.evaluate, of.occupancy])
@pytest.mark.parametrize("sparse", [False, True])
def test_a_fault_of_a_policy_is_found_wherever_it_is(n_actions, function, sparse):
    """Kernels check a policy while they read it: in whole vectors, in the remaining entries, in every layer."""
    rng = np.random.default_rng(0)
    mdp = random_model(rng, [1, 7, 21, 9], n_actions, "csr" if sparse else "dense")
    good = np.full(mdp.layout.shape, 1 / n_actions)
    function(mdp, good)
    for s in range(mdp.layout.n_states):
        for a in {0, n_actions - 1}:
            for value, words in (
                (np.nan, "nan; a finite number"),
                (np.inf, "inf; a finite number"),
                (-np.inf, "inf; a finite number"),
                (good[s, a] + 3e-8, "sum to 1.0000000"),
            ):
                bad = good.copy()
                bad[s, a] = value
                with pytest.raises(of.OpoError, match=rf"policy: state {s} .*{re.escape(words)}"):
                    function(mdp, bad)
        if n_actions > 1:
            bad = good.copy()
            bad[s, 0] += bad[s, 1] + 0.25
            bad[s, 1] = -0.25
            with pytest.raises(of.OpoError, match=rf"policy: state {s} \(layer \d\), action 1: the probability is -0\.25; at least 0"):
                function(mdp, bad)
        near = good.copy()
        near[s, -1] += 8e-9
        function(mdp, near)
        single = near.astype(np.float32)
        single[s, -1] += np.float32(8e-7)
        function(mdp, single)


@pytest.mark.parametrize("backend", [None, np.array(["numba"]), b"numba"])
def test_a_backend_is_a_name(backend):
    with pytest.raises(of.OpoError, match="backend is"):
        of.solve(model(), backend=backend)


@pytest.mark.parametrize("support", [3, "all", 1.5])
def test_a_support_is_a_sequence(support):
    with pytest.raises(of.OpoError, match="support is a"):
        of.oracles.TabularDynamicsClass(support=support).oracle(LAYOUT, None)


def test_contexts_to_prefetch_are_a_sequence():
    classes = of.FiniteLossClass([lambda c: losses()]), of.FiniteDynamicsClass([lambda c: blocks()])
    agent = of.OPO(LAYOUT, *classes, eta=1.0, beta_loss=1.0, beta_dynamics=1.0)
    with pytest.raises(of.OpoError, match="contexts is a NoneType"):
        agent.prefetch(None)
