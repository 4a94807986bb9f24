"""The arguments of kernels in groups. Kernels take them one by one, which is cheaper to call, and group them first."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["Batch", "Hedge", "Lines", "Model", "Optimism", "Own", "Pack", "Pass", "Rule", "Slices", "Step", "Team"]


class Model(NamedTuple):
    """Layout and transitions of a model: the seven *model arguments* (see `opo_fast.kernels`)."""

    kind: Any
    data: Any
    indptr: Any
    indices: Any
    block: Any
    layers: Any
    rows: Any


class Slices(NamedTuple):
    """The transposed copy of a CSR model, in slices of eight next states (see `slices`)."""

    starts: Any
    """Where the entries of each slice begin, and where the last end."""
    states: Any
    """The next states of each slice, in the lanes' order."""
    positions: Any
    """Of each entry, its row in the part."""
    weights: Any
    """Of each entry, its probability."""
    first: Any
    """First slice of each layer's block: those of one part after those of another."""
    layers: Any
    rows: Any


class Team(NamedTuple):
    """Thread `me` of the `n` threads that run a kernel together, and the barrier they wait at (see `_sync`)."""

    me: Any
    n: Any
    gate: Any


class Pass(NamedTuple):
    """What a forward pass works with."""

    parts: Any
    """Parts in which a CSR layer is sent on, a matter of shape."""
    width: Any
    """Number of actions where the rows of whole states fill a vector, else 0."""
    d: Any
    """Occupancy of states, with room for a vector beyond the last."""
    w: Any
    """Weights of rows: of a dense layer all of them; of a CSR layer those of `STATES` states for each thread."""
    private: Any
    """Of each part of a CSR layer, what it adds to the states of the next."""


class Rule(NamedTuple):
    """Parameters of a step of the chain: b = min{1, half_loss / (1 + N)} + weight * min{1, half_dynamics[h] / (1 + N)}."""

    half_loss: Any
    half_dynamics: Any
    weight: Any
    eta: Any


class Optimism(NamedTuple):
    """Losses and the visits that their bonus falls with."""

    losses: Any
    visits: Any
    rule: Any


class Lines(NamedTuple):
    """How layers are backed up: `chunk` states at a time, with two lines for the rows of a chunk."""

    chunk: Any
    width: Any
    q: Any
    e: Any


class Step(NamedTuple):
    """What a policy step reads and writes: two policies, the running sums of Q, the values."""

    policy: Any
    following: Any
    sum_q: Any
    v: Any


class Pack(NamedTuple):
    """Layout of the models of a pack, and their transitions, side by side."""

    block: Any
    layers: Any
    rows: Any
    data: Any


class Batch(NamedTuple):
    """Policies store[k..k+count-1], a lane for each; lanes beyond `count` have occupancy 0 everywhere."""

    store: Any
    k: Any
    count: Any
    lanes: Any


class Own(NamedTuple):
    """Where one thread's numbers begin in arrays that all threads get: weights of rows and partial sums."""

    w: Any
    w0: Any
    sums: Any
    sums0: Any


class Hedge(NamedTuple):
    """AdaHedge in every state of a step (see `opo_fast.algorithm.self_tuning`): per row, then per state."""

    policy: Any
    following: Any
    """The policy after the step; may be `policy` itself."""
    regret: Any
    """Sums of Q less their least."""
    v: Any
    gap: Any
    """Sums of mixability gaps, the first of them above 0."""
    total: Any
    """Sums over the actions of exp(-eta regret), eta = log_actions / gap."""
    log_actions: Any
    """Logarithm of the number of actions, above 0 also where there is one."""
    excess: Any
    """Working numbers."""
