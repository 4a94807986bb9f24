"""The study file: its meaning, and errors that name key and line."""

from __future__ import annotations

import pytest

import opo_fast as of
from opo_fast.study import Checkpoints, Entry, Record, Study

TEXT = """\
name = "scales"                # line 1
episodes = 100
seeds = 3

[record]
every = 10
measures = [
  "regret",                    # a [bracket] in a comment
  "saturation",
]

[checkpoint]
episodes = 50

[[environments]]
name = "icu-sepsis"
options = { horizon = 6 }

[[agents]]
name = "opo"
[agents.grid]
bonus_scale = [1e-6, 2e-6]
eta_scale = [1, 50.0]

[[agents]]
name = "uniform"
label = "Uniform"
"""


def load(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    return Study.load(path)


def test_a_study_file_and_python_say_the_same(tmp_path):
    study = load(tmp_path, TEXT)
    assert study.record == Record(10, ("regret", "saturation"))
    assert study.checkpoint == Checkpoints(50, 60.0)
    assert study.seeds == (0, 1, 2)
    assert study.root == tmp_path
    other = Study(
        "scales",
        [{"name": "icu-sepsis", "options": {"horizon": 6}}],
        [Entry("opo", grid={"bonus_scale": [1e-6, 2e-6], "eta_scale": [1, 50.0]}), {"name": "uniform", "label": "Uniform"}],
        episodes=100,
        seeds=range(3),
        record={"every": 10, "measures": ["saturation"]},
        checkpoint={"episodes": 50},
    )
    assert study.to_dict() == other.to_dict()
    assert Study.from_dict(study.to_dict()).to_dict() == study.to_dict()
    assert [run.id for run in study.runs()] == [run.id for run in other.runs()]


def test_the_grid_is_every_combination(tmp_path):
    runs = load(tmp_path, TEXT).runs()
    assert len(runs) == 1 * (2 * 2 + 1) * 3
    assert len({run.id for run in runs}) == len(runs)
    assert [run.seed for run in runs] == [0] * 5 + [1] * 5 + [2] * 5
    assert runs[1].agent.options == {"bonus_scale": 1e-6, "eta_scale": 50.0}
    assert runs[1].agent.label == "opo (bonus_scale=1e-06, eta_scale=50)"
    assert runs[4].agent.label == "Uniform"


def identity(**changes):
    arguments = {"name": "a", "environments": [{"name": "e"}], "agents": [{"name": "o", "options": {"eta": 2}}], "episodes": 10} | changes
    return Study(arguments.pop("name"), arguments.pop("environments"), arguments.pop("agents"), **arguments).runs()[0].id


def test_identity_is_a_hash_of_the_settings_alone():
    same = identity()
    assert identity(name="b", record={"every": 5}, checkpoint={"seconds": 1}, format="npz") == same
    assert identity(agents=[{"name": "o", "label": "Other", "options": {"eta": 2.0}}]) == same
    assert identity(agents=[{"name": "o", "grid": {"eta": [2, 3]}}]) == same
    assert identity(seeds=[0, 7]) == same
    for change in (
        {"episodes": 11},
        {"seeds": [7]},
        {"agents": [{"name": "p", "options": {"eta": 2}}]},
        {"agents": [{"name": "o", "options": {"eta": 2, "delta": 0.1}}]},
        {"environments": [{"name": "e", "options": {"horizon": 5}}]},
    ):
        assert identity(**change) != same, change


def test_the_practical_setting_that_is_filled_in_is_part_of_the_identity(monkeypatch):
    silent = identity(agents=["e-uc3rl"])
    assert identity(agents=[{"name": "e-uc3rl", "options": of.agents.practical("e-uc3rl")}]) == silent
    before = of.agents.practical
    monkeypatch.setattr(of.agents, "practical", lambda name: {**before(name), "bonus_scale": 7.0})
    assert identity(agents=["e-uc3rl"]) != silent
    assert identity(agents=[{"name": "e-uc3rl", "options": {"bonus_scale": 7}}]) == identity(agents=["e-uc3rl"])


MISTAKES = [
    ("every = 10", "evry = 10", r"study\.toml, line 6: record\.evry: unknown key \(did you mean 'every'\?\)"),
    ("[1e-6, 2e-6]", "[1e-6, nan]", r"line 22: agents\[0\]\.grid\.bonus_scale\[1\] is nan: a finite number"),
    ("[1, 50.0]", "[1, inf]", r"line 23: agents\[0\]\.grid\.eta_scale\[1\] is inf: a finite number"),
    ("[1, 50.0]", "[]", r"line 23: agents\[0\]\.grid\.eta_scale is \[\]: a list of values to try, not empty"),
    ("[1, 50.0]", "[1, 1.0]", r"line 23: agents\[0\]\.grid\.eta_scale\[1\] is 1\.0: a value that is not in the list already"),
    ("[1, 50.0]", "7", r"line 23: agents\[0\]\.grid\.eta_scale is 7: a list"),
    ("[1, 50.0]", "[1979-05-27]", r"line 23: agents\[0\]\.grid\.eta_scale\[0\] is datetime.*: a number, text, boolean"),
    ("episodes = 100", 'episodes = "100"', r"line 2: episodes is '100': a whole number of at least 1"),
    ("episodes = 100", "episodes = 0", r"line 2: episodes is 0: a whole number of at least 1"),
    ("seeds = 3", "seeds = [1, 2, 1]", r"line 3: seeds has 1 twice"),
    ("seeds = 3", "seeds = [-1]", r"line 3: seeds\[0\] is -1: a whole number of at least 0"),
    ("seeds = 3", "seeds = true", r"line 3: seeds is True: a whole number"),
    ("seeds = 3", "seeds = 300000", r"the study has 1,500,000 runs: at most 1,000,000"),
    ('"saturation",', '"satration",', r"line 7: record\.measures\[1\] is 'satration': one of regret"),
    ("seeds = 3", "seeds = 1000000000", r"line 3: seeds has more than 1,000,000 entries, the largest number of runs"),
    ("episodes = 50", "episodes = 50\nseconds = 0", r"line 14: checkpoint\.seconds is 0: a number above 0"),
    ('name = "scales"', 'name = "../up"', r"line 1: name is '\.\./up': letters, digits"),
    ('name = "icu-sepsis"', 'name = "mine:"', r"line 16: environments\[0\]\.name is 'mine:': a name, or an import path"),
    ('name = "icu-sepsis"', "", r"line 15: environments\[0\]\.name is missing"),
    ("horizon = 6", "horizon = nan", r"line 17: environments\[0\]\.options\.horizon is nan"),
    (
        'name = "uniform"',
        'name = "opo"\ngrid = { bonus_scale = [2e-6], eta_scale = [1] }',
        r"line 25: agents\[1\] has the same settings as agents\[0\]",
    ),
    ('label = "Uniform"', 'label = "opo (bonus_scale=1e-06, eta_scale=1)"', r"line 25: agents\[1\] has the same label as agents\[0\]"),
    ('label = "Uniform"', "grd = {}", r"line 27: agents\[1\]\.grd: unknown key \(did you mean 'grid'\?\)"),
    ("[agents.grid]", "[agents.options]\neta_scale = 1\n[agents.grid]", r"line 25: agents\[0\]\.grid\.eta_scale is also in options"),
    ("[checkpoint]", 'format = "csv"\n[checkpoint]', r"line 12: record\.format: unknown key"),
    ("seeds = 3", 'seeds = 3\nformat = "csv"', r"line 4: format is 'csv': one of parquet, npz"),
    ("seeds = 3", "seeds = ", r"not valid TOML: .*line 3"),
    ("seeds = 3", "seeds = 3\nseeds = 4", r"not valid TOML: .*line 4"),
    ("[[environments]]", "[[environment]]", r"line 15: environment: unknown key \(did you mean 'environments'\?\)"),
]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES, ids=[f"{i}-{new[:20]}" for i, (_, new, _) in enumerate(MISTAKES)])
def test_a_mistake_is_named_with_key_and_line(tmp_path, old, new, message):
    assert TEXT.count(old) >= 1
    with pytest.raises(of.OpoError, match=message):
        load(tmp_path, TEXT.replace(old, new, 1))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(of.OpoError, match=r"there is no study file '.*none\.toml'"):
        Study.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("name = 'caf\xe9'".encode("latin-1"))
    with pytest.raises(of.OpoError, match=r"is not UTF-8 text \(byte 11\)"):
        Study.load(tmp_path / "latin.toml")
    with pytest.raises(of.OpoError, match=r"cannot be read: Is a directory"):
        Study.load(tmp_path)


@pytest.mark.parametrize("seeds", [10**9, 10**30, range(10**9), range(5, 10**30), [0] * 1_000_001])
def test_more_seeds_than_runs_can_be_are_refused_at_once(seeds):
    with pytest.raises(of.OpoError, match=r"^seeds has more than 1,000,000"):
        Study("s", ["icu-sepsis"], ["opo"], episodes=5, seeds=seeds)


def test_python_mistakes_name_the_key():
    with pytest.raises(of.OpoError, match=r"^agents\[0\]\.grid\.eta\[0\] is nan: a finite number"):
        Study("a", ["e"], [Entry("o", grid={"eta": [float("nan")]})], episodes=3)
    with pytest.raises(of.OpoError, match=r"^environments is \[\]: a list of tables or names"):
        Study("a", [], ["o"], episodes=3)
