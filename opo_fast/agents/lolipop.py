"""LOLIPOP (Qian, Hu and Simchi-Levi, NeurIPS 2024), in the layered loop-free form."""

from __future__ import annotations

import math
from collections.abc import Hashable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from .._support.checks import as_delta, as_number
from .._support.fields import Fields
from .._support.lru import LRU
from ..errors import OpoError
from ..model.contextual import Trajectory, context_key
from ..model.conversion import as_transitions
from ..model.layout import Layout, as_losses
from ..model.streams import Streams
from .base import SOURCE, BaseAgent, State, check_layout, checked_fit, oracle_state, restore_oracle
from .oracle_agent import PLANS, make_oracle

__all__ = ["LOLIPOP"]

Array = npt.NDArray[Any]
LARGEST = 1 << 24
"""Limit on |S_h||A| times the number of transitions, the work of covering a layer at one context."""
DINKELBACH = 30
"""Iterations after which Dinkelbach's method stops; it converges superlinearly, usually in three to six iterations."""


class _Segment:
    """The data and fits of one segment, which give the model of one layer."""

    def __init__(self, agent: LOLIPOP) -> None:
        layout, mask = agent.layout, agent.action_mask
        self.loss_oracle = make_oracle(agent.loss_class, layout, mask, "loss_class", ("observe", "fit", "losses"))
        self.dynamics_oracle = make_oracle(agent.dynamics_class, layout, mask, "dynamics_class", ("observe", "fit", "transitions"))
        self.fits: tuple[Hashable, Hashable] = (self.loss_oracle.fit(), self.dynamics_oracle.fit())

    def learn(self, trajectory: Trajectory) -> None:
        for oracle in (self.loss_oracle, self.dynamics_oracle):
            if hasattr(oracle, "check"):
                oracle.check(trajectory)
        self.loss_oracle.observe(trajectory)
        self.dynamics_oracle.observe(trajectory)

    def close(self) -> None:
        """Fit once, at the end of the segment."""
        self.fits = self.loss_oracle.fit(), self.dynamics_oracle.fit()


class _Cover(NamedTuple):
    """The cover of a segment at a context."""

    actions: Array
    """One action per state, shape (number of policies, n_states)."""
    probabilities: Array


