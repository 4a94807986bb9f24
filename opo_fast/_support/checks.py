"""Argument checks: each returns the value in canonical form or raises an `OpoError`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from ..errors import OpoError, Place
from ..kernels.ingest import check_unit

__all__ = [
    "FLOAT64",
    "MANY",
    "as_array",
    "as_delta",
    "as_distribution",
    "as_dtype",
    "as_list",
    "as_losses_2d",
    "as_path",
    "as_real",
    "checked_unit",
    "frozen",
    "having",
    "instance",
    "as_items",
    "labels_of",
    "one_of",
    "pair_of",
    "read_only",
    "as_number",
    "shown",
    "tolerance_of",
    "as_bool",
    "as_integer",
]

Array = npt.NDArray[Any]

LARGEST = (1 << 63) - 1
MANY = 1_000_000
"""Limit for things that are made one by one (steps, contexts, candidates): more would not fit into memory, or take forever."""
FLOAT64, FLOAT32 = np.dtype(np.float64), np.dtype(np.float32)


def frozen(array: Array) -> Array:
    """Mark an array read-only, and return it."""
    array.flags.writeable = False
    return array


def read_only(array: Array) -> Array:
    """A read-only view. Numba compiles read-only arguments separately, so check kernels always get such views."""
    return frozen(array.view())


def as_bool(value: Any, name: str) -> bool:
    """`value` as a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise OpoError(f"{name} is {shown(value)}: True or False is needed")
    return bool(value)


def shown(value: Any) -> str:
    """`value` for a message: its repr, or the beginning of a long one."""
    try:
        text = repr(value)
    except ValueError:  # more digits than Python prints
        return f"a {type(value).__name__} too long to print"
    return text if len(text) <= 200 else f"{text[:180]}..."


def as_integer(value: Any, name: str, *, least: int, most: int | None = LARGEST) -> int:
    """`value` as an int within [least, most]; None for `most` allows any size, as for seeds."""
    scalar = isinstance(value, (int, np.integer)) and not isinstance(value, (bool, np.bool_))
    if not scalar and not (isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "iu"):
        raise OpoError(f"{name} is {shown(value)}: a whole number is needed")
    number = int(value)
    if number < least or (most is not None and number > most):
        open_ended = most is None or (number < least and most >= MANY)
        span = f"at least {least}" if open_ended else f"from {least} to {most}"
        raise OpoError(f"{name} is {shown(number)}: a whole number {span} is needed")
    return number


def as_number(value: Any, name: str, *, least: float = 0.0, most: float = np.inf, strict: bool = False) -> float:
    """`value` as a finite float within [least, most]; `strict` excludes both ends."""
    try:
        # `float` would take the real part of NumPy's complex numbers, and the entry of arrays with one entry.
        if isinstance(value, (str, bytes, complex, np.complexfloating)) or (isinstance(value, np.ndarray) and value.ndim):
            raise TypeError
        if isinstance(value, np.ndarray) and (value.dtype.kind not in "iufb" or np.ma.isMaskedArray(value)):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError):
        raise OpoError(f"{name} is {shown(value)}: a number is needed") from None
    except OverflowError:
        number = np.inf
    inside = least < number < most if strict else least <= number <= most
    if not (np.isfinite(number) and inside):
        if most == np.inf:
            span = f"{'above' if strict else 'of at least'} {least:g}"
        else:
            span = f"strictly between {least:g} and {most:g}" if strict else f"from {least:g} to {most:g}"
        raise OpoError(f"{name} is {number!r}: a finite number {span} is needed")
    return number


def as_delta(value: Any, name: str = "delta") -> float:
    """`value` as a failure probability, or an error that names it; with less than 1e-100, quotients such as size / delta may overflow."""
    number = as_number(value, name, most=1.0, strict=True)
    if number < 1e-100:
        raise OpoError(f"{name} is {number!r}: a failure probability of at least 1e-100 is needed")
    return number


def as_list(values: Any) -> list[Any] | None:
    """`values` as a list; None if it is a text or not iterable."""
    try:
        # `iter` decides, since arrays without axes have __iter__ too.
        iterator = None if isinstance(values, (str, bytes)) else iter(values)
    except TypeError:
        iterator = None
    return None if iterator is None else list(iterator)


def as_items(values: Any, name: str, of: str, *, some: bool = False) -> list[Any]:
    """`values` as a list; `of` is a plural noun for its entries, and `some` refuses an empty one. Texts are refused."""
    listed = as_list(values)
    if listed is None:
        raise OpoError(f"{name} is a {type(values).__name__}: a sequence of {of} is needed")
    if some and not listed:
        raise OpoError(f"{name}: at least one is needed, got none")
    return listed


def one_of(value: Any, name: str, choices: Collection[str]) -> None:
    """Refuse a `value` that is not one of these texts."""
    if not isinstance(value, str) or value not in choices:
        known = list(choices)
        needed = ", ".join(map(repr, known[:-1])) + f" or {known[-1]!r}"
        raise OpoError(f"{name} is {shown(value)}: {needed} is needed")


