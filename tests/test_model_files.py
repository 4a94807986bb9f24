"""Files of models: saving and loading give the same bits, and damaged files are refused."""

from __future__ import annotations

import io
import json
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import answers, models, random_model

import opo_fast as of
from opo_fast._support.seal import sealed


@given(models())
@settings(max_examples=25)
def test_save_and_load_give_the_same_bits(tmp_path_factory, mdp):
    path = tmp_path_factory.mktemp("models") / "model.npz"
    mdp.save(path)
    other = of.LayeredMDP.load(path)
    assert other.layout == mdp.layout
    assert answers(other) == answers(mdp)
    assert other.transitions.data.tobytes() == mdp.transitions.data.tobytes()
    assert other.transitions.block.tolist() == mdp.transitions.block.tolist()


def test_shared_blocks_and_float32_survive_a_file(tmp_path):
    mdp = random_model(np.random.default_rng(1), [1] + [6] * 50, 3, "stationary", masked=True, dtype=np.float32)
    mdp.save(tmp_path / "m")
    other = of.LayeredMDP.load(tmp_path / "m")
    assert other.transitions.dtype == np.float32
    assert other.transitions.nbytes == mdp.transitions.nbytes < 50 * 6 * 3 * 6
    np.load(tmp_path / "m", allow_pickle=False)


@pytest.fixture(params=["dense", "csr"])
def saved(request, tmp_path):
    path = tmp_path / "model.npz"
    random_model(np.random.default_rng(3), [1, 3, 4], 2, request.param, masked=True).save(path)
    return path


def test_a_file_cut_short_anywhere_is_refused(saved):
    whole = saved.read_bytes()
    for length in [*range(0, len(whole), 61), len(whole) - 1]:
        saved.write_bytes(whole[:length])
        with pytest.raises(of.OpoError, match=r"^path: .*model\.npz' is not a model that LayeredMDP\.save wrote"):
            of.LayeredMDP.load(saved)


# A changed name of the member with the checksums makes the file look like one of an older version.
@pytest.mark.filterwarnings("ignore:.*has no checksums")
def test_a_file_with_any_byte_changed_is_refused_or_is_the_same_model(saved):
    whole = saved.read_bytes()
    expected = answers(of.LayeredMDP.load(saved))
    rng = np.random.default_rng(0)
    for place in rng.integers(len(whole), size=150):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            mdp = of.LayeredMDP.load(saved)
        except of.OpoError:
            continue
        # The byte had no effect: a date, a flag, or a name in one of the archive's two lists.
        assert answers(mdp) == expected


def rewrite(path, **changes):
    """Change members of a file, and its checksums with them, so that the checks behind the checksums are reached."""
    with np.load(path) as file:
        stored = dict(file)
    del stored["checksums"]
    for name, value in changes.items():
        if value is None:
            stored.pop(name, None)
        else:
            stored[name] = value(stored[name]) if callable(value) else value
    arrays = {name: array for name, array in stored.items() if name != "meta"}
    np.savez(path, **stored, checksums=np.array(sealed(str(stored.get("meta", "")), arrays)))


def replaced(position, value):
    def change(array):
        array = array.copy()
        array[position] = value
        return array

    return change


def meta(**changes):
    return lambda text: np.array(json.dumps({**json.loads(str(text)), **changes}))


