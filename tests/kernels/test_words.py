"""The vector operations of the kernels: on vectors of eight numbers, and on tiles of several vectors or numbers."""

from __future__ import annotations

import math

import mpmath
import numba
import numpy as np
import pytest
from kernel_calls import INTERPRETED

from opo_fast.kernels._constants import EXP_MIN
from opo_fast.kernels._simd import (
    clamped,
    fma,
    prefetch,
    qask,
    qdot,
    qfirst,
    qset,
    qsum,
    sexp,
    slog,
    strided,
    tadd,
    tdot,
    tfma,
    tload,
    tload_lines,
    tmerge,
    touter,
    tput,
    tread,
    tset,
    tstore,
    tsum,
    tzeros,
    vabove,
    vadd,
    vdiv,
    vexp,
    vfma,
    vgather,
    vgather_bytes,
    vgather_half,
    vget,
    view,
    vload,
    vload_line,
    vlog,
    vmax,
    vmin,
    vmul,
    vscatter_bytes,
    vset,
    vspread2,
    vspread4,
    vstore,
    vsub,
    vsum,
    vswap1,
    vswap2,
    vswap4,
    vtranspose,
)

compiled_only = pytest.mark.skipif(INTERPRETED, reason="the words are NumPy's when nothing is compiled")


@numba.njit
def _vector_exp(x, out):
    for i in range(0, x.size, 8):
        vstore(out, i, vexp(vload(x, i)))


@numba.njit
def _scalar_exp(x, out):
    for i in range(x.size):
        out[i] = sexp(x[i])


def exponentials(x):
    """`vexp` and `sexp` of an array whose size is a multiple of 8: checks that both give the same bits."""
    vector, scalar = np.empty(x.size), np.empty(x.size)
    _vector_exp(x, vector)
    _scalar_exp(x, scalar)
    assert vector.tobytes() == scalar.tobytes()
    return vector


def error_in_ulp(x, value):
    with mpmath.workprec(120):
        exact = mpmath.exp(mpmath.mpf(float(x)))
        return abs(float((mpmath.mpf(float(value)) - exact) / mpmath.mpf(math.ulp(float(exact)))))


@compiled_only
def test_exponential_is_within_2_ulp_over_the_whole_range():
    rng = np.random.default_rng(0)
    # Midpoints of the range reduction, where the polynomial's argument is largest, and their neighbours.
    edges = (np.arange(-990, 1000) + 0.5) * math.log(2)
    x = np.concatenate(
        [
            -rng.random(4000) * 690,
            rng.random(1000) * 690,
            -(10.0 ** rng.uniform(-320, 2, 2000)),
            edges[edges > -690],
            np.nextafter(edges[edges > -690], 0),
            [0.0, -0.0, np.nextafter(EXP_MIN, 0), -1e-320],
        ]
    )
    x = np.concatenate([x, np.zeros(-x.size % 8)])
    assert max(map(error_in_ulp, x, exponentials(x))) <= 2


@compiled_only
def test_exponential_at_its_edges():
    x = np.array([0.0, -0.0, EXP_MIN, np.nextafter(EXP_MIN, -np.inf), np.nextafter(EXP_MIN, 0), -1e300, -np.inf, np.nan])
    value = exponentials(x)
    assert value[:4].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert value[4] == pytest.approx(math.exp(-690), rel=1e-13)
    assert value[4] > np.finfo(float).tiny
    assert value[5:].tolist() == [0.0, 0.0, 0.0]
    near = -np.arange(0, 4096) * 2.0**-55
    steps = exponentials(near)
    assert (steps <= 1.0).all()
    assert (np.diff(steps) <= 0).all()
    low = EXP_MIN + np.arange(-2048, 2048) * 2.0**-43
    assert (np.diff(exponentials(low)) >= 0).all()


@numba.njit
def _words(a, b, c, out):
    x, y, z = vload(a, 0), vload(b, 0), vload(c, 0)
    vstore(out, 0, vmax(x, y))
    vstore(out, 8, vmin(x, y))
    vstore(out, 16, vabove(x, y))
    vstore(out, 24, vfma(x, y, z))
    out[32] = vsum(x)
    out[33] = fma(a[0], b[0], c[0])
    vstore(out, 34, vset(a[1]))


