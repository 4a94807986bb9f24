"""Every public name has a docstring, which documents only existing parameters."""

from __future__ import annotations

import importlib
import inspect

import pytest
from numpydoc.validate import validate

ROOMS = ("opo_fast", *(f"opo_fast.{name}" for name in ("agents", "analysis", "benchmarking", "envs", "oracles", "offline", "study")))


def documented():
    """Public functions, classes and their methods, each once."""
    found = {}
    for room in ROOMS:
        module = importlib.import_module(room)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value):
                found.setdefault(id(value), f"{room}.{name}")
            if inspect.isclass(value):
                methods = [key for key, method in vars(value).items() if inspect.isfunction(method) and not key.startswith("_")]
                found |= {id(vars(value)[key]): f"{room}.{name}.{key}" for key in methods if id(vars(value)[key]) not in found}
    return sorted(found.values())


@pytest.mark.parametrize("room", ROOMS)
def test_docstrings_agree_with_signatures(room):
    names = [name for name in documented() if name.startswith(room) and (room != "opo_fast" or name.count(".") <= 2)]
    assert names
    # GL08: no docstring; PR02: a documented parameter that does not exist.
    faults = [(name, text) for name in names for code, text in validate(name)["errors"] if code in ("GL08", "PR02")]
    assert not faults
