"""The study file (TOML) and its Python object; all errors name the key and the line."""

from __future__ import annotations

import math
import operator
import os
import pathlib
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from .._support.checks import LARGEST, as_path, shown
from ..errors import OpoError
from .grid import Choice, Run, canonical, choices, expand

__all__ = ["MEASURES", "Checkpoints", "Entry", "Record", "Study", "record_data"]

MEASURES = ("regret", "expected_regret", "saturation", "model_switches", "seconds", "memory")
"""What a run can record. The regret is always recorded; the expected regret over all contexts takes long, so it is optional."""
FORMATS = ("parquet", "npz")
MOST_RUNS = 1_000_000


@dataclass(frozen=True)
class Entry:
    """An environment or an agent of a study, with the grid of its settings.

    Parameters
    ----------
    name : str
        A name that the package knows, or an import path ``module:function``. ``function(**options)`` makes an environment,
        ``function(environment, **options)`` an agent; an agent's function is also given ``episodes`` and ``seed`` if it has these
        parameters.
    label : str, optional
        Default: the name.
    options : dict
    grid : dict of lists
        Values to try for each option; all combinations are run.
    """

    name: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """What is recorded, and in which episodes: every `every`-th and the last."""

    every: int = 1
    measures: tuple[str, ...] = ("regret", "saturation", "model_switches", "seconds", "memory")


@dataclass(frozen=True)
class Checkpoints:
    """When a run writes a checkpoint: after so many episodes, if given, and after so many seconds."""

    episodes: int | None = None
    seconds: float = 60.0