def test_words():
    rng = np.random.default_rng(0)
    for dtype in (np.float64, np.float32):
        a, b, c = (rng.normal(size=8).astype(dtype) for _ in range(3))
        out = np.empty(42)
        _words(a, b, c, out)
        a, b, c = (part.astype(np.float64) for part in (a, b, c))
        assert out[:8].tolist() == np.maximum(a, b).tolist()
        assert out[8:16].tolist() == np.minimum(a, b).tolist()
        assert out[16:24].tolist() == np.where(a > b, a, 0.0).tolist()
        np.testing.assert_allclose(out[24:32], a * b + c, rtol=0, atol=1e-15)
        assert out[33] == out[24]
        assert (out[34:] == a[1]).all()


@numba.njit
def _transposed(a, out):
    i = 0
    for line in vtranspose(
        (vload(a, 0), vload(a, 8), vload(a, 16), vload(a, 24), vload(a, 32), vload(a, 40), vload(a, 48), vload(a, 56))
    ):  # fmt: skip
        vstore(out, i, line)
        i += 8


def test_eight_vectors_are_transposed():
    a, out = np.arange(64.0), np.empty(64)
    _transposed(a, out)
    assert out.reshape(8, 8).tolist() == a.reshape(8, 8).T.tolist()


def test_lanes_are_summed_in_the_written_order():
    """Halves are added, then quarters, then the last two; with these numbers any other order changes the last bit."""
    v = np.array([0.1, 1e9, 1e-9, -1e9, 0.7, 1e5, -0.3, 3e-5]) / 3
    expected = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    assert expected not in (v.sum(), sum(v.tolist()), math.fsum(v))
    out = np.empty(42)
    _words(v, v, v, out)
    assert out[32] == expected


@compiled_only
def test_multiply_add_rounds_once():
    a, b, c = np.full(8, 1 + 2.0**-30), np.full(8, 1 - 2.0**-30), np.full(8, -1.0)
    out = np.empty(42)
    _words(a, b, c, out)
    assert (out[24:32] == -(2.0**-60)).all()
    assert out[33] == -(2.0**-60)


@numba.njit
def _scalar_log(x, out):
    for i in range(x.size):
        out[i] = slog(x[i])


@numba.njit
def _vector_log(x, out):
    for i in range(0, x.size, 8):
        vstore(out, i, vlog(vload(x, i)))


def test_logarithm():
    x = np.concatenate([10.0 ** np.random.default_rng(0).uniform(-300, 300, 496), [1.0, 2.0, 0.5, np.e, 1 - 2.0**-53, 1 + 2.0**-52, 8, 3]])
    vector, scalar = np.empty(x.size), np.empty(x.size)
    _vector_log(x, vector)
    _scalar_log(x, scalar)
    assert vector.tobytes() == scalar.tobytes()
    np.testing.assert_allclose(vector, np.log(x), rtol=1e-15, atol=0)


@numba.njit
def _arithmetic(a, b, out):
    x, y = vload(a, 0), vload_line(b, 1, 2)
    vstore(out, 0, vadd(x, y))
    vstore(out, 8, vsub(x, y))
    vstore(out, 16, vmul(x, y))
    vstore(out, 24, vdiv(x, y))
    vstore(out, 32, vspread2(x))
    vstore(out, 40, vspread4(x))
    vstore(out, 48, vswap1(x))
    vstore(out, 56, vswap2(x))
    vstore(out, 64, vswap4(x))
    out[72] = vget(x, 5)
    prefetch(a, 1000)


def test_arithmetic_and_orders_of_lanes():
    rng = np.random.default_rng(0)
    a, b, out = rng.random(8), rng.random((2, 10)), np.empty(73)
    _arithmetic(a, b, out)
    y = b[1, 2:]
    orders = "00112233", "00001111", "10325476", "23016745", "45670123"
    expected = [a + y, a - y, a * y, a / y, *(a[[int(lane) for lane in order]] for order in orders), a[5:6]]
    assert out.tolist() == np.concatenate(expected).tolist()


@numba.njit
def _viewed(address, size, like, out):
    part = view(address, size, like)
    out[0] = part.size
    for i in range(part.size):
        out[1 + i] = part[i]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.uint32, np.int64])
def test_an_array_at_an_address(dtype):
    a = np.arange(3, 9).astype(dtype)
    for size in (0, 4):
        out = np.zeros(5)
        _viewed(a.ctypes.data, size, np.zeros(1, dtype), out)
        assert out.tolist() == [size, *a[:size], *[0.0] * (4 - size)]


