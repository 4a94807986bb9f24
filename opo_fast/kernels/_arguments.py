"""Groups of arguments. Kernels take their arguments one by one, which is faster to call, and first put them into these groups.

A row is an allowed state-action pair.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "Batch", "Chunk", "Hedge", "Lines", "Model", "Optimism", "Own", "Pack", "Panel", "Pass", "Plausible", "Rule", "Slices", "Step", "Team",
    "Visits",
]  # fmt: skip


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
    """The transposed copy of a CSR model, in slices of eight next states (see `transposed_slices`)."""

    starts: Any
    """First entry of each slice, and the number of entries."""
    states: Any
    """The next states of each slice, in the order of the lanes."""
    positions: Any
    """Row of each entry, counted from the first row of the part."""
    weights: Any
    """Probability of each entry."""
    first: Any
    """First slice of each layer's block, which has the slices of one part after another."""
    layers: Any
    rows: Any


class Team(NamedTuple):
    """Thread `me` of the `n` threads that run a kernel together, and the barrier at which they wait (see `_sync`)."""

    me: Any
    n: Any
    gate: Any


class Pass(NamedTuple):
    """Parameters and work arrays of a forward pass."""

    parts: Any
    """Number of parts of a CSR layer, with separate sums; it depends on the shape alone."""
    width: Any
    """Number of actions if the rows of whole states fill a vector, else 0."""
    d: Any
    """Occupancies of states, and eight more numbers, so that a vector can be read at the last state."""
    w: Any
    """Occupancies of rows: of all rows of a layer that is dense or has a transposed copy; else of the rows of `STATES` states for each
    thread."""
    private: Any
    """For each part of a CSR layer, what it adds to the occupancies of the next states."""


class Rule(NamedTuple):
    """Parameters of a step of the chain: b = min{1, half_loss / (1 + N)} + weight * min{1, half_dynamics[h] / (1 + N)}."""

    half_loss: Any
    half_dynamics: Any
    weight: Any
    eta: Any


class Optimism(NamedTuple):
    """Losses, and visits and parameters of the bonus that is subtracted."""

    losses: Any
    visits: Any
    rule: Any


class Lines(NamedTuple):
    """A backward sweep over `chunk` states at a time; `q` and `e` are work arrays for the rows of a chunk."""

    chunk: Any
    width: Any
    q: Any
    e: Any


class Step(NamedTuple):
    """What a policy step reads and writes: the policy before and after it, the sums of Q, and the values."""

    policy: Any
    following: Any
    sum_q: Any
    v: Any


class Pack(NamedTuple):
    """The models of a pack: their layout, and their transitions, one model per lane."""

    block: Any
    layers: Any
    rows: Any
    data: Any


class Batch(NamedTuple):
    """Policies store[k..k+count-1], one per lane; in lanes beyond `count`, all occupancies are 0."""

    store: Any
    k: Any
    count: Any
    lanes: Any


class Own(NamedTuple):
    """Work arrays of all threads, for occupancies of rows and for partial sums, and where the part of this thread begins in each."""

    w: Any
    w0: Any
    sums: Any
    sums0: Any


class Panel(NamedTuple):
    """Work arrays of all threads for one chunk of a dense model, and where the part of this thread (or of its policies) begins in each."""

    rows: Any
    """Transitions of the chunk's rows, eight rows after another."""
    rows0: Any
    values: Any
    """Next values of six policies, next state by next state."""
    values0: Any
    edge: Any
    """For rows that do not fill a vector."""
    edge0: Any


class Chunk(NamedTuple):
    """One work array for values (in all layers), probabilities and Q (in one chunk of states), with a number for each lane."""

    near: Any
    p0: Any
    """Where the probabilities of the chunk's rows begin."""
    q0: Any
    """And where their Q begin."""


class Visits(NamedTuple):
    """Occupancies of states and of rows with a number for each lane, of all threads, and the result, with a line for each policy."""

    d: Any
    w: Any
    private: Any
    """Sums of one part of a layer's rows."""
    private0: Any
    """Where the part of this thread begins."""
    lines: Any
    stride: Any
    """Length of a line."""


class Plausible(NamedTuple):
    """Plausible dynamics and the lower ends of the losses (see `plausible.least_q`)."""

    lower: Any
    table: Any
    radius: Any
    order: Any
    """A work array, for the states of a layer."""


class Hedge(NamedTuple):
    """AdaHedge in all states (see `opo_fast.algorithm.self_tuning`): first arrays with one number per row, then per state."""

    policy: Any
    following: Any
    """The policy after the step; may be `policy` itself."""
    regret: Any
    """Sums of Q minus their minimum in the state."""
    v: Any
    gap: Any
    """Sums of mixability gaps, which start above 0."""
    total: Any
    """Sums over the actions of exp(-eta regret), eta = log_actions / gap."""
    log_actions: Any
    """Logarithm of the number of actions; above 0 even if there is only one."""
    excess: Any
    """Work array."""