class Study:
    """A grid of environments, agents, their settings, and seeds.

    Parameters
    ----------
    name : str
        Letters, digits, ``-``, ``_`` and ``.``; it also gives the default folder its name.
    environments, agents : sequence of str, dict or Entry
        Names, or the arguments of `Entry`.
    episodes : int
        T of every run.
    seeds : int or sequence of int
        The seeds, or their number: n stands for 0, ..., n - 1. Under the same seed all agents see the same contexts and uniforms.
    record : dict or Record
    checkpoint : dict or Checkpoints
    format : {"parquet", "npz"}, optional
        Format of the stored runs. Default: parquet if pyarrow is installed.
    root : path, optional
        The folder that is searched first for modules of import paths. Default: the folder of the study file, or the working directory.

    Raises
    ------
    OpoError
        A value is wrong; the message names the key, and the line of a file.
    """

    def __init__(
        self,
        name: str,
        environments: Sequence[Any],
        agents: Sequence[Any],
        *,
        episodes: int,
        seeds: int | Sequence[int] = 1,
        record: Any = None,
        checkpoint: Any = None,
        format: str | None = None,
        root: str | os.PathLike[str] | None = None,
    ) -> None:
        data = {"name": name, "environments": environments, "agents": agents, "episodes": episodes, "seeds": seeds}
        if record is not None:
            data["record"] = record_data(record) if isinstance(record, Record) else record
        if checkpoint is not None:
            data["checkpoint"] = _checkpoint_data(checkpoint) if isinstance(checkpoint, Checkpoints) else checkpoint
        if format is not None:
            data["format"] = format
        self._read(data, _Places(), root)

    name: str
    environments: tuple[Entry, ...]
    agents: tuple[Entry, ...]
    episodes: int
    seeds: tuple[int, ...]
    record: Record
    checkpoint: Checkpoints
    format: str | None
    root: pathlib.Path

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Study:
        """Read a study file."""
        path = pathlib.Path(as_path(path))
        try:
            text = path.read_bytes().decode("utf-8")
            data = tomllib.loads(text)
        except FileNotFoundError:
            raise OpoError(f"there is no study file {os.fspath(path)!r}") from None
        except OSError as error:
            raise OpoError(f"the study file {os.fspath(path)!r} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise OpoError(f"{os.fspath(path)!r} is not UTF-8 text (byte {error.start}): a TOML study file is needed") from None
        except tomllib.TOMLDecodeError as error:
            raise OpoError(f"{os.fspath(path)!r} is not valid TOML: {error}") from None
        study = cls.__new__(cls)
        study._read(data, _Places(os.fspath(path), text), path.resolve().parent)
        return study

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], root: str | os.PathLike[str] | None = None) -> Study:
        """A study from the keys of a study file."""
        study = cls.__new__(cls)
        study._read(data, _Places(), root)
        return study

    def to_dict(self) -> dict[str, Any]:
        """The study as the keys of a study file."""
        data: dict[str, Any] = {"name": self.name, "episodes": self.episodes, "seeds": list(self.seeds)}
        data["record"] = record_data(self.record)
        data["checkpoint"] = _checkpoint_data(self.checkpoint)
        if self.format is not None:
            data["format"] = self.format
        for kind, entries in (("environments", self.environments), ("agents", self.agents)):
            data[kind] = [
                {"name": e.name, "label": e.label, "options": dict(e.options), "grid": {k: list(v) for k, v in e.grid.items()}}
                for e in entries
            ]
        return data

    def runs(self) -> list[Run]:
        """All runs, seed by seed."""
        return expand(self)

    def choices(self, kind: str) -> list[Choice]:
        """All environments or agents, one for each point of their grids."""
        return [choice for entry in getattr(self, kind) for choice in choices(entry, kind)]

    def _read(self, data: Mapping[str, Any], places: _Places, root: str | os.PathLike[str] | None) -> None:
        check = _Check(places)
        known = ("name", "episodes", "seeds", "record", "checkpoint", "format", "environments", "agents")
        check.table(data, (), known, needed=("name", "episodes", "environments", "agents"))
        self.name = check.text(data["name"], ("name",))
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise check.error(("name",), self.name, "letters, digits, '-', '_' and '.' are needed")
        self.episodes = check.integer(data["episodes"], ("episodes",), least=1)
        self.seeds = check.seeds(data.get("seeds", 1))
        self.record = check.record(data.get("record", {}))
        self.checkpoint = check.checkpoint(data.get("checkpoint", {}))
        self.format = check.one_of(data["format"], ("format",), FORMATS) if "format" in data else None
        self.environments = check.entries(data["environments"], "environments")
        self.agents = check.entries(data["agents"], "agents")
        self.root = pathlib.Path.cwd() if root is None else pathlib.Path(as_path(root, "root"))
        count = len(self.seeds)
        for kind in ("environments", "agents"):
            count *= sum(math.prod(len(v) for v in entry.grid.values()) for entry in getattr(self, kind))
        if count > MOST_RUNS:
            raise OpoError(f"{check.places.at(())}the study has {count:,} runs: at most {MOST_RUNS:,} are supported")
        for kind in ("environments", "agents"):
            self._refuse_duplicates(kind, check)

    def _refuse_duplicates(self, kind: str, check: _Check) -> None:
        keys: dict[str, int] = {}
        labels: dict[str, int] = {}
        for i, entry in enumerate(getattr(self, kind)):
            for choice in choices(entry, kind):
                for seen, value, what in ((keys, choice.key, "settings"), (labels, choice.label, "label")):
                    if value in seen:
                        same = f"{kind}[{seen[value]}]" if seen[value] != i else "another point of its grid"
                        raise OpoError(
                            f"{check.places.at((kind, i))}{kind}[{i}] has the same {what} as {same}, {choice.label!r}: "
                            "different ones are needed"
                        )
                    seen[value] = i

    def __repr__(self) -> str:
        return (
            f"<Study {self.name!r}: {len(self.choices('environments'))} environments, {len(self.choices('agents'))} agents, "
            f"{len(self.seeds)} seeds, {self.episodes:,} episodes>"
        )


def record_data(record: Record) -> dict[str, Any]:
    """A `Record` as the table of a study file."""
    return {"every": record.every, "measures": list(record.measures)}


def _checkpoint_data(checkpoint: Checkpoints) -> dict[str, Any]:
    """`Checkpoints` as the table of a study file."""
    seconds = {"seconds": checkpoint.seconds}
    return seconds if checkpoint.episodes is None else {"episodes": checkpoint.episodes, **seconds}