# -- tiles -------------------------------------------------------------------------------------------------------------


@numba.njit
def _positions(out):
    tput(out, 0, tread(out, strided(8, 2, 4), 1))
    tput(out, 4, tread(out, clamped(8, 2, 2, 4, 4), 0))


def test_positions():
    out = np.arange(20.0)
    _positions(out)
    assert out[:8].tolist() == [9, 11, 13, 15, 12, 14, 16, 16]


def _kernels_of(k):
    """Tile operations at one size; the number of streams must be a constant of the compiled function."""
    twice, eight = 2 * k, 8 * k

    @numba.njit
    def streams(data, start, stride, i, w, out):
        o = strided(start, stride, k)
        x = vload(w, 0)
        first = tread(w, strided(0, 1, k), 0)
        sums = tfma(data, o, i, x, tzeros(o))
        tstore(out, strided(0, 8, k), 0, tfma(data, o, i, x, sums))
        tput(out, 8 * k, tsum(sums))
        tput(out, 9 * k, tfma(data, o, i, w[1], first))
        tput(out, 10 * k, tfma(data, o, i, first, tread(data, o, i)))
        vstore(out, 11 * k, tdot(data, o, i, tset(first), x))
        vstore(out, 11 * k + 8, tadd(x, tload(data, o, i)))

    @numba.njit
    def products(data, start, stride, i, w, out):
        o = strided(start, stride, k)
        tstore(out, strided(0, 8, twice), 0, touter(data, o, i, (vload(w, 0), vload(w, 8)), tzeros(twice)))
        sums = tload(data, strided(start, 4, eight), i)
        tstore(out, strided(16 * k, 8, k), 0, tmerge(sums))

    return streams, products


KERNELS = {k: _kernels_of(k) for k in (1, 3, 4, 8)}


def _numbers(k, dtype):
    rng = np.random.default_rng(k)
    data, w, start, stride, i = rng.random(400).astype(dtype), rng.random(80), 11, 23, 6
    vectors = np.array([data[x : x + 8] for x in start + i + stride * np.arange(k)], np.float64)
    return (data, start, stride, i, w), vectors, w


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", KERNELS)
def test_streams(k, dtype):
    arguments, vectors, w = _numbers(k, dtype)
    out, numbers, sums = np.empty(11 * k + 16), vectors[:, 0], vectors * w[:8]
    KERNELS[k][0](*arguments, out)
    expected = [2 * sums, sums.sum(axis=1), numbers * w[1] + w[:k], numbers * w[:k] + numbers, w[:8] + w[:k] @ vectors]
    expected.append(w[:8] + vectors.sum(axis=0))
    np.testing.assert_allclose(out, np.concatenate([np.ravel(x) for x in expected]), rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("k", KERNELS)
def test_products(k, dtype):
    arguments, vectors, w = _numbers(k, dtype)
    out, pair, (data, start, _, i, _) = np.empty(24 * k), w[:16].reshape(2, 8), arguments
    KERNELS[k][1](*arguments, out)
    each = np.array([data[x : x + 8] for x in start + i + 4 * np.arange(8 * k)], np.float64)
    expected = [vectors[:, :1, None] * pair, each.reshape(8, k, 8).sum(axis=0)]
    np.testing.assert_allclose(out, np.concatenate([np.ravel(x) for x in expected]), rtol=1e-14)


@numba.njit
def _merged(a, out):
    tstore(out, strided(0, 8, 2), 0, tmerge(tload(a, strided(0, 8, 16), 0)))


def test_tiles_are_merged_as_lanes_are_summed():
    v = np.array([0.1, 1e9, 1e-9, -1e9, 0.7, 1e5, -0.3, 3e-5]) / 3
    expected = ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]))
    a, out = np.zeros((8, 2, 8)), np.empty((2, 8))
    a[:, 0], a[:, 1] = v[:, None], 2 * v[:, None]
    _merged(a.reshape(-1), out.reshape(-1))
    assert (out == [[expected], [2 * expected]]).all()


@numba.njit
def _lines_and_integers(matrix, flat, positions, out):
    tstore(out, strided(0, 8, 3), 0, tload_lines(matrix, clamped(0, 1, 1, 2, 3), 1))
    tput(out, 24, tread(flat, tread(positions, strided(1, 1, 3), 0), 2))


