"""The vector operations of `_simd` in plain NumPy; `_llvm` and `_tiles` document them. Every position is checked."""

from __future__ import annotations

import ctypes

import numpy as np

from ._constants import EXP_MIN, LANES

__all__ = [
    "clamped", "fma", "prefetch", "qask", "qdot", "qfirst", "qset", "qsum", "sexp", "slog", "strided", "tadd", "tdot", "tfma", "tload",
    "tload_lines", "tmerge", "touter", "tput", "tread", "tset", "tstore", "tsum", "tzeros", "vabove", "vadd", "vdiv", "vector", "vexp",
    "vfma", "vgather", "vgather_bytes", "vgather_half", "vget", "view", "vload", "vload_line", "vlog", "vmax", "vmin", "vmul",
    "vscatter_bytes", "vset", "vspread2", "vspread4", "vstore", "vsub", "vsum", "vswap1", "vswap2", "vswap4", "vtranspose",
]  # fmt: skip


def vector(array):
    assert (array.dtype, array.ndim) == (np.float64, 1)
    assert array.flags.c_contiguous


def vload(array, i):
    assert 0 <= i <= array.size - LANES
    return array[i : i + LANES].astype(np.float64)


def vstore(array, i, v):
    assert 0 <= i <= array.size - LANES
    array[i : i + LANES] = v


def vload_line(array, line, i):
    assert 0 <= line < len(array)
    return vload(array[line], i)


def prefetch(array, i):
    pass


def vset(x):
    return np.full(LANES, x, dtype=np.float64)


def vget(v, i):
    return v[i]


def vsum(v):
    v = v[:4] + v[4:]
    v = v[:2] + v[2:]
    return v[0] + v[1]


def fma(a, b, c):
    # In double precision like the compiled one, whatever the dtype of the arguments.
    return float(a) * float(b) + float(c)


def vfma(a, b, c):
    return a * b + c


def vabove(a, b):
    return np.where(a > b, a, 0.0)


def vexp(v):
    return np.where(v > EXP_MIN, np.exp(np.maximum(v, EXP_MIN)), 0.0)


def sexp(x):
    return np.exp(x) if x > EXP_MIN else 0.0


def vspread2(v):
    return np.repeat(v[:4], 2)


def vspread4(v):
    return np.repeat(v[:2], 4)


def vswap1(v):
    return v[[1, 0, 3, 2, 5, 4, 7, 6]]


def vswap2(v):
    return v[[2, 3, 0, 1, 6, 7, 4, 5]]


def vswap4(v):
    return v[[4, 5, 6, 7, 0, 1, 2, 3]]


def _gathered(v, v0, indices):
    positions = int(v0) + indices.astype(np.int64)
    assert positions.min() >= 0
    return v[positions]


def vgather(v, v0, indices, p):
    assert 0 <= p <= indices.size - LANES
    return _gathered(v, v0, indices[p : p + LANES])


def vgather_half(v, v0, halves, p):
    assert p % 2 == 0
    assert 0 <= p <= 2 * halves.size - LANES
    words = halves[p // 2 : p // 2 + LANES // 2].astype(np.int64)
    return _gathered(v, v0, np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1))


def _bytes(order):
    return np.int64(order) >> 8 * np.arange(LANES) & 0xFF


def vgather_bytes(v, v0, order):
    return _gathered(v, v0, _bytes(order))


def vscatter_bytes(array, start, order, v):
    positions = int(start) + _bytes(order)
    assert positions.min() >= 0
    array[positions] = v


def qset(x):
    return np.array([x, 0.0, 0.0, 0.0])


def qfirst(v):
    return v[0]


def qsum(v, first):
    return (first + v[2]) + (v[1] + v[3])


def qask(v, v0, indices, p):
    assert 0 <= p <= indices.size - 4


def qdot(data, indices, p, v, v0, sums):
    assert 0 <= p <= data.size - 4
    return data[p : p + 4].astype(np.float64) * _gathered(v, v0, indices[p : p + 4]) + sums


vadd, vsub, vmul, vdiv, vmax, vmin = np.add, np.subtract, np.multiply, np.divide, np.maximum, np.minimum


def strided(start, stride, k):
    return tuple(int(start + m * stride) for m in range(k))


def clamped(start, stride, first, last, k):
    return tuple(int(start + min(first + m, last) * stride) for m in range(k))


def tzeros(k):
    return tuple(vset(0.0) for _ in range(k if isinstance(k, int) else len(k)))


def tload(array, o, i):
    return tuple(vload(array, x + i) for x in o)


def tload_lines(array, o, i):
    return tuple(vload_line(array, line, i) for line in o)


def tread(array, o, i):
    assert all(0 <= x + i < array.size for x in o)
    values = [array[x + i] for x in o]
    return tuple(map(float if array.dtype.kind == "f" else int, values))


def tstore(array, o, i, tile):
    for x, v in zip(o, tile, strict=True):
        vstore(array, x + i, v)


def tput(array, i, tile):
    assert 0 <= i <= array.size - len(tile)
    array[i : i + len(tile)] = tile


def tset(tile):
    return tuple(map(vset, tile))


def tsum(tile):
    return tuple(map(vsum, tile))


def tfma(array, o, i, x, sums):
    read = tread(array, o, i) if np.ndim(sums[0]) == 0 else tload(array, o, i)
    factors = x if isinstance(x, tuple) else (x,) * len(o)
    return tuple(a * b + c for a, b, c in zip(read, factors, sums, strict=True))


def tdot(array, o, i, x, total):
    for a, b in zip(tload(array, o, i), x, strict=True):
        total = a * b + total
    return total


def touter(array, o, i, x, sums):
    products = [y * v for y in tread(array, o, i) for v in x]
    return tuple(map(np.add, products, sums))


def tadd(x, tile):
    for v in tile:
        x = x + v
    return x


def tmerge(tile):
    for _ in range(3):
        half = len(tile) // 2
        tile = tuple(map(np.add, tile[:half], tile[half:]))
    return tile


def vtranspose(tile):
    return tuple(np.array(tile).T)


def view(address, size, like):
    if size == 0:
        return like[:0]
    memory = (ctypes.c_char * (int(size) * like.itemsize)).from_address(int(address))
    return np.frombuffer(memory, like.dtype)


vlog = slog = np.log
