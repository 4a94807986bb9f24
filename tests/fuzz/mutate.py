"""Random mutations of values, files and words in one place; a seed determines them."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np

NUMBERS = [-1, 0, 1, 2, 3, 7, 255, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 10**12, 10**30]
REALS = [-0.0, 0.0, 0.5, 1.0, 1.0 + 1e-9, -1e-300, 5e-324, 1e308, -1e308, math.inf, -math.inf, math.nan]
WORDS = ["", "x", "nan", "-1", "1e400", "\x1b[31m", "[/red]", "$\\foo$", "a" * 500, "\x00", "é", "../..", "0", "None"]


class Odd:
    """An object of an unexpected type."""

    def __repr__(self) -> str:
        return "Odd()"


def pick(rng: np.random.Generator, choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def odd_value(rng: np.random.Generator) -> Any:
    """A value of an unexpected type."""
    made = [
        lambda: None, lambda: True, lambda: pick(rng, NUMBERS), lambda: pick(rng, REALS), lambda: pick(rng, WORDS), lambda: [],
        lambda: {}, lambda: (), lambda: Odd(), lambda: [None], lambda: {"a": 1}, lambda: 1j, lambda: np.complex128(1 + 1j),
        lambda: np.zeros(0), lambda: np.zeros((2, 0)), lambda: np.array("x"), lambda: np.array(None), lambda: np.float32(0.5),
        lambda: np.ma.masked_array([0.5, 0.5], [True, False]), lambda: np.datetime64("NaT"), lambda: b"x", lambda: {1, 2},
        lambda: float, lambda: range(3), lambda: [[1, 2], [3]], lambda: np.array([math.nan]), lambda: slice(None),
    ]  # fmt: skip
    return pick(rng, made)()


def mutated_array(rng: np.random.Generator, array: np.ndarray) -> Any:
    """The array with other entries, or another shape, dtype or memory layout."""
    array = np.array(array)
    kind = int(rng.integers(12))
    if kind == 0 and array.ndim and len(array):
        return array[: int(rng.integers(len(array)))]
    if kind == 1 and array.ndim:
        return np.concatenate([array, array[: max(1, len(array) // 2)]])
    if kind == 2:
        try:
            return array.astype(pick(rng, ["f4", "f8", "i1", "i8", "u8", "?", "c16", "O", "U8", ">f8", "f2"]))
        except (TypeError, ValueError):
            return odd_value(rng)
    if kind == 3:
        return array.T if array.ndim > 1 else array[None]
    if kind == 4:
        return array.tolist()
    if kind == 5:
        return array[..., None]
    if kind == 6 and array.ndim:
        return array[::-1]
    if kind == 7 and array.ndim:
        return np.repeat(array, 2, axis=0)[::2]
    if kind == 8 and array.dtype.kind in "iufb":
        return np.ma.masked_array(array, rng.random(array.shape) < 0.3)
    if not array.size:
        return np.zeros((1, *array.shape[1:]), array.dtype)
    result = array.copy()
    for _ in range(int(rng.integers(1, 3))):
        place = int(rng.integers(result.size))
        with np.errstate(all="ignore"):
            if array.dtype.kind == "f":
                result.flat[place] = pick(rng, REALS) if rng.random() < 0.7 else result.flat[place] * (1 + rng.normal())
            elif array.dtype.kind in "iu":
                value = pick(rng, NUMBERS) if rng.random() < 0.6 else int(result.flat[place]) + int(rng.integers(-2, 3))
                info = np.iinfo(array.dtype)
                result.flat[place] = min(max(value, int(info.min)), int(info.max))
            elif array.dtype.kind == "b":
                result.flat[place] = not result.flat[place]
            elif array.dtype.kind == "U":
                result.flat[place] = pick(rng, WORDS)
            else:
                return odd_value(rng)
    return result


def mutated(rng: np.random.Generator, value: Any) -> Any:
    """A mutated copy of a value."""
    if rng.random() < 0.15:
        return odd_value(rng)
    if isinstance(value, np.ndarray):
        return mutated_array(rng, value)
    if isinstance(value, bool):
        return pick(rng, [not value, 2, -1, "true", None])
    if isinstance(value, (int, np.integer)):
        return value + int(rng.integers(-3, 4)) if rng.random() < 0.5 else pick(rng, [*NUMBERS, 0.5, str(value)])
    if isinstance(value, (float, np.floating)):
        return pick(rng, [*REALS, -value, value * 2, str(value)])
    if isinstance(value, str):
        return pick(rng, [*WORDS, value[: len(value) // 2], value + value])
    if isinstance(value, dict) and value:
        result, key = dict(value), pick(rng, list(value))
        if rng.random() < 0.15:
            del result[key]
        elif rng.random() < 0.1:
            result[pick(rng, WORDS)] = odd_value(rng)
        else:
            result[key] = mutated(rng, value[key])
        return result
    if isinstance(value, (list, tuple)) and value:
        entries = list(value)
        place, how = int(rng.integers(len(entries))), rng.random()
        if how < 0.15:
            del entries[place]
        elif how < 0.3:
            entries.insert(place, copy.copy(entries[place]))
        elif how < 0.35:
            entries = entries * 9
        else:
            entries[place] = mutated(rng, entries[place])
        return entries if isinstance(value, list) else tuple(entries)
    return odd_value(rng)


def mutated_bytes(rng: np.random.Generator, content: bytes) -> bytes:
    """The content of a file with some bytes changed, removed, repeated or inserted."""
    data = bytearray(content)
    kind = int(rng.integers(6))
    if not data or kind == 0:
        return bytes(data[: int(rng.integers(len(data) + 1))])
    place = int(rng.integers(len(data)))
    if kind == 1:
        for _ in range(int(rng.integers(1, 9))):
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        return bytes(data)
    if kind == 2:
        data[place] ^= 1 << int(rng.integers(8))
        return bytes(data)
    if kind == 3:
        return bytes(data[:place] + rng.bytes(int(rng.integers(1, 30))) + data[place:])
    if kind == 4:
        end = min(len(data), place + int(rng.integers(1, 200)))
        return bytes(data[:end] + data[place:end] + data[end:])
    return bytes(data[:place] + data[place + int(rng.integers(1, 50)) :])


def mutated_text(rng: np.random.Generator, text: str) -> str:
    """The content of a text file with words or lines changed, removed or repeated, and sometimes bytes that are not text."""
    if rng.random() < 0.2:
        return mutated_bytes(rng, text.encode()).decode("latin-1")
    lines = text.split("\n")
    place = int(rng.integers(len(lines)))
    words = lines[place].split(" ")
    kind = int(rng.integers(5))
    if kind == 0:
        del lines[place]
    elif kind == 1:
        lines.insert(place, lines[place])
    elif kind == 2:
        lines[place] = pick(rng, lines)
    else:
        at = int(rng.integers(len(words)))
        spare = [*map(str, NUMBERS), *map(str, REALS), *WORDS]
        words[at] = pick(rng, spare) if kind == 3 else pick(rng, lines).split(" ")[0]
        lines[place] = " ".join(words)
    return "\n".join(lines)
