"""The one exception class of the package, and how it words a refusal."""

from __future__ import annotations

__all__ = ["OpoError"]


class OpoError(ValueError):
    """A refusal of `opo_fast`: the argument, the place and the value are in the message.

    Every check of the package raises this class (a `ValueError`), where the user's call is.
    """