class LOLIPOP(BaseAgent):
    """Layerwise exploration with a cover of policies and inverse gap weighting; few oracle and planning calls.

    Epoch m has H segments of 2^(m-1) episodes. Segment (m, h) collects data for layer h. At a context,

    * pi* is the optimum of the last epoch's model M_{m-1}, and reg(pi) = V^pi - V^pi* in it;
    * for each pair of layer h, pi^{s,a} is the policy with the greatest d^h(s, a; pi) / (|S_h||A| + eta_m reg(pi)), where
      d^h is its occupancy under the trusted transitions of this epoch's earlier segments (Dinkelbach's method: a few
      backward inductions);
    * a policy of the cover {pi*} and {pi^{s,a}} is drawn with probability 1 / (lambda + eta_m reg(pi)) and played.

    At the end of the segment its own data give layer h of M_m. A transition (s, a, s') of layer h is trusted if
    max_pi d^h(s, a; pi) P_m(s'|s, a) >= 1 / zeta_m; the remaining probability is dropped.

    Taken from the sources: epochs and segments by layer, the cover with pi*, inverse gap weighting, the existence of trusted
    occupancies, and the numbers of calls. Equations and constants were not available, so the following is our reading: equal
    segments, epochs that double, the form of the ratio (that of policy-cover inverse gap weighting by Foster, Kakade,
    Qian and Rakhlin), the trust threshold, and the rates

        eta_m = sqrt(n / (H^6 S^2 |A| L)),  zeta_m = sqrt(n / (H^4 |A| L)),  L = log(|F||P| H m / delta)

    with n the number of episodes in the segments that made the model and S the size of the largest layer; `eta_scale` and
    `trust_scale` multiply them. There are three deviations. An oracle learns from the whole episodes of its segment, where the
    paper uses only the steps of layer h (the guarantee of layer h is the same). Losses are fitted by least squares, where the
    paper fits their distribution. The ratio mixes two models, which is not itself a model, so its regret is computed in a
    hybrid one: trusted transitions in the layers before h, M_{m-1} from there on, and a loss of 1 in every step for the
    dropped probability.

    Parameters
    ----------
    layout : Layout
    loss_class, dynamics_class
        Function classes: each segment has its own oracles.
    delta : float
        Failure probability.
    eta_scale, trust_scale : float
        Factors on eta_m (larger is greedier) and zeta_m (larger trusts sooner).
    seed : int
        Seed of the stream that draws from the cover.
    action_mask : array_like of bool (n_states, A), optional

    Attributes
    ----------
    epoch, layer : int
        Those of the next episode; the layer is counted from 0.
    oracle_calls : int
        Number of fits so far, of losses and dynamics together.
    """

    name = "LOLIPOP"

    def __init__(
        self,
        layout: Layout,
        loss_class: Any,
        dynamics_class: Any,
        *,
        delta: float = 0.05,
        eta_scale: float = 1.0,
        trust_scale: float = 1.0,
        seed: int = 0,
        action_mask: npt.ArrayLike | None = None,
    ) -> None:
        check_layout(layout)
        super().__init__(layout, action_mask=action_mask)
        for name, given in (("loss_class", loss_class), ("dynamics_class", dynamics_class)):
            if not hasattr(given, "oracle"):
                raise OpoError(
                    f"{name} is a {type(given).__name__}: a function class with oracle(...) is needed, one oracle for each segment"
                )
        self.loss_class, self.dynamics_class = loss_class, dynamics_class
        self.delta = as_delta(delta)
        self.eta_scale, self.trust_scale = as_number(eta_scale, "eta_scale"), as_number(trust_scale, "trust_scale")
        self.log_size = sum(math.log(as_number(getattr(c, "size", 1.0), "size", least=1.0)) for c in (loss_class, dynamics_class))
        sizes, a = layout.layer_sizes, layout.n_actions
        work = max(sizes) * a * sum(n * a * following for n, following in pairwise(sizes))
        if work > LARGEST:
            raise OpoError(
                f"layout is {layout!r}: LOLIPOP plans for each pair of a layer at each context, which takes {work:.1e} operations a pass; "
                f"at most {LARGEST:.1e} are allowed"
            )
        self.streams = Streams(seed, 1)
        self.allowed = np.ones(layout.shape, bool) if self.action_mask is None else self.action_mask
        self.oracle_calls = 0
        self.epoch = 1
        self.before = [_Segment(self) for _ in range(layout.horizon)]
        self.now = [_Segment(self)]
        self._played = 0
        self._covers: LRU[_Cover] = LRU(PLANS)

    @property
    def layer(self) -> int:
        """Layer for which the next episode adds data, counted from 0."""
        return len(self.now) - 1

    @property
    def length(self) -> int:
        """Number of episodes in a segment of this epoch."""
        return int(1 << (self.epoch - 1))

    def _rate(self, n: int, power: int, sizes: float) -> float:
        log_term = self.log_size + math.log(self.layout.horizon * self.epoch / self.delta)
        return math.sqrt(n / (self.layout.horizon**power * sizes * self.layout.n_actions * log_term))

    @property
    def eta(self) -> float:
        """eta_m; 0 in the first epoch, which has no model yet."""
        if self.epoch == 1:
            return 0.0
        return self.eta_scale * self._rate(self.length // 2, 6, float(max(self.layout.layer_sizes) ** 2))

    @property
    def zeta(self) -> float:
        """zeta_m: transitions with probability at least 1 / zeta_m are trusted."""
        return self.trust_scale * self._rate(self.length, 4, 1.0)

    def policy(self, context: Any) -> Array:
        """The policy drawn from the cover for the next episode at `context`; the draw depends only on seed and episode."""
        actions, probabilities = self.cover(context)
        u = self.streams.uniforms("agent", self.episode)[0]
        i = min(int(np.searchsorted(np.cumsum(probabilities), u, side="right")), len(actions) - 1)
        policy: Array = np.eye(self.layout.n_actions)[actions[i]]
        return policy

    def cover(self, context: Any) -> _Cover:
        """The cover of this segment at `context`, and the probabilities of its policies."""
        key = (self.epoch, self.layer, context_key(context))
        found = self._covers.get(key)
        if found is None:
            found = self._build(context)
            self._covers.put(key, found, found.actions.nbytes + found.probabilities.nbytes)
        return found

    def _learn(self, trajectory: Trajectory) -> None:
        self.now[-1].learn(trajectory)

    def observe(self, trajectory: Trajectory) -> None:
        """Add one episode to this segment's data, and fit at the segment's end. A bad trajectory changes nothing."""
        super().observe(trajectory)
        self._played += 1
        if self._played < self.length:
            return
        self._played = 0
        self.now[-1].close()
        self.oracle_calls += 2
        if len(self.now) == self.layout.horizon:
            self.before, self.now = self.now, []
            self.epoch += 1
        self.now.append(_Segment(self))

    # -- planning ----------------------------------------------------------------------------------------------------

    def _layer_losses(self, segment: _Segment, context: Any, h: int) -> Array:
        losses = as_losses(self.layout, segment.loss_oracle.losses(segment.fits[0], context), "losses of a fit")
        return losses[self.layout.layer(h)]

    def _layer_transitions(self, segment: _Segment, context: Any, h: int) -> Array:
        """(S_h, A, S_{h+1}), dense."""
        fit = segment.dynamics_oracle.transitions(segment.fits[1], context)
        array = as_transitions(self.layout, fit, self.action_mask, where="transitions of a fit", own_mask=True).arrays()[h]
        n, following = self.layout.layer_sizes[h : h + 2]
        return np.asarray(array.toarray() if sp.issparse(array) else array).reshape(n, self.layout.n_actions, following)

    def _best(self, values: Array, h: int) -> Array:
        """Action of least value in each state of layer h; the last axes of `values` are (S_h, A)."""
        return np.asarray(np.where(self.allowed[self.layout.layer(h)], values, np.inf).argmin(axis=-1))

    def _build(self, context: Any) -> _Cover:
        layout, target = self.layout, self.layer
        horizon, eta = layout.horizon, self.eta
        losses = [self._layer_losses(self.before[h], context, h) for h in range(horizon)]
        model = [self._layer_transitions(self.before[h], context, h) for h in range(horizon - 1)]
        # The optimum of M_{m-1}.
        best = np.zeros(layout.n_states, np.int64)
        values: list[Array] = [np.zeros(0)] * horizon
        q_target = np.zeros(0)
        for h in reversed(range(horizon)):
            q = losses[h] + (model[h] @ values[h + 1] if h < horizon - 1 else 0.0)
            best[layout.layer(h)] = choice = self._best(q, h)
            values[h] = q[np.arange(choice.size), choice]
            if h == target:
                q_target = q
        self.planning_calls += 1
        members = [best, *self._coverers(context, losses, best, values, q_target)]
        actions = np.unique(np.array(members), axis=0)
        regret = np.maximum(0.0, self._evaluate(actions, losses, model) - values[0][0])
        return _Cover(actions, _weights(eta * regret))

    def _evaluate(self, actions: Array, losses: list[Array], model: list[Array]) -> Array:
        """V(s_1) of deterministic policies in M_{m-1}."""
        layout = self.layout
        v = np.zeros((len(actions), 0))
        for h in reversed(range(layout.horizon)):
            chosen = actions[:, layout.layer(h)]
            states = np.arange(chosen.shape[1])
            ahead = np.einsum("ksj,kj->ks", model[h][states, chosen], v) if h < layout.horizon - 1 else 0.0
            v = losses[h][states, chosen] + ahead
        self.planning_calls += len(actions)
        return np.asarray(v[:, 0])

    def _trusted(self, context: Any) -> list[Array]:
        """Trusted transitions of the layers before this segment's, from this epoch's own fits."""
        layout, trusted = self.layout, list[Array]()
        for h in range(self.layer):
            # Row s: the greatest probability of getting from s to each state of layer h.
            reach: Array = np.eye(layout.layer_sizes[h])
            for j in reversed(range(h)):
                ahead = trusted[j] @ reach
                reach = np.where(self.allowed[layout.layer(j)][:, :, None], ahead, -np.inf).max(axis=1)
            self.planning_calls += layout.layer_sizes[h]
            p = self._layer_transitions(self.now[h], context, h)
            trusted.append(np.where(reach[0][:, None, None] * p * self.zeta >= 1.0, p, 0.0))
        return trusted

    def _coverers(self, context: Any, losses: list[Array], best: Array, values: list[Array], q_target: Array) -> list[Array]:
        """pi^{s,a} of each pair of the layer that some policy reaches by trusted transitions, by Dinkelbach's method."""
        layout, target, eta = self.layout, self.layer, self.eta
        trusted = self._trusted(context)
        lost = [1.0 - p.sum(axis=-1) for p in trusted]
        pairs = np.argwhere(self.allowed[layout.layer(target)])
        k = len(pairs)
        size = float(layout.layer_sizes[target] * layout.n_actions)
        # The least value in the hybrid model.
        least = values[target]
        for h in reversed(range(target)):
            q = losses[h] + trusted[h] @ least + lost[h] * (layout.horizon - 1 - h)
            choice = self._best(q, h)
            least = q[np.arange(choice.size), choice]
        self.planning_calls += 1
        rho, found = np.zeros(k), np.tile(best, (k, 1))
        ratio = np.full(k, -1.0)
        active = np.arange(k)
        for _ in range(DINKELBACH):
            actions, d, v = self._search(pairs[active], eta * rho[active], losses, best, trusted, lost, q_target)
            self.planning_calls += active.size
            new = d / (size + eta * np.maximum(0.0, v - least[0]))
            better = new > ratio[active] * (1 + 1e-12) + 1e-300
            ratio[active[better]], found[active[better]] = new[better], actions[better]
            rho[active] = np.maximum(rho[active], new)
            active = active[better]
            if not active.size or eta == 0.0:
                break
        return [found[i] for i in range(k) if ratio[i] > 0]

    def _search(
        self, pairs: Array, weight: Array, losses: list[Array], best: Array, trusted: list[Array], lost: list[Array], q_target: Array
    ) -> tuple[Array, Array, Array]:
        """For each pair the policy with the greatest d(s, a) - weight V in the hybrid model, and its d and V at the start."""
        layout, target, k = self.layout, self.layer, len(pairs)
        actions = np.tile(best, (k, 1))
        rows = np.arange(k)[:, None]
        hit = np.zeros((k, *q_target.shape))
        hit[np.arange(k), pairs[:, 0], pairs[:, 1]] = 1.0
        d, v = hit, np.broadcast_to(q_target, hit.shape)
        for h in range(target, -1, -1):
            if h < target:
                d = np.einsum("saj,kj->ksa", trusted[h], d)
                v = losses[h] + np.einsum("saj,kj->ksa", trusted[h], v) + lost[h] * (layout.horizon - 1 - h)
            choice = self._best(weight[:, None, None] * v - d, h)
            actions[:, layout.layer(h)] = choice
            states = np.arange(choice.shape[1])
            d, v = d[rows, states, choice], v[rows, states, choice]
        return actions, d[:, 0], v[:, 0]

    # -- saving ------------------------------------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        """See `BaseAgent.settings`."""
        own = {"eta_scale": self.eta_scale, "trust_scale": self.trust_scale, "delta": self.delta, "seed": self.streams.seed}
        return {**super().settings(), **own}

    def _state(self) -> State:
        segments = {f"before {h}": segment for h, segment in enumerate(self.before)}
        segments.update({f"now {h}": segment for h, segment in enumerate(self.now)})
        state: State = {"epoch": self.epoch, "segment": len(self.now), "played": self._played, "oracle_calls": self.oracle_calls}
        for name, segment in segments.items():
            state[f"{name} fits"] = list(segment.fits)
            state.update(oracle_state(segment.loss_oracle, f"{name} loss oracle"))
            state.update(oracle_state(segment.dynamics_oracle, f"{name} dynamics oracle"))
        return state

    def _restore(self, state: State) -> None:
        fields, horizon = Fields(state, SOURCE), self.layout.horizon
        epoch, count = fields.integer("epoch", least=1, most=62), fields.integer("segment", least=1, most=horizon)
        length = 1 << (epoch - 1)
        played = fields.integer("played", most=length - 1)
        fields.exactly("episode", horizon * (length - 1) + (count - 1) * length + played, "as of its epoch and segment")
        calls = fields.exactly("oracle_calls", 2 * ((epoch - 1) * horizon + count - 1), "two for each finished segment")
        before = [self._segment(f"before {h}", fields) for h in range(horizon)]
        now = [self._segment(f"now {h}", fields) for h in range(count)]
        self.before, self.now = before, now
        self.epoch, self._played, self.oracle_calls = epoch, played, calls
        self._covers = LRU(PLANS)

    def _segment(self, name: str, fields: Fields) -> _Segment:
        segment, key = _Segment(self), f"{name} fits"
        oracles = segment.loss_oracle, segment.dynamics_oracle
        for kind, oracle in zip(("loss", "dynamics"), oracles, strict=True):
            restore_oracle(oracle, f"{name} {kind} oracle", dict(fields.state))
        loss_fit, fit = (
            checked_fit(oracle, value, fields.place(key)) for oracle, value in zip(oracles, fields.listed(key, 2), strict=True)
        )
        segment.fits = loss_fit, fit
        return segment


def _weights(gaps: Array) -> Array:
    """1 / (lambda + gap) with lambda such that they sum to 1; it lies between 1 and the number of policies, as the least gap is 0."""
    low, high = 1.0, float(gaps.size)
    while high - low > 1e-14 * high:
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if np.sum(1.0 / (middle + gaps)) > 1.0 else (low, middle)
    weights = 1.0 / (high + gaps)
    return np.asarray(weights / weights.sum())
