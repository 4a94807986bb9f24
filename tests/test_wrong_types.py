"""Every public name, with each argument in turn replaced by wrong values: accepted, or refused with an `OpoError` that names it."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from public_calls import CALLS, TABLE, agent

import opo_fast as of
from opo_fast import agents, envs, oracles, study

WRONG = {
    "None": None,
    "text": "zz",
    "negative": -1,
    "fraction": 2.5,
    "huge": 10**400,
    "nan": math.nan,
    "inf": math.inf,
    "empty list": [],
    "empty dict": {},
    "list of None": [None],
    "ragged": [[1], [1, 2]],
    "function": lambda *arguments: None,
    "complex": 1j,
    "array": np.array([2.5, math.nan]),
    "array without axes": np.array("zz"),
    "empty array": np.zeros((2, 0)),
    "long text": "zz" * 150,
}
CALLED = {
    "agents": "agent", "name": "agent", "contexts": "context|log", "trajectories": "trajectory|log", "value": "refit", "source": "oracle",
    "arrays": "transitions", "width": "noise", "env": "P", "data": "the study|missing", "store": "folder", "models": "candidate|context",
    "R": "rewards", "rewards": "action_mask",
    "states": "state", "actions": "action|allowed",
}  # fmt: skip
"""Other names that a message may use for an argument, for example if it is one of several."""


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path, monkeypatch, set_threads):
    monkeypatch.chdir(tmp_path)
    TABLE.save("table.npz")
    (tmp_path / "chain.tra").write_text("2 2\n0 1 1.0\n1 1 1.0\n")


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_taken_or_refused_by_name(name):
    call, arguments = CALLS[name]
    faults = []
    for argument in arguments:
        for kind, value in WRONG.items():
            try:
                call(**{**arguments, argument: value})
            except of.OpoError as error:
                message = str(error)
                if not re.search(f"{argument}|zz|{CALLED.get(argument, argument)}", message):
                    faults.append(f"{argument} = {kind}: does not name the argument: {message[:150]}")
                if len(message) > 600:
                    faults.append(f"{argument} = {kind}: a message of {len(message)} characters: {message[:100]}")
            except Exception as error:
                faults.append(f"{argument} = {kind}: {type(error).__name__}: {str(error)[:150]}")
    assert not faults, "\n" + "\n".join(faults)


def test_every_public_name_is_tried():
    tried = {name.split(".")[-1] for name in CALLS} | {name.split(".")[0] for name in CALLS}
    apart = {
        "ContextualMDP", "OpoError", "Trajectory", "get_threads", "reference", "Agent", "AgentInfo", "names", "EnvironmentInfo",
        "RescaledRewards", "icu_formulary", "icu_reduced", "icu_sepsis", "icu_table", "icu_wards", "load_icu_data", "DynamicsOracle",
        "FunctionClass", "LossOracle", "Refit", "ScheduledOracle", "Checkpoints", "Entry", "Record", "Run", "StoreError", "StoredRun",
        "Summary", "Support", "from_layered", "make", "info", "about", "describe", "from_file", "agents", "analysis", "envs", "kernels",
        "offline", "oracles", "study", "tune", "Growth", "growth_along",
        "growth_over_episodes", "scaling_study", "power_law",
    }  # fmt: skip
    for module in (of, agents, envs, oracles, study):
        for name in module.__all__:
            known = name in tried or name in apart or name.endswith("Oracle")
            assert known, f"add {name} to CALLS with arguments of wrong types, or to `apart` if it takes none"


@pytest.mark.parametrize("sign", [1, -1])
def test_a_number_of_more_digits_than_python_prints_is_refused(sign):
    value = sign * 10**5000
    for call in (
        lambda: of.Layout([1], value),
        lambda: of.bonus([0.0], value),
        lambda: agent(delta=value),
        lambda: envs.make("combination-lock", horizon=value),
    ):
        with pytest.raises(of.OpoError, match=r"^(n_actions|beta|delta|horizon) is .{1,40}: a "):
            call()


def test_a_seed_may_be_of_any_size():
    env = envs.random_finite(2, 2, 2, 1, seed=2**127)
    assert of.simulate(env, agents.Uniform(env.layout), 2, seed=2**127).settings["seed"] == 2**127
