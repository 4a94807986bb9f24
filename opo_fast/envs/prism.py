"""Explicit model files of PRISM and Storm (.tra, .lab, .sta, .srew, .trew, .rew) as a `TabularMDP`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_items, as_path, one_of
from ..errors import OpoError
from .tables import TabularMDP

__all__ = ["from_prism"]

Array = npt.NDArray[Any]
Path = str | os.PathLike[str]
T = TypeVar("T")


def from_prism(
    transitions: Path,
    *,
    labels: Path | None = None,
    states: Path | None = None,
    rewards: Path | Sequence[Path] = (),
    start: Any = None,
    deadlocks: Literal["error", "loop"] = "error",
    reward_range: tuple[float, float] | None = None,
    name: str | None = None,
) -> TabularMDP:
    """Read an explicit model that PRISM or Storm exported.

    Comments (# and //), empty lines, both kinds of line ends and Storm's declarations are accepted.

    Parameters
    ----------
    transitions : path
        A .tra file. MDP: lines ``state choice next probability [action]``; Markov chain: ``state next probability``.
        First line: PRISM's counts (states, choices, transitions; or states, transitions) or Storm's ``mdp`` or ``dtmc``.
    labels : path, optional
        A .lab file; the states with label ``init`` are the start, equally likely if there are several.
    states : path, optional
        A .sta file with the values of PRISM's variables in each state; they and the labels make the state's name.
    rewards : path or sequence of paths, optional
        Reward files, which are added. Lines are ``state reward`` (.srew), ``state choice reward``, or
        ``state choice next reward`` (.trew); for a Markov chain ``state reward`` or ``state next reward``. PRISM's first
        line of counts is recognised by a name ending in .srew or .trew, or by its agreement with the rest of the file.
    start : int or array_like, optional
        Used instead of the label ``init``. Default without labels: state 0.
    deadlocks : {"error", "loop"}
        States without a choice: "error" refuses them; with "loop" the process stays there with its state reward.
    reward_range, name
        See `TabularMDP`.

    Returns
    -------
    TabularMDP
        Choices of a state are actions 0, 1, ..; states with fewer choices than others have the rest masked. An action is named
        by the labels of its number in the file: "go" or, if they differ between states, "go / stay".

    Raises
    ------
    OpoError
        With file and line: wrong numbers of columns, words that are not numbers, indices out of range, duplicate
        transitions, rows that do not sum to 1, missing choices, and another number of lines than the first line says.
    """
    one_of(deadlocks, "deadlocks", ("error", "loop"))
    model = _Transitions(_Lines(transitions, "transitions"))
    mask, chain = model.mask(deadlocks), model.chain
    n, a = mask.shape
    pair = model.state * a + model.choice
    P = sp.csr_array((model.p, (pair, model.following)), shape=(n * a, n))
    if model.loops.size:
        P = sp.csr_array(P + sp.csr_array((np.ones(model.loops.size), (model.loops * a, model.loops)), shape=P.shape))
    total = np.zeros((n, a))
    files = [rewards] if isinstance(rewards, (str, os.PathLike)) else as_items(rewards, "rewards", "paths")
    for file in files:
        total += _rewards(_Lines(file, "rewards"), mask, P, chain)
    total[~mask] = 0.0
    described: list[list[str]] = [[] for _ in range(n)]
    if states is not None:
        for words, values in zip(described, _values(_Lines(states, "states"), n), strict=True):
            words.append(values)
    if labels is not None:
        given = _labels(_Lines(labels, "labels"), n)
        initial = np.array([s for s in range(n) if "init" in given[s]], np.int64)
        if start is None and initial.size:
            start = np.zeros(n)
            start[initial] = 1.0 / initial.size
        for words, own in zip(described, given, strict=True):
            words += own
    return TabularMDP(
        P,
        total,
        0 if start is None else start,
        mask,
        reward_range=reward_range,
        state_names=[f"{s}: {', '.join(words)}" if words else str(s) for s, words in enumerate(described)] if any(described) else None,
        action_names=model.action_names(a),
        name=os.path.basename(os.fspath(transitions)) if name is None else name,
        source="explicit model file",
    )


MOST_CELLS, CELLS_PER_LINE = 1 << 20, 100
"""Limits on states times choices: a constant, and a multiple of the number of lines, since one line may name huge indices."""


class _Lines:
    """The non-empty lines of a text file as words, with line numbers from 1."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = as_path(path, name)
        try:
            with open(self.path, "rb") as file:
                text = file.read().decode("utf-8-sig")
        except OSError as error:
            raise OpoError(f"{self.path}: the file cannot be read ({error.strerror or error})") from None
        except (UnicodeDecodeError, ValueError) as error:
            raise OpoError(f"{self.path}: the file is not text ({error})") from None
        self.lines: list[tuple[int, list[str]]] = []
        for number, line in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
            declared = line.strip() in ("#DECLARATION", "#END")
            words = line.split() if declared else re.split("#|//", line, maxsplit=1)[0].split()
            if words:
                self.lines.append((number, words))
        if not self.lines:
            raise OpoError(f"{self.path}: the file is empty")

    def fault(self, number: int, what: str) -> OpoError:
        return OpoError(f"{self.path}, line {number}: {what}")

    def read(self, number: int, word: str, kind: Callable[[str], T], what: str) -> T:
        """A word as a number, or an error that names the line."""
        try:
            if not word.isascii() or "_" in word:
                raise ValueError
            return kind(word)
        except (ValueError, OverflowError):
            raise self.fault(number, f"{what} is {word!r}: a {'whole ' if kind is int else ''}number is needed") from None

    def index(self, number: int, word: str, what: str, size: int | None = None) -> int:
        """A word as an index below `size`."""
        value = self.read(number, word, int, what)
        most = 2**31 - 1 if size is None else size - 1
        if not 0 <= value <= most:
            raise self.fault(number, f"{what} is {value}: 0 to {most} is needed")
        return value

    def __iter__(self) -> Iterator[tuple[int, list[str]]]:
        return iter(self.lines)


class _Transitions:
    """The transitions of a .tra file, in the order of the file."""

    def __init__(self, lines: _Lines) -> None:
        number, head = lines.lines[0]
        kind = head[0].lower()
        counts: list[int] | None = None
        if kind in ("mdp", "dtmc") and len(head) == 1:
            self.chain = kind == "dtmc"
        elif len(head) in (2, 3) and len(lines.lines) > 1:
            counts = [lines.index(number, word, "the count") for word in head]
            self.chain = len(head) == 2
        else:
            raise lines.fault(
                number, f"{' '.join(head)!r} is not a first line: 'mdp', 'dtmc', or counts (states, choices, transitions) are needed"
            )
        body = lines.lines[1:]
        if not body:
            raise lines.fault(number, "transitions are missing: at least one line must follow")
        n = counts[0] if counts else None
        columns = 3 if self.chain else 4
        rows = []
        labels: dict[int, dict[str, None]] = {}
        for number, words in body:
            if len(words) not in (columns, columns + 1):
                fields = "state next probability" if self.chain else "state choice next probability [action]"
                raise lines.fault(number, f"{len(words)} columns: {fields} are needed")
            state = lines.index(number, words[0], "the state", n)
            choice = 0 if self.chain else lines.index(number, words[1], "the choice")
            following = lines.index(number, words[columns - 2], "the next state", n)
            p = lines.read(number, words[columns - 1], float, "the probability")
            if not 0.0 <= p <= 1.0:
                raise lines.fault(number, f"the probability is {p!r}: a number from 0 to 1 is needed")
            rows.append((state, choice, following, p, number))
            if len(words) > columns:
                labels.setdefault(choice, {})[words[columns]] = None
        if counts and counts[-1] != len(rows):
            raise lines.fault(body[-1][0], f"the file ends after {len(rows)} transitions, but the first line says {counts[-1]}")
        self.lines, self.labels = lines, labels
        state_, choice_, following_, p_, numbers = zip(*rows, strict=True)
        self.state, self.choice, self.following = (np.array(column, np.int64) for column in (state_, choice_, following_))
        self.p, self.numbers = np.array(p_), np.array(numbers)
        self.n = n if n is not None else 1 + int(max(self.state.max(), self.following.max()))
        cells = self.n * (1 + int(self.choice.max()))
        if self.n > 1 << 26 or int(self.choice.max()) > 1 << 16 or cells > max(MOST_CELLS, CELLS_PER_LINE * len(rows)):
            i = int(np.argmax(self.state + self.choice + self.following))
            raise lines.fault(
                int(self.numbers[i]), f"{self.n} states and {int(self.choice.max()) + 1} choices are more than this reader accepts"
            )
        self._check(counts)

    def _check(self, counts: list[int] | None) -> None:
        order = np.lexsort((self.following, self.choice, self.state))
        s, c, t = self.state[order], self.choice[order], self.following[order]
        twice = np.flatnonzero((np.diff(s) == 0) & (np.diff(c) == 0) & (np.diff(t) == 0))
        if twice.size:
            i, j = sorted(int(x) for x in order[twice[0] : twice[0] + 2])
            raise self.lines.fault(
                int(self.numbers[j]),
                f"the transition from state {self.state[j]} to {self.following[j]} was already given in line {self.numbers[i]}",
            )
        opens = np.flatnonzero(np.concatenate([[True], (np.diff(s) != 0) | (np.diff(c) != 0)]))
        sums = np.add.reduceat(self.p[order], opens)
        wrong = np.flatnonzero(~(np.abs(sums - 1.0) <= 1e-8))
        if wrong.size:
            k = int(wrong[0])
            where = int(self.numbers[order[opens[k]]])
            raise self.lines.fault(
                where, f"state {s[opens[k]]}, choice {c[opens[k]]}: the probabilities sum to {float(sums[k])!r}; 1 is needed"
            )
        states, first = np.unique(s[opens], return_index=True)
        number_of = np.diff(np.append(first, opens.size))
        last = c[opens][first + number_of - 1]
        gaps = np.flatnonzero(last + 1 != number_of)
        if gaps.size:
            state = int(states[gaps[0]])
            mine = self.numbers[self.state == state]
            raise self.lines.fault(
                int(mine[-1]), f"state {state} has {number_of[gaps[0]]} choices, one of them numbered {last[gaps[0]]}: 0, 1, .. are needed"
            )
        if counts and not self.chain and counts[1] != opens.size:
            raise self.lines.fault(self.lines.lines[0][0], f"the line says {counts[1]} choices, but the file has {opens.size}")
        self.choices = np.zeros(self.n, np.int64)
        self.choices[states] = number_of

    def action_names(self, n: int) -> list[str] | None:
        """Names of the choices 0..n-1, from the first labels of each in the file; None if it has no labels."""
        if not self.labels:
            return None
        names = []
        for choice in range(n):
            given = list(self.labels.get(choice, ()))
            names.append(" / ".join(given[:4] + ["..."] * (len(given) > 4)) or str(choice))
        return names

    def mask(self, deadlocks: str) -> Array:
        """The allowed choices; states without a choice are refused, or get a loop."""
        empty = np.flatnonzero(self.choices == 0)
        if empty.size and deadlocks == "error":
            shown = ", ".join(map(str, empty[:10])) + (", ..." if empty.size > 10 else "")
            raise OpoError(f"{self.lines.path}: states without a choice: {shown}; use deadlocks='loop' to let the process stay in them")
        self.loops = empty
        count = np.maximum(self.choices, 1)
        return np.asarray(np.arange(int(count.max())) < count[:, None])


def _rewards(lines: _Lines, mask: Array, P: Any, chain: bool) -> Array:
    """Expected rewards (S, A) of one reward file."""
    n, a = mask.shape
    body = list(lines)
    ending = os.path.splitext(lines.path)[1].lower()
    head = body[0][1]
    width = len(body[1][1]) if len(body) > 1 else len(head)
    whole = all(word.isdigit() for word in head)
    counted = whole and int(head[-1]) == len(body) - 1 and int(head[0]) == n and (len(head) != width or ending in (".srew", ".trew"))
    if ending in (".srew", ".trew") and not counted:
        if not whole or len(head) not in (2, 3) or int(head[0]) != n:
            raise lines.fault(
                body[0][0], f"{' '.join(head)!r} is not a first line: the counts of the {n} states and of the rewards are needed"
            )
        raise lines.fault(body[-1][0], f"the file ends after {len(body) - 1} rewards, but the first line says {head[-1]}")
    if counted:
        body = body[1:]
    result = np.zeros((n, a))
    seen: dict[tuple[int, ...], int] = {}
    allowed = (2, 3) if chain else (2, 3, 4)
    csr = P.tocsr()
    for number, words in body:
        if len(words) not in allowed or len(words) != len(body[0][1]):
            raise lines.fault(
                number, f"{len(words)} columns: {len(body[0][1]) if len(body[0][1]) in allowed else 'state reward'} are needed"
            )
        state = lines.index(number, words[0], "the state", n)
        value = lines.read(number, words[-1], float, "the reward")
        if not np.isfinite(value):
            raise lines.fault(number, f"the reward is {value!r}: a finite number is needed")
        rest = [lines.index(number, word, "the index") for word in words[1:-1]]
        key = (state, *rest)
        if key in seen:
            raise lines.fault(number, f"this reward was already given in line {seen[key]}")
        seen[key] = number
        if not rest:
            result[state] += value
            continue
        choice, following = (0, rest[0]) if chain else (rest[0], rest[1] if len(rest) == 2 else None)
        if not (choice < a and mask[state, choice]):
            raise lines.fault(number, f"state {state} has {int(mask[state].sum())} choices, but none numbered {choice}")
        if following is None:
            result[state, choice] += value
            continue
        row = state * a + choice
        part = slice(csr.indptr[row], csr.indptr[row + 1])
        p = float(csr.data[part][csr.indices[part] == following].sum())
        if p == 0.0:
            raise lines.fault(number, f"state {state}, choice {choice} has no transition to state {following}")
        result[state, choice] += p * value
    return result


def _values(lines: _Lines, n: int) -> list[str]:
    """The variables of all states and their values, from PRISM's states."""
    (number, head), *body = lines
    match = re.fullmatch(r"\(([^()]+)\)", "".join(head))
    if match is None:
        raise lines.fault(number, f"{' '.join(head)!r} is not a first line: the variables, such as (x,y), are needed")
    variables = match[1].split(",")
    result = [""] * n
    for number, words in body:
        match = re.fullmatch(r"(\d+):\(([^()]+)\)", "".join(words))
        values = match[2].split(",") if match else []
        if match is None or len(values) != len(variables):
            raise lines.fault(number, f"{' '.join(words)!r}: a state and {len(variables)} values, such as 0:(1,2), are needed")
        state = lines.index(number, match[1], "the state", n)
        if result[state]:
            raise lines.fault(number, f"state {state} was already given")
        result[state] = ", ".join(f"{name}={value}" for name, value in zip(variables, values, strict=True))
    if "" in result:
        raise lines.fault(number, f"state {result.index('')} is missing")
    return result


def _labels(lines: _Lines, n: int) -> list[list[str]]:
    """The labels of all states, PRISM's or Storm's."""
    body = list(lines)
    number, head = body[0]
    if head[0] == "#DECLARATION":
        ends = [i for i, (_, words) in enumerate(body) if words[0] == "#END"]
        if not ends:
            raise lines.fault(body[-1][0], "#END is missing")
        known = {word: word for _, words in body[1 : ends[0]] for word in words}
        body = body[ends[0] + 1 :]
    else:
        known = {}
        for word in head:
            match = re.fullmatch(r'(\d+)="([^"]*)"', word)
            if match is None:
                raise lines.fault(number, f'{word!r} is not a label: 0="init" 1="name" .. is needed')
            known[match[1]] = match[2]
        body = body[1:]
    names: list[list[str]] = [[] for _ in range(n)]
    for number, words in body:
        state = lines.index(number, words[0].removesuffix(":"), "the state", n)
        for word in words[1:]:
            if word not in known:
                raise lines.fault(number, f"the label {word!r} was not declared: one of {', '.join(known)} is needed")
            names[state].append(known[word])
    return names
