"""Kernels and models that several threads share, for the tests of threads."""

from __future__ import annotations

import os

import numpy as np
import pytest
from strategies import random_model

import opo_fast as of
from opo_fast._support import threads as threads_module
from opo_fast._support.threads import run_together
from opo_fast.kernels import _sync
from opo_fast.kernels._jit import kernel
from opo_fast.model import transitions as transitions_module

together = pytest.mark.skipif(not threads_module._TOGETHER, reason="here kernels run on one thread")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def share_always():
    """Share every call among as many threads as were set, whatever the load and whether or not it saves time."""
    look = threads_module._look
    threads_module._look = lambda most: look(1)._replace(n=most)
    threads_module._Gains.rests = lambda gains: False
    threads_module._Gains.ask = lambda gains, work: True
    threads_module._Gains.patience = lambda gains, work: 10**11
    transitions_module._WORTH_A_BARRIER = {0: 1, 1: 1}


def joined():
    """Number of threads that took part in the last shared call."""
    return int(threads_module._crew.gate[_sync.JOINED])


def bits():
    """Bytes of the results of all operations on models that are large enough for threads inside a layer."""
    parts = []
    for form in ("dense", "csr"):
        rng = np.random.default_rng(3)
        mdp = random_model(rng, [1, 40, 40], 3, form, masked=True, density=0.5)
        policy = mdp.uniform_policy()
        parts += [of.occupancy(mdp, policy), *of.evaluate(mdp, policy), *of.solve(mdp)]
        parts.append(of.policy_chain([mdp] * 5, eta=0.5, beta_loss=0.4, beta_dynamics=0.1))
    return b"".join(part.tobytes() for part in parts)


def bits_elsewhere():
    """`bits` of another process."""
    share_always()
    of.set_threads(2)
    return bits()


@kernel
def halves(me, n, gate, x, rounds):
    """Each round replaces `x` by the mean of an entry and the next one; entries of other threads are read after `barrier`."""
    size = x.shape[1]
    for r in range(rounds):
        for i in range(size * me // n, size * (me + 1) // n):
            x[(r + 1) % 2, i] = 0.5 * (x[r % 2, i] + x[r % 2, (i + 1) % size])
        _sync.barrier(gate, me, n)
    return me


def halved(rounds=100, most=2):
    x = np.zeros((2, 64))
    x[0] = np.arange(64.0) ** 2
    told = run_together(halves, (), (x, rounds), most, x.size * rounds)
    return x[rounds % 2].tobytes(), told


def expected(rounds=100):
    x = np.arange(64.0) ** 2
    for _ in range(rounds):
        x = 0.5 * (x + np.roll(x, -1))
    return x.tobytes()
