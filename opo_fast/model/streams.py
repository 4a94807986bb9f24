"""Random streams keyed by purpose and episode; counter-based, so that no draw depends on the order of the calls."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .._support.checks import as_integer

__all__ = ["Streams"]

Array = npt.NDArray[Any]

_NAMES = ("contexts", "actions", "transitions", "losses", "agent")
_BLOCK = 1 << 15
"""Number of uniforms that are drawn at a time."""


class Streams:
    """The random streams of one run. Runs with the same seed see the same contexts and the same uniforms in every episode.

    Parameters
    ----------
    seed : int
        At least 0.
    width : int
        Uniforms per episode and stream: the horizon.
    """

    def __init__(self, seed: int, width: int) -> None:
        self.seed, self.width = as_integer(seed, "seed", least=0, most=None), width
        self._keys = {name: np.random.SeedSequence(self.seed, spawn_key=(i,)).generate_state(2, np.uint64) for i, name in enumerate(_NAMES)}
        self._per_block = max(1, _BLOCK // max(1, width))
        self._blocks: dict[str, tuple[int, Array]] = {}
        self._moved: dict[str, tuple[np.random.Generator, dict[str, Any]]] = {}

    def generator(self, name: str, episode: int) -> np.random.Generator:
        """The generator of a stream in one episode."""
        return np.random.Generator(np.random.Philox(key=self._keys[name], counter=[0, 0, 0, episode]))

    def moved(self, name: str, episode: int) -> np.random.Generator:
        """Like `generator`, but one object that each call moves to another episode: a new one would read the system's entropy first."""
        found = self._moved.get(name)
        if found is None:
            new = self.generator(name, 0)
            found = self._moved[name] = (new, dict(new.bit_generator.state))
        generator, state = found
        state["state"] = {"counter": np.array([0, 0, 0, episode], np.uint64), "key": self._keys[name]}
        generator.bit_generator.state = state
        return generator

    def uniforms(self, name: str, episode: int) -> Array:
        """`width` uniforms in [0, 1) of a stream in one episode."""
        block, line = divmod(episode, self._per_block)
        return self._block(name, block)[line]  # type: ignore[no-any-return]

    def several(self, name: str, first: int, count: int) -> Array:
        """The same of episodes `first`, `first` + 1, ..., shape (count, width)."""
        block, line = divmod(first, self._per_block)
        if line + count <= self._per_block:
            return self._block(name, block)[line : line + count]
        return np.array([self.uniforms(name, episode) for episode in range(first, first + count)])

    def _block(self, name: str, block: int) -> Array:
        held = self._blocks.get(name)
        if held is None or held[0] != block:
            drawn = self.generator(name, block).random((self._per_block, self.width))
            held = self._blocks[name] = (block, drawn)
        return held[1]
