"""The plugin of the run without compilation refuses indices that NumPy would take from the end."""

import ast

import numpy as np
import pytest

from tests.kernels.checked_indices import CheckedIndices, below_0


def compiled(source):
    tree = ast.fix_missing_locations(CheckedIndices().visit(ast.parse(source)))
    names = {"_i_below_0": below_0}
    exec(compile(tree, "source", "exec"), names)
    return names["f"]


@pytest.mark.parametrize(
    "body", ["a[i]", "a[a[i]]", "a[i - 1 + 1]", "b[0, i]", "b[i, 0]", "b[i][0]", "a[i:]", "a[:i]", "a.__setitem__(0, a[i])"]
)
def test_a_negative_index_is_refused(body):
    f = compiled(f"def f(a, b, i):\n    return {body}\n")
    a, b = np.zeros(3, int), np.zeros((3, 3))
    f(a, b, 1)
    with pytest.raises(IndexError, match="index -1 is below 0"):
        f(a, b, -1)


def test_values_stay_as_they_are():
    source = "def f(a, b, i):\n    b[i, a[i + 1]] += a[-1] * a[b[0, 0] + i]\n    return b[i, :2], a[i:], (a, b)[1] is b"
    plain = {}
    exec(source, plain)
    found, expected = [], []
    for function, into in ((compiled(source), found), (plain["f"], expected)):
        a, b = np.array([1, 2, 0, 5]), np.arange(12).reshape(3, 4)
        into += [*map(np.ndarray.tolist, function(a, b, 1)[:2]), b.tolist()]
    assert found == expected