def instance(value: Any, name: str, *kinds: type, needed: str = "") -> None:
    """Refuse a `value` that is not an instance of one of these types."""
    if not isinstance(value, kinds):
        raise OpoError(f"{name} is a {type(value).__name__}: {needed or f'an opo_fast.{kinds[0].__name__}'} is needed")


def as_path(path: Any, name: str = "path") -> str:
    """`path` as text."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise OpoError(f"{name} is {shown(path)}: a path is needed") from None
    if "\0" in text:
        raise OpoError(f"{name} is {shown(path)}: a path without a zero character is needed")
    return text


def having(value: Any, name: str, attributes: Iterable[str], needed: str) -> None:
    """Refuse a `value` that lacks one of these attributes."""
    for attribute in attributes:
        if not hasattr(value, attribute):
            raise OpoError(f"{name} is a {type(value).__name__} without {attribute}: {needed} is needed")


def labels_of(values: Any, n: int, name: str, of: str) -> tuple[str, ...]:
    """One label for each of `n` things; `of` is a plural noun for them."""
    labels = tuple(map(str, as_items(values, name, "texts")))
    if len(labels) != n:
        raise OpoError(f"{name} has {len(labels)} entries: one for each of the {n} {of} is needed")
    return labels


def pair_of(value: Any, name: str, of: str) -> tuple[float, float]:
    """A pair of finite numbers; `of` describes it in the message."""
    try:
        entries = as_items(value, name, "numbers")
    except OpoError:
        entries = []
    if len(entries) != 2:
        raise OpoError(f"{name} is {shown(value)}: a pair {of} is needed")
    return as_number(entries[0], f"{name}[0]", least=-np.inf), as_number(entries[1], f"{name}[1]", least=-np.inf)


def as_array(values: Any, name: str | Place) -> Array:
    """`values` as an ndarray of any dtype; ragged and masked arrays are refused."""
    if np.ma.isMaskedArray(values) or (isinstance(values, (list, tuple)) and any(map(np.ma.isMaskedArray, values))):
        raise OpoError(f"{name} is a masked array: fill it first")
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise OpoError(f"{name} is not a rectangular array: {error}") from None


def as_real(array: Any, name: str | Place) -> Array:
    """`array` as a float64 or float32 ndarray (integers and booleans become float64); anything else is refused."""
    if type(array) is np.ndarray and array.dtype == FLOAT64:
        return array
    if sp.issparse(array):
        raise OpoError(f"{name} is a sparse array: a dense one is needed")
    result = as_array(array, name)
    if result.dtype.kind in "iub":
        result = result.astype(np.float64)
    if result.dtype not in (np.float64, np.float32):
        if result.dtype.kind == "f":
            result = result.astype(np.float64)
        else:
            raise OpoError(f"{name} has dtype {result.dtype}: real numbers are needed")
    return result


def as_distribution(values: Any, n: int, name: str, of: str) -> Array:
    """Probabilities (n,), not renormalised; `of` is a singular noun for what they belong to."""
    array = as_real(values, name)
    if array.shape != (n,):
        raise OpoError(f"{name} has shape {array.shape}: ({n},), one probability for each {of}, is needed")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    if bad.size:
        raise OpoError(f"{name}: {of} {int(bad[0])} has probability {float(array[bad[0]])!r}; a finite number of at least 0 is needed")
    total = float(array.sum(dtype=np.float64))
    if abs(total - 1.0) > tolerance_of(array.dtype, array.dtype):
        raise OpoError(f"{name} sums to {total!r}; 1 is needed")
    return array


def checked_unit(array: Array, where: str | Place) -> Array:
    """A float64 copy of losses (S, A), which must lie in [0, 1]."""
    copy = np.array(array, dtype=np.float64, order="C")
    place = np.zeros(1, np.int64)
    if check_unit(copy.reshape(-1), place):
        state, action = divmod(int(place[0]), copy.shape[1])
        raise OpoError(
            f"{where}: state {state}, action {action}: the loss is {float(copy[state, action])!r}; a number in [0, 1] is "
            "needed (opo_fast.rewards_to_losses rescales rewards; an action that is not available goes to the mask, and its loss may be 0)"
        )
    return copy


def as_losses_2d(losses: Any, where: str | Place) -> Array:
    """Losses (S, A) in [0, 1] as a float64 copy."""
    array = as_real(losses, where)
    if array.ndim != 2 or 0 in array.shape:
        raise OpoError(f"{where} has shape {array.shape}: (S, A) is needed")
    return checked_unit(array, where)


def as_dtype(dtype: Any) -> np.dtype[Any]:
    """float64 or float32, from anything that NumPy takes for one of them."""
    for known in (FLOAT64, FLOAT32):
        with contextlib.suppress(TypeError):
            if known == np.dtype(dtype):
                return known
    raise OpoError(f"dtype is {shown(dtype)}: float64 or float32 is needed")


def tolerance_of(*dtypes: npt.DTypeLike) -> float:
    """By how much the sum of probabilities of these dtypes may differ from 1."""
    return 1e-6 if FLOAT32 in dtypes else 1e-8