DAMAGE = {
    "no losses": {"losses": None},
    "no block": {"block": None},
    "no meta": {"meta": None},
    "meta is no json": {"meta": np.array("{")},
    "meta is a number": {"meta": np.array(3.0)},
    "other format": {"meta": meta(format="other")},
    "newer version": {"meta": meta(version=3)},
    "no version": {"meta": lambda text: np.array(json.dumps({"format": "opo_fast.LayeredMDP", "kind": 0}))},
    "unknown kind": {"meta": meta(kind=2)},
    "kind is text": {"meta": meta(kind="dense")},
    "a layer too many": {"layer_sizes": lambda a: np.append(a, 2)},
    "huge layer": {"layer_sizes": replaced(1, 10**15)},
    "empty layer": {"layer_sizes": replaced(1, 0)},
    "negative layer": {"layer_sizes": replaced(1, -3)},
    "two start states": {"layer_sizes": replaced(0, 2)},
    "layer sizes are one number": {"layer_sizes": np.array(3)},
    "fractional actions": {"n_actions": np.array(1.5)},
    "no actions": {"n_actions": np.array(0)},
    "too many actions": {"n_actions": np.array(10**9)},
    "losses above 1": {"losses": replaced((0, 0), 1.5)},
    "losses of text": {"losses": lambda a: a.astype(str)},
    "losses cut": {"losses": lambda a: a[:-1]},
    "mask of numbers": {"action_mask": lambda a: a.astype(float)},
    "mask of another shape": {"action_mask": lambda a: a[:-1]},
    "mask forbids a state": {"action_mask": replaced(2, False)},
    "no mask": {"action_mask": None},
    "data cut": {"data": lambda a: a[:-1]},
    "data not finite": {"data": replaced(0, np.nan)},
    "data negative": {"data": replaced(0, -0.5)},
    "data of integers": {"data": lambda a: a.astype(int)},
    "data in two dimensions": {"data": lambda a: a[None]},
    "block too far": {"block": replaced(1, 10**6)},
    "block negative": {"block": replaced(0, -1)},
    "block overflows": {"block": replaced(1, np.iinfo(np.int64).max)},
    "a block too few": {"block": lambda a: a[:-1]},
    "block of fractions": {"block": lambda a: a + 0.5},
}
CSR_DAMAGE = {
    "pointer too far": {"indptr": replaced(-1, 10**6)},
    "pointer negative": {"indptr": replaced(0, -1)},
    "pointer falls": {"indptr": replaced(1, 10**6)},
    "pointers cut": {"indptr": lambda a: a[:-1]},
    "position outside the layer": {"indices": replaced(0, 77)},
    "positions cut": {"indices": lambda a: a[:-1]},
    "positions of fractions": {"indices": lambda a: a.astype(float)},
}


@pytest.mark.parametrize("damage", [*DAMAGE, *CSR_DAMAGE])
def test_a_damaged_file_is_refused(saved, damage, request):
    is_csr = "csr" in request.node.name
    if damage in CSR_DAMAGE and not is_csr:
        saved.unlink()
        random_model(np.random.default_rng(3), [1, 3, 4], 2, "csr", masked=True).save(saved)
    rewrite(saved, **{**DAMAGE, **CSR_DAMAGE}[damage])
    with pytest.raises(of.OpoError, match=r"^path: .*model\.npz' is not a model that LayeredMDP\.save wrote, or is damaged \(."):
        of.LayeredMDP.load(saved)


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(of.OpoError, match="there is no file"):
        of.LayeredMDP.load(tmp_path / "absent.npz")
    with pytest.raises(of.OpoError, match="path: "):
        of.LayeredMDP.load(tmp_path)
    for name, content in {"empty": b"", "text": b"hello\n" * 50, "zip": b"PK\x03\x04 not really"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(of.OpoError, match=f"path: .*{name}"):
            of.LayeredMDP.load(tmp_path / name)
    np.save(tmp_path / "array.npy", np.ones(3))
    with pytest.raises(of.OpoError, match=r"array\.npy"):
        of.LayeredMDP.load(tmp_path / "array.npy")
    np.savez(tmp_path / "objects.npz", meta=np.array([{"format": "opo_fast.LayeredMDP"}], dtype=object))
    with pytest.raises(of.OpoError, match="pickle"):
        of.LayeredMDP.load(tmp_path / "objects.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("meta.npy", header.getvalue())
    with pytest.raises(of.OpoError, match=r"huge\.npz"):
        of.LayeredMDP.load(tmp_path / "huge.npz")
