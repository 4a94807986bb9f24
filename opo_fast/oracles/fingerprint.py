"""A fingerprint of a finite class: digests of its candidates at the first contexts, to recognise a class with other candidates."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.fields import Fields, agrees
from .._support.state import decode, encode, holds
from ..errors import OpoError
from ..model.contextual import context_key
from ..model.transitions import Transitions

__all__ = ["Fingerprint"]

Array = npt.NDArray[Any]
LOOKED_AT = 2
"""Contexts at which candidates are compared."""


class Fingerprint:
    """Digests of every candidate's function at the first contexts that an oracle observes.

    Parameters
    ----------
    answers : callable
        Returns the candidates' functions at a context: arrays, or transitions in any form.
    names : sequence of str
        Of the candidates.
    """

    def __init__(self, answers: Callable[[Any], Sequence[Any]], names: Sequence[str]) -> None:
        self._answers, self._names = answers, names
        self._contexts: dict[Any, Any] = {}
        self._digests: dict[Any, list[str]] = {}

    def see(self, context: Any) -> None:
        """Remember the first few contexts; one that cannot be written to a file is left out."""
        if len(self._contexts) < LOOKED_AT and context_key(context) not in self._contexts and holds(context):
            self._contexts[context_key(context)] = context

    def _of(self, context: Any) -> list[str]:
        key = context_key(context)
        if key not in self._digests:
            self._digests[key] = [_digest(answer) for answer in self._answers(context)]
        return self._digests[key]

    def state(self) -> dict[str, Any]:
        """The contexts, and the digests at each."""
        seen = list(self._contexts.values())
        return {"fingerprint.contexts": [encode(context) for context in seen], "fingerprint.digests": [self._of(c) for c in seen]}

    def restore(self, fields: Fields) -> None:
        """Restore the contexts of a state; refuse it if the candidates were different."""
        stored = fields.listed("fingerprint.contexts")
        fields.check("fingerprint.contexts", len(stored) <= LOOKED_AT, f"has {len(stored)} entries: at most {LOOKED_AT} are needed")
        contexts = [decode(context, fields.place("fingerprint.contexts")) for context in stored]
        digests = fields.listed("fingerprint.digests", len(contexts))
        for context, theirs in zip(contexts, digests, strict=True):
            mine = self._of(context)
            fields.check("fingerprint.digests", isinstance(theirs, list) and len(theirs) == len(mine), f"is not {len(mine)} digests")
            for name, found, wanted in zip(self._names, theirs, mine, strict=True):
                if not agrees(found, wanted):
                    raise OpoError(
                        f"state was learned with another candidate {name!r}: at context {context!r} its numbers have the digest {found}, "
                        f"but here {wanted}; a class of the same candidates in the same order is needed"
                    )
        self._contexts = {context_key(context): context for context in contexts}


def _digest(answer: Any) -> str:
    found = hashlib.blake2b(digest_size=8)
    for array in _arrays(answer):
        found.update(f"{array.dtype.str}{array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.hexdigest()


def _arrays(answer: Any) -> Iterator[Array]:
    if isinstance(answer, Transitions):
        yield from (answer.data, answer.indptr, answer.indices, answer.block)
    elif sp.issparse(answer):
        rows = answer.tocsr()
        yield from (rows.data, rows.indptr, rows.indices)
    elif isinstance(answer, (list, tuple)):
        for part in answer:
            yield from _arrays(part)
    else:
        yield np.asarray(answer)