def test_lines_of_a_matrix_and_positions_in_an_array():
    matrix, positions, out = np.random.default_rng(0).random((3, 10)), np.array([9, 0, 27, 5], np.uint32), np.empty(27)
    _lines_and_integers(matrix, matrix.reshape(-1), positions, out)
    assert out.tolist() == [*matrix[1, 1:9], *matrix[2, 1:9], *matrix[2, 1:9], *matrix.ravel()[[2, 29, 7]]]


@numba.njit
def _asked(v, indices, last):
    qask(v, last, indices, indices.size - 4)


def test_asking_for_what_lies_beyond_the_array_is_no_read():
    _asked(np.ones(3), np.array([0, 1, 2, 1 << 30], np.uint32), 2)


@numba.njit
def _quads(data, indices, v, p, v0, out):
    x = qdot(data, indices, p, v, v0, qset(out[0]))
    x = qdot(data, indices, p + 4, v, v0, x)
    out[0] = qfirst(x)
    out[1] = qsum(x, qfirst(x))
    out[2] = qsum(x, 1.0)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_four_sums_side_by_side(dtype):
    """Entry k of a row goes to sum k mod 4; sums 0 and 2, 1 and 3 are added first. Eighths, so that nothing is rounded."""
    rng = np.random.default_rng(0)
    data, v = (rng.integers(-64, 64, 20) / 8).astype(dtype), rng.integers(-64, 64, 40) / 8
    indices, out = rng.integers(0, 10, 20).astype(np.uint32), np.array([0.625, np.nan, np.nan])
    products = data[5:13].astype(np.float64) * v[30 + indices[5:13].astype(int)]
    sums = products.reshape(2, 4).sum(axis=0)
    sums[0] += 0.625
    _quads(data, indices, v, 5, 30, out)
    assert out.tolist() == [sums[0], sums.sum(), 1.0 + sums[1:].sum()]


@compiled_only
def test_four_sums_are_added_in_the_written_order():
    v, one = np.array([0.1, 1e9, 1e-9, -1e9]) / 3, np.ones(8)
    out = np.zeros(3)
    _quads(one, np.array([0, 1, 2, 3, 4, 4, 4, 4], np.uint32), np.append(v, 0.0), 0, 0, out)
    expected = (v[0] + v[2]) + (v[1] + v[3])
    assert expected not in (sum(v.tolist()), (v[0] + v[1]) + (v[2] + v[3]))
    assert out[1] == expected


@numba.njit
def _gathered(v, v0, indices, p, out):
    vstore(out, 0, vgather(v, v0, indices, p))


def test_eight_numbers_from_anywhere():
    v, indices, out = np.arange(50.0), np.array([9, 9, 0, 3, 1, 4, 1, 5, 19, 2, 6], np.uint32), np.empty(8)
    _gathered(v, 30, indices, 2, out)
    assert out.tolist() == [30, 33, 31, 34, 31, 35, 49, 32]


@numba.njit
def _gathered_half(v, v0, halves, p, out):
    vstore(out, 0, vgather_half(v, v0, halves, p))


def test_eight_numbers_at_positions_of_16_bits():
    v, halves, out = np.arange(70_000.0), np.array([7, 7, 0, 65535, 1, 4, 1, 32768, 19, 2], np.uint16), np.empty(8)
    _gathered_half(v, 30, halves.view(np.uint32), 2, out)
    assert out.tolist() == [30, 65565, 31, 34, 31, 32798, 49, 32]
    _gathered_half(v[:65536], 0, halves.view(np.uint32), 0, out)
    assert out.tolist() == [7, 7, 0, 65535, 1, 4, 1, 32768]


@numba.njit
def _moved(v, v0, order, w, w0):
    vscatter_bytes(w, w0, order, vgather_bytes(v, v0, order))


def test_eight_numbers_at_positions_in_the_bytes_of_one():
    order = int.from_bytes(bytes([3, 200, 0, 1, 2, 9, 8, 127]), "little", signed=True)
    v, w = np.arange(300.0), np.full(210, -1.0)
    _moved(v, 50, order, w, 5)
    places = [3, 200, 0, 1, 2, 9, 8, 127]
    assert w[5 + np.array(places)].tolist() == [50 + place for place in places]
    assert (w >= 0).sum() == 8
