"""The one exception class of the package, and how it words a refusal."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

__all__ = ["OpoError", "Place", "install"]

ROOT = pathlib.Path(__file__).parents[1]


class OpoError(ValueError):
    """A refusal of `opo_fast`: the argument, the place and the value are in the message.

    Every check of the package raises this class (a `ValueError`), where the user's call is.
    """


class Place:
    """A place named in a message, put into words only if the message is needed: contexts can be long to print."""

    def __init__(self, template: str, *values: Any) -> None:
        self._template, self._values = template, values

    def __str__(self) -> str:
        return self._template.format(*self._values)


def install(extra: str) -> str:
    """The command that adds an extra: from the folder where the package is used from its sources, by its name elsewhere.

    pip takes the name of an installed package without asking an index for it.
    """
    return f"pip install -e '{ROOT}[{extra}]'" if (ROOT / "pyproject.toml").is_file() else f"pip install 'opo-fast[{extra}]'"


def _check_threads_variable() -> None:
    """Refuse a NUMBA_NUM_THREADS that Numba would refuse with a traceback (in a line, where the program is `opo-fast`)."""
    value = os.environ.get("NUMBA_NUM_THREADS", "1")
    try:
        if int(value) > 0:
            return
    except ValueError:
        pass
    error = OpoError(f"NUMBA_NUM_THREADS is {value!r} in the environment: a whole number of at least 1, or no such variable, is needed")
    if pathlib.Path(sys.argv[0] if sys.argv else "").stem != "opo-fast":
        raise error
    print(f"opo-fast: {error}", file=sys.stderr)
    raise SystemExit(2)


# This module is imported before Numba is.
_check_threads_variable()