class _Check:
    """Checks of values, whose errors name the place in the file."""

    def __init__(self, places: _Places) -> None:
        self.places = places

    def error(self, path: tuple[str | int, ...], value: Any, needed: str) -> OpoError:
        return OpoError(f"{self.places.at(path)}{spelled(path)} is {shown(value)}: {needed}")

    def table(self, value: Any, path: tuple[str | int, ...], known: Sequence[str], needed: Sequence[str] = ()) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self.error(path, value, "a table of keys and values is needed")
        for key in value:
            if key not in known:
                close = get_close_matches(str(key), known, 1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise OpoError(f"{self.places.at((*path, key))}{spelled((*path, key))}: unknown key{hint}; known here: {', '.join(known)}")
        for key in needed:
            if key not in value:
                raise OpoError(f"{self.places.at(path)}{spelled((*path, key))} is missing")
        return value

    def text(self, value: Any, path: tuple[str | int, ...]) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.error(path, value, "a text is needed")
        return value

    def integer(self, value: Any, path: tuple[str | int, ...], least: int) -> int:
        try:
            number = least - 1 if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = least - 1
        if number < least:
            raise self.error(path, value, f"a whole number of at least {least} is needed")
        if number > LARGEST and path[0] != "seeds":
            raise self.error(path, value, f"a whole number of at most {LARGEST} is needed")
        return number

    def one_of(self, value: Any, path: tuple[str | int, ...], known: Sequence[str]) -> str:
        if not isinstance(value, str) or value not in known:
            raise self.error(path, value, f"one of {', '.join(known)} is needed")
        return str(value)

    def listed(self, value: Any, path: tuple[str | int, ...], what: str) -> Sequence[Any]:
        if not isinstance(value, (list, tuple, range)) or not value:
            raise self.error(path, value, f"a list of {what}, not empty, is needed")
        return value

    def seeds(self, value: Any) -> tuple[int, ...]:
        if not isinstance(value, (list, tuple, range)):
            value = range(self.integer(value, ("seeds",), least=1))
        if value[MOST_RUNS:]:
            raise OpoError(f"{self.places.at(('seeds',))}seeds has more than {MOST_RUNS:,} entries, the largest number of runs")
        seeds = tuple(self.integer(seed, ("seeds", i), least=0) for i, seed in enumerate(self.listed(value, ("seeds",), "seeds")))
        if len(set(seeds)) < len(seeds):
            twice = next(seed for seed, count in Counter(seeds).items() if count > 1)
            raise OpoError(f"{self.places.at(('seeds',))}seeds has {twice} twice: different seeds are needed")
        return seeds

    def record(self, value: Any) -> Record:
        self.table(value, ("record",), ("every", "measures"))
        every = self.integer(value.get("every", 1), ("record", "every"), least=1)
        if "measures" not in value:
            return Record(every)
        measures = self.listed(value["measures"], ("record", "measures"), "measures")
        names = {self.one_of(measure, ("record", "measures", i), MEASURES) for i, measure in enumerate(measures)}
        return Record(every, tuple(measure for measure in MEASURES if measure in names | {"regret"}))

    def checkpoint(self, value: Any) -> Checkpoints:
        self.table(value, ("checkpoint",), ("episodes", "seconds"))
        episodes = self.integer(value["episodes"], ("checkpoint", "episodes"), least=1) if "episodes" in value else None
        seconds = value.get("seconds", 60.0)
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0 or math.isinf(seconds):
            raise self.error(("checkpoint", "seconds"), seconds, "a number above 0 is needed")
        return Checkpoints(episodes, float(seconds))

    def entries(self, value: Any, kind: str) -> tuple[Entry, ...]:
        if isinstance(value, (str, Entry)):
            value = [value]
        return tuple(self.entry(item, (kind, i)) for i, item in enumerate(self.listed(value, (kind,), "tables or names")))

    def entry(self, value: Any, path: tuple[str | int, ...]) -> Entry:
        if isinstance(value, Entry):
            value = {"name": value.name, "label": value.label, "options": value.options, "grid": value.grid}
            value = {key: inner for key, inner in value.items() if inner != ""}
        elif isinstance(value, str):
            value = {"name": value}
        self.table(value, path, ("name", "label", "options", "grid"), needed=("name",))
        name = self.text(value["name"], (*path, "name"))
        if ":" in name and not re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", name):
            raise self.error((*path, "name"), name, "a name, or an import path 'module:function', is needed")
        options = self.table(value.get("options", {}), (*path, "options"), list(value.get("options", {})))
        options = {str(key): self.setting(inner, (*path, "options", key)) for key, inner in options.items()}
        grid = value.get("grid", {})
        self.table(grid, (*path, "grid"), list(grid) if isinstance(grid, Mapping) else ())
        checked: dict[str, list[Any]] = {}
        for key, values in grid.items():
            here = (*path, "grid", key)
            if key in options:
                raise OpoError(f"{self.places.at(here)}{spelled(here)} is also in options: give {key!r} in only one of the two")
            values = [self.setting(inner, (*here, i)) for i, inner in enumerate(self.listed(values, here, "values to try"))]
            spellings = [canonical(inner) for inner in values]
            for i, text in enumerate(spellings):
                if text in spellings[:i]:
                    raise self.error((*here, i), values[i], "a value that is not in the list already is needed")
            checked[str(key)] = values
        label = self.text(value["label"], (*path, "label")) if "label" in value else name
        return Entry(name, label, options, checked)

    def setting(self, value: Any, path: tuple[str | int, ...]) -> Any:
        """A setting, converted to types that JSON has."""
        if isinstance(value, (bool, str)) or value is None:
            return value
        if isinstance(value, Mapping):
            return {str(key): self.setting(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.setting(inner, (*path, i)) for i, inner in enumerate(value)]
        if hasattr(value, "__index__"):
            return int(value)
        if isinstance(value, float) or hasattr(value, "__float__"):
            if not math.isfinite(value):
                raise self.error(path, float(value), "a finite number is needed")
            return float(value)
        raise self.error(path, value, "a number, text, boolean, or list or table of them is needed")


def spelled(path: Sequence[str | int]) -> str:
    """A key in Python notation, such as agents[1].grid.eta."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the study"


_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_STRING = re.compile(r'"""(?:[^\\]|\\.)*?"""|' + r"'''.*?'''" + r'|"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'|#[^\n]*", re.DOTALL)


class _Places:
    """The line of each key of a study file, which tomllib does not report."""

    def __init__(self, name: str = "", text: str = "") -> None:
        self.name = name
        self.lines: dict[tuple[str | int, ...], int] = {}
        table: tuple[str | int, ...] = ()
        counts: dict[tuple[str | int, ...], int] = {}
        depth = 0
        # Strings and comments are blanked out, so that brackets in them do not count.
        bare = _STRING.sub(lambda m: "".join(c if c == "\n" else "_" for c in m.group()) if m.group()[0] != "#" else "", text)
        for number, (line, plain) in enumerate(zip(text.splitlines(), bare.splitlines(), strict=False), 1):
            header = _HEADER.match(line) if depth == 0 and plain.lstrip().startswith("[") else None
            if header:
                table = self._table(_parts(header.group(2)), header.group(1) == "[[", counts)
                for end in range(1, len(table) + 1):
                    self.lines.setdefault(table[:end], number)
                continue
            key = _KEY.match(line) if depth == 0 else None
            if key:
                path = table
                for part in _parts(key.group(1)):
                    path = (*path, part)
                    self.lines.setdefault(path, number)
            depth += sum(plain.count(c) for c in "[{") - sum(plain.count(c) for c in "]}")

    @staticmethod
    def _table(parts: list[str], array: bool, counts: dict[tuple[str | int, ...], int]) -> tuple[str | int, ...]:
        path: tuple[str | int, ...] = ()
        for i, part in enumerate(parts):
            path = (*path, part)
            if array and i == len(parts) - 1:
                counts[path] = counts.get(path, -1) + 1
            if path in counts:
                path = (*path, counts[path])
        return path

    def at(self, path: Sequence[str | int]) -> str:
        """'FILE, line 12: ' for a key, or for the innermost table around it whose line is known."""
        if not self.name:
            return ""
        for end in range(len(path), 0, -1):
            line = self.lines.get(tuple(path[:end]))
            if line is not None:
                return f"{self.name}, line {line}: "
        return f"{self.name}: "


def _parts(text: str) -> list[str]:
    return [a or b or c for a, b, c in re.findall(r"""\s*(?:"([^"]*)"|'([^']*)'|([^\s."']+))\s*\.?""", text)]
