"""Explicit files of PRISM and Storm: published values, refusals with file and line, and fuzzed text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opo_fast as of
from opo_fast.envs import from_prism, make


def write(folder, **files):
    paths = {}
    for name, text in files.items():
        paths[name] = folder / f"model.{name}"
        paths[name].write_bytes(text.encode())
    return paths


def value(table, horizon, worst=False):
    m = table.layered(horizon)
    if worst:
        losses = 1 - m.losses
        return float(table.reward_value(horizon - of.solve(m.with_losses(losses)).v[0], horizon))
    return float(table.reward_value(of.solve(m).v[0], horizon))


# Forejt, Kwiatkowska, Norman, Parker 2011, Fig. 2: state and transition rewards.
FKNP = {
    "tra": "4 6 8\n0 0 1 1 go\n1 0 0 0.7 safe\n1 0 2 0.3 safe\n1 1 2 0.5 risk\n1 1 3 0.5 risk\n2 0 2 1\n3 0 3 1 stop\n3 1 0 1 reset\n",
    "lab": '0="init" 1="deadlock" 2="heads"\n0: 0\n2: 2\n',
    "srew": "4 2\n0 1\n1 2\n",
    "trew": "4 6 6\n0 0 1 1\n1 0 0 1\n1 0 2 1\n1 1 2 4\n1 1 3 4\n3 1 0 5\n",
}


@pytest.mark.parametrize("style", ["plain", "crlf", "comments", "storm"])
def test_fknp11_figure_2(tmp_path, style):
    files = dict(FKNP)
    if style == "crlf":
        files = {name: text.replace("\n", "\r\n") for name, text in files.items()}
    if style == "comments":
        files = {name: "# exported\n\n// by hand\n" + text.replace("\n", "  # a remark\n") for name, text in files.items()}
    if style == "storm":
        files["tra"] = "mdp\n" + files["tra"].split("\n", 1)[1]
        files["lab"] = "#DECLARATION\ninit deadlock heads\n#END\n0 init\n2 heads\n"
    paths = write(tmp_path, **files)
    table = from_prism(paths["tra"], labels=paths["lab"], rewards=[paths["srew"], paths["trew"]])
    assert [value(table, k) for k in (1, 2, 3, 4)] == pytest.approx([2, 8, 10.5, 11.5], abs=1e-12)
    assert table.action_mask.sum() == 6
    assert table.state_names[2] == "2: heads"


def test_mdp_rewards(tmp_path):
    """prism-tests mdp_rewards.nm, reward structure "a": Rmax C<=k and Rmin C<=k."""
    tra = "4 7 10\n"
    for s in range(3):
        tra += f"{s} 0 {s + 1} 1 go\n{s} 1 {s} 0.5 mix\n{s} 1 {s + 1} 0.5 mix\n"
    paths = write(tmp_path, tra=tra + "3 0 3 1 go\n", srew="4 3\n0 2\n1 5\n2 11\n", trew="4 7 2\n0 0 1 3\n1 0 2 7\n")
    table = from_prism(paths["tra"], rewards=[paths["srew"], paths["trew"]])
    assert [value(table, k) for k in (1, 2, 3)] == pytest.approx([5, 17, 28], abs=1e-12)
    assert [value(table, k, worst=True) for k in (1, 2, 3)] == pytest.approx([2, 5.5, 11.25], abs=1e-12)


def test_mdp_simple_reaches(tmp_path):
    """prism-tests mdp_simple.nm: Pmax F<=k and Pmin F<=k; a reward of 1 on the way into the target, once."""
    won, lost = 6, 7
    rows = []
    for s, p in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        rows += [f"{s} 0 {s + 1} 1", f"{s} 1 {won} {p}", f"{s} 1 {lost} {1 - p}"]
    rows += [f"5 0 {won} 1", f"{won} 0 8 1", f"{lost} 0 {lost} 1", "8 0 8 1"]
    paths = write(tmp_path, tra="9 14 19\n" + "\n".join(rows) + "\n", srew=f"9 1\n{won} 1\n")
    table = from_prism(paths["tra"], rewards=paths["srew"])
    # The state reward of the target is collected by the step out of it: F<=k is k+1 steps.
    assert [value(table, k + 1) for k in (1, 2, 4)] == pytest.approx([0.1, 0.2, 0.4], abs=1e-12)
    assert [value(table, k + 1, worst=True) for k in (1, 2, 4, 6)] == pytest.approx([0, 0, 0, 0.1], abs=1e-12)


def test_a_chain_and_its_rewards(tmp_path):
    paths = write(tmp_path, tra="2 3\n0 0 0.5\n0 1 0.5\n1 1 1\n", trew="2 1\n0 1 4\n")
    table = from_prism(paths["tra"], rewards=paths["trew"])
    assert (table.n_actions, value(table, 1), value(table, 2)) == (1, 2.0, 3.0)


def test_files_by_name_take_what_lies_beside_them(tmp_path):
    paths = write(tmp_path, **FKNP)
    e = make(str(paths["tra"]), horizon=4)
    assert e.reward_value(of.solve(e.mdp(0)).v[0]) == pytest.approx(11.5, abs=1e-12)


STA = "(s,won)\n0:(0,false)\n1:(1,false)\n2:(-2,true)\n3:(3,true)\n"


def test_states_and_actions_have_the_names_of_the_files(tmp_path):
    paths = write(tmp_path, **FKNP, sta=STA)
    table = from_prism(paths["tra"], labels=paths["lab"], states=paths["sta"])
    assert table.state_names == ("0: s=0, won=false, init", "1: s=1, won=false", "2: s=-2, won=true, heads", "3: s=3, won=true")
    assert table.action_names == ("go / safe / stop", "risk / reset")
    table.save(tmp_path / "table.npz")
    assert of.envs.TabularMDP.load(tmp_path / "table.npz").action_names == table.action_names
    without = from_prism(write(tmp_path, tra="2 2\n0 1 1\n1 1 1\n")["tra"])
    assert (without.state_names, without.action_names) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0:(0,1)\n", "line 1: '0:\\(0,1\\)' is not a first line: the variables"),
        (STA.replace("1:(1,false)", "1:(1)"), "line 3: '1:\\(1\\)': a state and 2 values"),
        (STA.replace("3:(3", "4:(3"), "line 5: the state is 4: 0 to 3"),
        (STA.replace("3:(3", "2:(3"), "line 5: state 2 was already given"),
        (STA.replace("3:(3,true)\n", ""), "line 4: state 3 is missing"),
    ],
)
def test_malformed_states(tmp_path, text, words):
    paths = write(tmp_path, **FKNP, sta=text)
    with pytest.raises(of.OpoError, match=words):
        from_prism(paths["tra"], states=paths["sta"])


def test_a_file_that_holds_no_model_is_named(tmp_path):
    for name, content in (("a.npz", b"x"), ("b.npz", b""), ("c.txt", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(of.OpoError, match=name):
            of.envs.from_file(tmp_path / name)
    np.savez(tmp_path / "d.npz", meta=np.array("[1]"))
    with pytest.raises(of.OpoError, match=r"d\.npz' is not a model of opo_fast"):
        of.envs.from_file(tmp_path / "d.npz")


def test_deadlocks_are_named_or_become_loops(tmp_path):
    paths = write(tmp_path, tra="5 2 2\n0 0 1 1\n1 0 3 1\n", srew="5 1\n3 2\n")
    with pytest.raises(of.OpoError, match=r"model\.tra: states without a choice: 2, 3, 4"):
        from_prism(paths["tra"])
    table = from_prism(paths["tra"], deadlocks="loop", rewards=paths["srew"])
    assert value(table, 5) == 6.0


BAD_TRA = [
    ("", "the file is empty"),
    ("# nothing\n", "the file is empty"),
    ("4 6 8\n", "line 1"),
    ("4 6 9\n" + FKNP["tra"].split("\n", 1)[1], "line 9: the file ends after 8 transitions, but the first line says 9"),
    (FKNP["tra"][: FKNP["tra"].rindex("3 1 0")], "line 8: the file ends after 7"),
    (FKNP["tra"].replace("0.3 safe", "0.4 safe"), r"line 3: state 1, choice 0: the probabilities sum to 1\.1"),
    (FKNP["tra"].replace("1 1 3 0.5", "1 1 9 0.5"), "line 6: the next state is 9: 0 to 3"),
    (FKNP["tra"].replace("1 1 3 0.5", "1 1 2 0.5"), "line 6: the transition from state 1 to 2 was already given in line 5"),
    (FKNP["tra"].replace("1 1 3 0.5 risk", "1 1 3"), "line 6: 3 columns"),
    (FKNP["tra"].replace("1 1 3 0.5 risk", "1 1 3 0.5 risk now"), "line 6: 6 columns"),
    (FKNP["tra"].replace("1 1 3 0.5", "1 1 3 half"), "line 6: the probability is 'half'"),
    (FKNP["tra"].replace("1 1 3 0.5", "1 1 3 nan"), "line 6: the probability is nan"),
    (FKNP["tra"].replace("1 1 3 0.5", "1 1.5 3 0.5"), r"line 6: the choice is '1\.5'"),
    (FKNP["tra"].replace("1 1 3 0.5", "-1 1 3 0.5"), "line 6: the state is -1"),
    (FKNP["tra"].replace("3 1 0", "3 2 0"), "line 9: state 3 has 2 choices, one of them numbered 2"),
    (FKNP["tra"].replace("4 6 8", "4 7 8"), "line 1: the line says 7 choices"),
    ("mdp 1\n0 0 0 1\n", "line 1"),
    ("pomdp\n0 0 0 1\n", "line 1: 'pomdp' is not a first line"),
    ("# c\r\n\r\n2 2\r\n0 1 1\r\n1 1 0.9\r\n", r"line 5: state 1, choice 0: the probabilities sum to 0\.9"),
]


@pytest.mark.parametrize(("text", "words"), BAD_TRA)
def test_malformed_transitions(tmp_path, text, words):
    paths = write(tmp_path, tra=text)
    with pytest.raises(of.OpoError, match=words) as caught:
        from_prism(paths["tra"])
    assert "model.tra" in str(caught.value)


BAD_REWARDS = [
    ("srew", "", "empty"),
    ("srew", "4 3\n0 1\n1 2\n", "line 3: the file ends after 2 rewards, but the first line says 3"),
    ("srew", "0 1\n1 2\n", "line 1: '0 1' is not a first line"),
    ("srew", "4 2\n0 1\n9 2\n", "line 3: the state is 9"),
    ("srew", "4 2\n0 1\n0 2\n", "line 3: this reward was already given in line 2"),
    ("srew", "4 2\n0 1\n1 inf\n", "line 3: the reward is inf"),
    ("srew", "4 2\n0 1\n1 2 3 4 5\n", "line 3: 5 columns"),
    ("trew", "4 6 1\n0 1 1 3\n", "line 2: state 0 has 1 choices, but none numbered 1"),
    ("trew", "4 6 1\n0 0 2 3\n", "line 2: state 0, choice 0 has no transition to state 2"),
    ("rew", "0 one\n", "line 1: the reward is 'one'"),
]


@pytest.mark.parametrize(("kind", "text", "words"), BAD_REWARDS)
def test_malformed_rewards(tmp_path, kind, text, words):
    paths = write(tmp_path, tra=FKNP["tra"], **{kind: text})
    with pytest.raises(of.OpoError, match=words):
        from_prism(paths["tra"], rewards=paths[kind])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0=init\n", "line 1: '0=init' is not a label"),
        ('0="init"\n0: 3\n', "line 2: the label '3' was not declared"),
        ('0="init"\n7: 0\n', "line 2: the state is 7"),
        ("#DECLARATION\ninit\n0 init\n", "#END is missing"),
        ("", "empty"),
    ],
)
def test_malformed_labels(tmp_path, text, words):
    paths = write(tmp_path, tra=FKNP["tra"], lab=text)
    with pytest.raises(of.OpoError, match=words):
        from_prism(paths["tra"], labels=paths["lab"])


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(of.OpoError, match="cannot be read"):
        from_prism(tmp_path / "none.tra")
    with pytest.raises(of.OpoError, match="cannot be read"):
        from_prism(tmp_path)
    (tmp_path / "x.tra").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(of.OpoError, match="not text"):
        from_prism(tmp_path / "x.tra")


WORDS = st.sampled_from(
    ["0", "1", "2", "3", "4", "6", "8", "0.5", "1e400", "-1", "nan", "mdp", "dtmc", "go", "#", "//", ":", "0:", '0="init"', "init"]
) | st.sampled_from(["#DECLARATION", "#END", "٣", "1_0", "99999999999999999999", "0x1", "\x00", "\u2028"])
LINES = st.lists(st.lists(WORDS, max_size=6).map(" ".join), max_size=8).map("\n".join)


@given(st.one_of(LINES, st.text(max_size=60)), st.sampled_from(["tra", "lab", "srew", "trew", "rew"]), st.booleans())
def test_fuzzed_text_gives_a_model_or_the_package_s_error(tmp_path_factory, text, kind, mutate):
    folder = tmp_path_factory.mktemp("fuzz")
    files = dict(FKNP)
    if mutate:
        base = FKNP.get(kind, FKNP["srew"]).split("\n")
        place = len(text) % len(base)
        base[place] = text
        text = "\n".join(base)
    files[kind] = text.encode("utf-8", "replace").decode()
    paths = write(folder, **files)
    try:
        table = from_prism(paths["tra"], labels=paths["lab"], rewards=[paths[name] for name in paths if name.endswith("rew")])
    except of.OpoError:
        return
    assert np.isfinite(value(table, 3))


@given(st.binary(max_size=80))
def test_fuzzed_bytes(tmp_path_factory, blob):
    path = tmp_path_factory.mktemp("bytes") / "x.tra"
    path.write_bytes(blob)
    with pytest.raises(of.OpoError, match=r"x\.tra"):
        from_prism(path)
