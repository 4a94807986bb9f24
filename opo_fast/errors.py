"""The one exception class of the package, and how it words a refusal."""

from __future__ import annotations

from typing import Any

__all__ = ["OpoError", "Place"]


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
