"""The exception class of the package, and helpers for its messages."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import Any

__all__ = ["OpoError", "Place", "install"]

ROOT = pathlib.Path(__file__).parents[1]


class OpoError(ValueError):
    """The error of every check in `opo_fast`: the message names the argument, the place and the value, and says what to do."""


class Place:
    """A place in a message, formatted only if the message is needed, since contexts can be slow to print."""

    def __init__(self, template: str, *values: Any) -> None:
        self._template, self._values = template, values

    def __str__(self) -> str:
        return self._template.format(*self._values)


def install(extra: str) -> str:
    """The command that installs an extra: by the folder if the package is used from its sources, and otherwise by its name."""
    return f"pip install -e '{ROOT}[{extra}]'" if (ROOT / "pyproject.toml").is_file() else f"pip install 'opo-fast[{extra}]'"


def _check_threads_variable() -> None:
    """Refuse a NUMBA_NUM_THREADS that Numba would refuse; the program `opo-fast` then prints one line instead of a traceback."""
    value = os.environ.get("NUMBA_NUM_THREADS", "1")
    try:
        if int(value) > 0:
            return
    except ValueError:
        pass
    error = OpoError(f"the environment variable NUMBA_NUM_THREADS is {value!r}: set it to a whole number of at least 1, or unset it")
    if pathlib.Path(sys.argv[0] if sys.argv else "").stem != "opo-fast":
        raise error
    print(f"opo-fast: {error}", file=sys.stderr)
    raise SystemExit(2)


# This module is imported before Numba is.
_check_threads_variable()
