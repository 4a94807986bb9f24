"""Plausible sets of parametric oracles: the properties that all classes share."""

from __future__ import annotations

import numpy as np
import pytest
from test_oracle_promises import CLASSES, CONTEXTS, LAYOUT, MASK, World

import opo_fast as of
from opo_fast._support.state import read_state, write_state
from opo_fast.oracles import TrajectoryLog, scheduled

PARAMETRIC = [name for name in CLASSES if "finite" not in name and hasattr(CLASSES[name]().oracle(LAYOUT, None), "keep_plausible")]


def keeping(name, delta=0.05, mask=None):
    oracle = CLASSES[name]().oracle(LAYOUT, mask)
    oracle.keep_plausible(delta)
    return oracle


def bounds(oracle, version, context):
    return (oracle.lower if hasattr(oracle, "lower") else oracle.radius)(version, context)


def test_all_but_scikit_learn_keep_sets():
    assert set(CLASSES) - set(PARAMETRIC) == {"finite loss", "finite dynamics", "sklearn loss", "sklearn dynamics"}


@pytest.mark.parametrize("name", PARAMETRIC)
def test_sets_shrink_with_data_and_keep_their_past(name):
    oracle = keeping(name)
    assert oracle.plausible() == (0, 0)
    first, known = bounds(oracle, 0, CONTEXTS[0]).copy(), {}
    log = TrajectoryLog.collect(World(), 2400, seed=3)
    for i, t in enumerate(log[:100]):
        oracle.observe(t)
        fit, version = oracle.plausible()
        assert version == i + 1
        assert fit == oracle.fit()
        if i % 20 == 19:
            known[version] = [bounds(oracle, version, c).copy() for c in CONTEXTS]
    oracle.observe_many(log[100:])
    version = oracle.plausible()[1]
    known[version] = [bounds(oracle, version, c).copy() for c in CONTEXTS]
    for version, values in known.items():
        for c, value in zip(CONTEXTS, values, strict=True):
            assert np.array_equal(bounds(oracle, version, c), value)
            assert bounds(oracle, version, c).shape == LAYOUT.shape
    last = list(known.values())[-1][0]
    if hasattr(oracle, "lower"):
        assert (first == 0).all()
        assert last.mean() > 0.1
    else:
        assert (last <= first).all()
        assert last[:4].mean() < 0.7 * first[:4].mean()
        assert (last[4:] == 0).all()
    assert np.isnan(oracle.plausible_count(version))


@pytest.mark.parametrize("mask", [None, MASK], ids=["all allowed", "masked"])
@pytest.mark.parametrize("name", PARAMETRIC)
def test_sets_are_saved_and_loaded_to_the_bit(name, mask, tmp_path):
    log = TrajectoryLog.collect(World(mask), 40, seed=5)
    first = keeping(name, mask=mask)
    for t in log[:20]:
        first.observe(t)
        first.plausible()
    first.observe(log[20])  # not part of any version yet
    write_state(tmp_path / "state.npz", first.state())
    fresh, kept = CLASSES[name]().oracle(LAYOUT, mask), keeping(name, mask=mask)
    for second in (fresh, kept):
        second.restore(read_state(tmp_path / "state.npz"))
        assert second.delta == 0.05
    for n, t in enumerate(log[21:]):
        answers = [oracle.plausible() for oracle in (first, fresh, kept)]
        assert answers[0] == answers[1] == answers[2]
        for version in {0, 3, 11, answers[0][1]}:
            for c in CONTEXTS if n % 7 == 0 else []:
                bits = [bounds(oracle, version, c).tobytes() for oracle in (first, fresh, kept)]
                assert bits[0] == bits[1] == bits[2]
        for oracle in (first, fresh, kept):
            oracle.observe(t)
    with pytest.raises(of.OpoError, match=r"plausible set at failure probability 0\.05: 0\.1 is needed"):
        keeping(name, 0.1, mask).restore(first.state())
    with pytest.raises(of.OpoError, match="holds no plausible set"):
        kept.restore(CLASSES[name]().oracle(LAYOUT, mask).state())
    without = {key: value for key, value in first.state().items() if key != "plausible.centres"}
    with pytest.raises(of.OpoError, match=r"has no 'plausible\.centres'"):
        kept.restore(without)


@pytest.mark.parametrize("name", PARAMETRIC)
def test_a_log_is_one_version_and_the_same_set(name):
    log = TrajectoryLog.collect(World(), 60, seed=6)
    first, second = keeping(name), keeping(name)
    for t in log:
        first.observe(t)
        first.plausible()
    second.observe_many(log)
    assert second.plausible()[1] == 1
    for c in CONTEXTS:
        np.testing.assert_allclose(bounds(second, 1, c), bounds(first, 60, c), rtol=0.05, atol=0.05)
    with pytest.raises(of.OpoError, match="0 to 1, is needed"):
        bounds(second, 2, CONTEXTS[0])
    with pytest.raises(of.OpoError, match="call it once, before any data"):
        second.keep_plausible(0.1)
    plain = CLASSES[name]().oracle(LAYOUT, None)
    for call in (plain.plausible, lambda: bounds(plain, 0, CONTEXTS[0]), lambda: plain.plausible_count(0)):
        with pytest.raises(of.OpoError, match="keeps no plausible set"):
            call()


@pytest.mark.parametrize("name", PARAMETRIC)
def test_a_schedule_holds_the_set_as_it_holds_the_fit(name):
    held = scheduled(CLASSES[name](), "doubling").oracle(LAYOUT, None)
    held.keep_plausible(0.05)
    versions = []
    for t in TrajectoryLog.collect(World(), 33, seed=7):
        held.observe(t)
        versions.append(held.plausible())
    assert len(set(versions)) == 6
    assert versions[-1] == versions[-2] == (held.fit(), 6)
    again = scheduled(CLASSES[name](), "doubling").oracle(LAYOUT, None)
    again.restore(held.state())
    assert again.plausible() == versions[-1]
    assert bounds(again, 4, CONTEXTS[1]).tobytes() == bounds(held, 4, CONTEXTS[1]).tobytes()


@pytest.mark.parametrize("name", PARAMETRIC)
def test_keeping_sets_does_not_change_the_fits(name):
    log = TrajectoryLog.collect(World(), 30, seed=8)
    first, second = keeping(name), CLASSES[name]().oracle(LAYOUT, None)
    for t in log:
        for oracle in (first, second):
            oracle.observe(t)
        assert first.plausible()[0] == second.fit()
    plain, kept = second.state(), first.state()
    assert all(np.array_equal(kept[key], value) for key, value in plain.items())
    assert not [key for key in plain if "plausible" in key]
