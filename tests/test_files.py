"""Files: written atomically, also by several writers at once; read back unchanged, or refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import pathlib
import socket
import stat
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import opo_fast as of
from opo_fast._support.checks import as_path
from opo_fast._support.files import reading, writing
from opo_fast._support.state import decode, encode, read_state, write_state

POSIX = pytest.mark.skipif(os.name != "posix", reason="files of POSIX")


def put(path, data: bytes) -> None:
    with writing(path) as file:
        file.write(data)


def loaders():
    from opo_fast.envs.tables import TabularMDP
    from opo_fast.oracles import TrajectoryLog

    return {
        "state": read_state,
        "result": of.SimulationResult.load,
        "model": of.LayeredMDP.load,
        "table": TabularMDP.load,
        "log": lambda path: TrajectoryLog.load(path),
    }


# -- writing -------------------------------------------------------------------------------------------------------------------


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "x"
    put(path, b"old")
    with pytest.raises(TypeError), writing(path) as file:
        file.writelines([b"new", "text"])
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


@POSIX
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_errors_of_the_disk_are_reported_and_nothing_is_left(tmp_path, monkeypatch, number, call):
    path = tmp_path / "x.npz"
    write_state(path, {"a": np.arange(3)})

    def fail(*_):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(of.OpoError, match=rf"path: '{path}' cannot be written: .") as caught:
            write_state(path, {"a": np.arange(4)})
    assert {errno.ENOSPC: "free some space", errno.EDQUOT: "free some space", errno.EROFS: "read-only", errno.EIO: "Input/output"}[
        number
    ] in str(caught.value)
    assert read_state(path)["a"].size == 3
    assert os.listdir(tmp_path) == ["x.npz"]


@POSIX
def test_links_pipes_devices_and_folders_are_never_replaced(tmp_path):
    target = tmp_path / "target"
    target.write_bytes(b"mine")
    (tmp_path / "link").symlink_to(target)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    before = sorted(os.listdir(tmp_path))
    for name, kind in (("link", "a symbolic link"), ("dangling", "a symbolic link"), ("pipe", "a named pipe")):
        with pytest.raises(of.OpoError, match=rf"path: '.*{name}' is {kind}: a plain file is needed"):
            put(tmp_path / name, b"new")
    with pytest.raises(of.OpoError, match="is a device"):
        put("/dev/null", b"new")
    with pytest.raises(of.OpoError, match="Is a directory"):
        put(tmp_path / "folder", b"new")
    assert sorted(os.listdir(tmp_path)) == before
    assert target.read_bytes() == b"mine"


@POSIX
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_the_mode_of_the_file_that_is_replaced_is_kept(tmp_path, mode):
    path = tmp_path / "x"
    put(path, b"old")
    path.chmod(mode)
    put(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.read_bytes() == b"new"


@POSIX
@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user (root)")
def test_a_file_that_is_read_only_is_not_replaced(tmp_path):
    path = tmp_path / "x"
    put(path, b"old")
    path.chmod(0o400)
    with pytest.raises(of.OpoError, match="the file is read-only for this user"):
        put(path, b"new")


def test_names_of_the_greatest_length_work(tmp_path):
    for name in ("x" * 255, "ä" * 127):
        put(tmp_path / name, b"1")
        assert (tmp_path / name).read_bytes() == b"1"


def test_a_path_with_a_zero_in_it_is_refused():
    for path in ("a\0b", b"a\0b"):
        with pytest.raises(of.OpoError, match="path is "):
            as_path(path)


def save_often(folder: str, number: int, times: int) -> None:
    for i in range(times):
        write_state(pathlib.Path(folder, f"{i % 3}.npz"), {"of": number, "data": np.full(2000, number)})


@pytest.mark.parametrize("kind", [threading.Thread, multiprocessing.get_context("spawn").Process])
def test_two_savers_to_one_path_both_succeed_and_the_file_is_of_one_of_them(tmp_path, kind):
    savers = [kind(target=save_often, args=(str(tmp_path), number, 100)) for number in (1, 2, 3)]
    for saver in savers:
        saver.start()
    while any(saver.is_alive() for saver in savers):
        for path in tmp_path.glob("?.npz"):
            state = read_state(path)
            assert (state["data"] == state["of"]).all()
    for saver in savers:
        saver.join()
        assert getattr(saver, "exitcode", 0) == 0
    assert sorted(os.listdir(tmp_path)) == ["0.npz", "1.npz", "2.npz"]


# -- reading -------------------------------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("what", loaders())
def test_a_pipe_or_a_socket_is_refused_and_never_waited_for(tmp_path, what):
    os.mkfifo(tmp_path / "x.npz")
    with pytest.raises(of.OpoError, match=r"x\.npz' is a named pipe: a plain file is needed"):
        loaders()[what](tmp_path / "x.npz")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(tmp_path / "y.npz"))
        with pytest.raises(of.OpoError, match="is a socket"):
            loaders()[what](tmp_path / "y.npz")


def test_whatever_goes_wrong_while_reading_is_one_error(tmp_path):
    for error in (KeyError("a"), RecursionError(), MemoryError(), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")):
        (tmp_path / "x").write_bytes(b"")
        with pytest.raises(of.OpoError, match=r"path: '.*x' is not a thing, or is damaged"), reading(tmp_path / "x", "a thing"):
            raise error


# -- states --------------------------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
arrays = hnp.arrays(
    st.sampled_from(["f8", "f4", "i8", "u1", "?", "U3", "c16", "M8[D]"]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
)
keys = st.text(max_size=6) | st.sampled_from(["$", "of", "json", "file", "allow_pickle"])
values = st.recursive(
    scalars | arrays,
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


def same(a, b) -> bool:
    """Equal values of equal types."""
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=60, deadline=None)
@given(state=st.dictionaries(keys, values, max_size=4), compressed=st.booleans())
def test_a_state_comes_back_as_it_was(tmp_path_factory, state, compressed):
    path = tmp_path_factory.getbasetemp() / "round.npz"
    write_state(path, state, compressed=compressed)
    assert same(read_state(path), state)
    # In JSON alone, too.
    assert same(decode(encode(state)), state)


def test_scalars_keep_their_type(tmp_path):
    state = {"a": np.float32(1.5), "b": np.int8(-3), "c": np.str_("x"), "d": np.bool_(True)}
    write_state(tmp_path / "x", state)
    assert all(type(value) is type(state[name]) for name, value in read_state(tmp_path / "x").items())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"b": [1, {2}]}}, r"state\.a\.b\[1\] is a set, which cannot be saved"),
        ({"a": np.array([None])}, r"state\.a is an array of objects"),
        ({"a": np.zeros(2, [("x", int)])}, r"state\.a is an array of records"),
        ({"a": {3: 1}}, r"state\.a has keys"),
        ([1], "state is a list"),
    ],
)
def test_what_a_state_cannot_hold_is_named_and_nothing_is_written(tmp_path, value, message):
    with pytest.raises(of.OpoError, match=message):
        write_state(tmp_path / "x", value)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"$": "object", "of": 1}, "marked as 'object'"),
        ({"$": "array"}, "not a saved array"),
        ({"$": "array", "of": ["<f8", [3], "00"]}, "not a saved array"),
        ({"$": "array", "of": ["<f8", [-1], ""]}, "not a saved array"),
        ({"$": "array", "of": ["|O", [1], "00" * 8]}, "not a saved array"),
        ({"$": "array", "of": ["nonsense", [1], "00" * 8]}, "not a saved array"),
        ({"$": "array", "of": ["<f8", [1], "zz" * 8]}, "not a saved array"),
        ({"$": "array", "of": ["<f8", [10**18], ""]}, "not a saved array"),
        ({"$": "scalar", "of": ["<f8", [2], "00" * 16]}, r"has shape \(2,\)"),
        ({"$": "tuple", "of": 3}, "marked as 'tuple'"),
        (object(), "is a object, which no state holds"),
        ({1, 2}, "is a set, which no state holds"),
        (np.zeros(1), "is a ndarray, which no state holds"),
    ],
)
def test_json_that_is_no_state_is_refused_with_its_place(value, message):
    with pytest.raises(of.OpoError, match=rf"state\.a\[1\].*{message}"):
        decode({"a": [0, value]})


# A changed name of the member with the checksums makes the file look like one of an older version.
@pytest.mark.filterwarnings("ignore:.*has no checksums")
def test_every_flipped_byte_gives_the_state_or_an_error(tmp_path):
    path = tmp_path / "x.npz"
    state = {"a": np.arange(40.0), "b": [1, "x", (2.5, np.arange(3))], "c": "y"}
    write_state(path, state)
    whole = path.read_bytes()
    found = 0
    for at in range(0, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        try:
            assert same(read_state(path), state)
        except of.OpoError as error:
            assert "path: " in str(error)  # noqa: PT017
            found += 1
    assert found > len(whole) / 6
    for end in range(0, len(whole), 50):
        path.write_bytes(whole[:end])
        with pytest.raises(of.OpoError, match="path: "):
            read_state(path)
