"""Labels of contexts, which are only formatted when they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

__all__ = ["Labels", "label_of"]


def label_of(cmdp: Any, context: Any) -> str:
    """The environment's label of a context."""
    if hasattr(cmdp, "label"):
        return str(cmdp.label(context))
    labels = getattr(cmdp, "labels", ())
    return str(labels[context]) if isinstance(context, int) and 0 <= context < len(labels) else str(context)


class Labels(Sequence[str]):
    """The labels of contexts, like a list, whose texts are made at the first access.

    Contexts that are new in each episode are mostly arrays, and formatting an array takes longer than an episode.
    """

    def __init__(self, cmdp: Any, contexts: Sequence[Any]) -> None:
        self._cmdp, self._contexts = cmdp, list(contexts)
        self._texts: list[str] | None = None

    def _all(self) -> list[str]:
        if self._texts is None:
            self._texts = [label_of(self._cmdp, context) for context in self._contexts]
            self._cmdp, self._contexts = None, []
        return self._texts

    def __len__(self) -> int:
        return len(self._contexts if self._texts is None else self._texts)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: Any) -> Any:
        return self._all()[i]

    def __eq__(self, other: object) -> bool:
        return self._all() == (other._all() if isinstance(other, Labels) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._all())

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self._all(),)
