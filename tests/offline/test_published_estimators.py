"""The estimators against those of Open Bandit Pipeline (H = 1) and SCOPE-RL on the same log.

Both packages import PyTorch and more, which their NumPy estimators do not use; if it is not installed, empty modules replace it, so that
``pip install --no-deps obp==0.4.1 scope-rl==0.2.1`` is enough.
"""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
import sys
import types

import numpy as np
import pytest
from offline_worlds import world

from opo_fast.offline import evaluate_policy, importance
from opo_fast.offline.estimators import Estimation


def _without_heavy_parts(monkeypatch, package, folder, stubs):
    """A module of a package, imported without running the ``__init__`` of its folder."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed: pip install --no-deps obp==0.4.1 scope-rl==0.2.1")
    absent = [name for name in stubs if "." not in name and importlib.util.find_spec(name) is None]
    for name, content in stubs.items():
        if name.partition(".")[0] in absent:
            module = types.ModuleType(name)
            module.__dict__.update(content)
            monkeypatch.setitem(sys.modules, name, module)
    for name in folder:
        module = types.ModuleType(name)
        module.__path__ = [str(pathlib.Path(spec.submodule_search_locations[0], *name.split(".")[1:]))]
        monkeypatch.setitem(sys.modules, name, module)


class _Anything:
    pass


def scope_rl(monkeypatch):
    stubs = {"gym": {"Env": _Anything}, "d3rlpy": {}, "d3rlpy.preprocessing": {"ActionScaler": _Anything}}
    _without_heavy_parts(monkeypatch, "scope_rl", ["scope_rl", "scope_rl.ope", "scope_rl.ope.discrete"], stubs)
    return importlib.import_module("scope_rl.ope.discrete.basic_estimators")


def obp(monkeypatch):
    _without_heavy_parts(monkeypatch, "obp", ["obp", "obp.ope"], {"torch": {"Tensor": _Anything}})
    return importlib.import_module("obp.ope.estimators")


def logged(name, *, propensities):
    """A log, the policy at its states (n, H, A), and an unrelated Q (n, H, A)."""
    of_world = world(name)
    log = of_world.draw(400, 3, propensities=propensities)
    estimation = Estimation(log, lambda c: of_world.policy[c], None, None, 0.0, 0)
    contexts = np.array(log.contexts)
    policy = of_world.policy[contexts[:, None], log.states[:, :-1]]
    q = np.random.default_rng(4).random((*of_world.policy.shape,))[contexts[:, None], log.states[:, :-1]] * log.layout.horizon
    return log, estimation, policy, q


@pytest.mark.parametrize("propensities", [True, False])
@pytest.mark.parametrize("name", ["bandit", "random", "masked"])
def test_the_estimators_of_scope_rl(monkeypatch, name, propensities):
    theirs = scope_rl(monkeypatch)
    log, estimation, policy, q = logged(name, propensities=propensities)
    horizon = log.layout.horizon
    data = {
        "step_per_trajectory": horizon,
        "action": log.actions.ravel(),
        "reward": log.losses.ravel(),
        "pscore": estimation.propensities.ravel(),
        "evaluation_policy_action_dist": policy.reshape(len(log) * horizon, -1),
        "state_action_value_prediction": q.reshape(len(log) * horizon, -1),
    }
    played = np.take_along_axis(q, log.actions[:, :, None], axis=2)[:, :, 0]
    v = (policy * q).sum(axis=2)
    pairs = [
        (theirs.PerDecisionImportanceSampling(), importance.pdis(estimation.weights, log.losses)),
        (theirs.SelfNormalizedPDIS(), importance.snpdis(estimation.weights, log.losses)),
        (theirs.DoublyRobust(), importance.doubly_robust(estimation.weights, log.losses, played, v)),
        (theirs.DirectMethod(), v[:, 0]),
    ]
    for estimator, mine in pairs:
        assert estimator.estimate_policy_value(**data) == pytest.approx(mine.mean(), rel=0, abs=1e-9)
        assert estimator._estimate_trajectory_value(**data) == pytest.approx(mine, rel=1e-9, abs=1e-9)
    found = evaluate_policy(log, lambda c: world(name).policy[c], estimators=["pdis", "snpdis"], resamples=10)
    for estimator, key in ((theirs.PerDecisionImportanceSampling(), "pdis"), (theirs.SelfNormalizedPDIS(), "snpdis")):
        assert found[key].value == pytest.approx(estimator.estimate_policy_value(**data), rel=0, abs=1e-9)


def test_the_estimators_of_open_bandit_pipeline(monkeypatch):
    theirs = obp(monkeypatch)
    log, estimation, policy, q = logged("bandit", propensities=True)
    data = {
        "reward": log.losses[:, 0],
        "action": log.actions[:, 0],
        "pscore": estimation.propensities[:, 0],
        "action_dist": policy[:, 0, :, None],
        "position": np.zeros(len(log), int),
        "estimated_rewards_by_reg_model": q[:, 0, :, None],
    }
    played, v = q[np.arange(len(log)), 0, log.actions[:, 0]][:, None], (policy * q).sum(axis=2)
    without = {name: values for name, values in data.items() if name != "estimated_rewards_by_reg_model"}
    found = evaluate_policy(log, lambda c: world("bandit").policy[c], estimators=["pdis", "snpdis"], resamples=10)
    assert found["pdis"].value == pytest.approx(theirs.InverseProbabilityWeighting().estimate_policy_value(**without), abs=1e-9)
    assert found["snpdis"].value == pytest.approx(
        theirs.SelfNormalizedInverseProbabilityWeighting().estimate_policy_value(**without), abs=1e-9
    )
    mine = importance.doubly_robust(estimation.weights, log.losses, played, v).mean()
    assert mine == pytest.approx(theirs.DoublyRobust().estimate_policy_value(**data), abs=1e-9)
    regression = {name: data[name] for name in ("action_dist", "position", "estimated_rewards_by_reg_model")}
    assert v.mean() == pytest.approx(theirs.DirectMethod().estimate_policy_value(**regression), abs=1e-9)
