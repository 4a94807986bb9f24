"""Confidence bounds for counts and means that hold at all times simultaneously, by the method of mixtures.

Data x_1, x_2, ... come from a distribution p of a family. Averaged over a prior, the likelihood ratio of the family to p is a
nonnegative supermartingale that begins at 1 (H. Robbins, Annals of Mathematical Statistics 41, 1970), so Ville's
inequality gives, for all n simultaneously with probability at least 1 - delta,

    n KL(frequencies, p) <= log(1/delta) + R_n,   R_n = log(greatest likelihood / likelihood under the prior),

R_n being the regret of the prior's sequential code. (A. Jonsson et al., Planning in Markov Decision Processes with
Gap-Dependent Sample Complexity, NeurIPS 2020, Proposition 1, has the uniform prior with R_n bounded.)
"""

# scipy.special is imported where it is used: it takes a tenth of a second.
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["kl_lower", "mean_lower", "row_radius", "variation_of_kl"]

Array = npt.NDArray[Any]
_STEPS = 6
"""Newton steps from below on a convex function: the result after each is a valid bound, and after six it is within 1e-11 of the root."""


def kl_lower(p: Array, c: Array) -> Array:
    """The least q with kl(p, q) <= c, where kl is the divergence of Bernoulli distributions; p in [0, 1], c > 0."""
    from scipy.special import xlog1py, xlogy

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # kl(p, q) is at least (p - q)^2 / (2 p), 2 (p - q)^2 and p log(p/q) + (1-p) log(1-p): three starting points below the root.
        q = np.maximum(p - np.sqrt(2.0 * p * c), p - np.sqrt(0.5 * c))
        q = np.where(p > 0, np.maximum(q, np.exp(np.log(p) - (c - xlog1py(1.0 - p, -p)) / p)), 0.0)
        negative_entropy = xlogy(p, p) + xlog1py(1.0 - p, -p)
        for _ in range(_STEPS):
            excess = negative_entropy - xlogy(p, q) - xlog1py(1.0 - p, -q) - c
            step = excess * q * (1.0 - q) / (p - q)
            q = np.where(step > 0, np.minimum(q + step, p), q)
    return np.asarray(q)


def mean_lower(counts: Array, sums: Array, log_inverse: float) -> Array:
    """Lower confidence bounds for means of numbers in [0, 1], at all times simultaneously.

    The least q with counts * kl(mean, q) <= log(1/delta) + R, R being the regret under Jeffreys' prior Beta(1/2, 1/2). The
    likelihood ratio of two Bernoulli distributions is convex in the observation, so its mean under any distribution
    on [0, 1] with the mean q is at most 1 (Hoeffding's argument), and the bound holds for all of these distributions.

    Parameters
    ----------
    counts, sums : ndarray
        Number of observations, above 0, and their sum.
    log_inverse : float
        log(1/delta) of each bound.
    """
    from scipy.special import betaln, xlog1py, xlogy

    means = np.minimum(sums / counts, 1.0)
    rest = np.maximum(counts - sums, 0.0)
    regret = xlogy(sums, means) + xlog1py(rest, -means) - (betaln(sums + 0.5, rest + 0.5) - betaln(0.5, 0.5))
    return kl_lower(means, (log_inverse + regret) / counts)


def variation_of_kl(most: Array, c: Array) -> Array:
    """A bound on the total-variation distance between p and q if KL(p, q) <= c and the greatest entry of p is `most`.

    The distance is p(B) - q(B) for some set B, and kl(p(B), q(B)) <= c, so it is at most max x - kl_lower(x, c) over the
    possible x = p(B). Over all x in [0, 1] that is at most sqrt(c/2) (Pinsker). But p(B) is at least `most` or at most
    1 - `most`, depending on whether B contains the greatest entry. The function is concave and increases at least up to
    1/2; if it already decreases at `most`, it is greatest at these ends. Nearly deterministic rows are thus known within c
    instead of sqrt(c/2).
    """
    ends = np.stack([most, 1.0 - most])
    lows = kl_lower(ends, c)
    low, at_ends = lows[0], (ends - lows).max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = np.log(most / low) - np.log1p(-most) + np.log1p(-low)
        falls = (most > 0.5) & (slope * low * (1.0 - low) >= most - low)
    return np.where(falls | (most == 1.0), np.minimum(at_ends, np.sqrt(0.5 * c)), np.sqrt(0.5 * c))


def row_radius(counts: Array, begins: Array, sizes: Array, log_inverse: float) -> Array:
    """Bounds on the total-variation distance of probability rows from their frequencies, at all times simultaneously.

    The lesser of two bounds, each with half of delta:

    - from KL(frequencies, p) <= (log(2/delta) + R) / n, R being the regret under the Dirichlet prior with parameters 1/K,
      which grows with the number of entries seen rather than with K;
    - sqrt((1 + 1/n) (log(2 (2^(K-1) - 1) / delta) + log(1 + n) / 2) / (2 n)): the distance is the greatest deviation over
      2^(K-1) - 1 sets and their complements (T. Weissman et al., Inequalities for the L1 Deviation of the Empirical
      Distribution, 2003), each 1/2-sub-Gaussian and bounded by the normal mixture of variance 1 (Robbins, 1970).

    Parameters
    ----------
    counts : ndarray
        How often each entry was seen, flat.
    begins : ndarray of int
        Where each row begins; each row has an entry above 0.
    sizes : ndarray of int
        Number of entries K of each row; the distance of a row with K = 1 is 0.
    log_inverse : float
        log(1/delta) of each row.
    """
    from scipy.special import gammaln, xlogy

    n = np.add.reduceat(counts, begins)
    most = np.maximum.reduceat(counts, begins) / n
    prior = 1.0 / np.repeat(sizes, sizes)
    likelihood = np.add.reduceat(xlogy(counts, counts / np.repeat(n, sizes)), begins)
    code = np.add.reduceat(gammaln(counts + prior) - gammaln(prior), begins) - gammaln(n + 1.0)
    log_inverse += np.log(2.0)
    by_kl = variation_of_kl(most, (log_inverse + likelihood - code) / n)
    sets = (sizes - 1) * np.log(2.0) + np.log1p(-np.exp2(1.0 - np.maximum(sizes, 2)))
    by_sets = np.sqrt((1.0 + 1.0 / n) * (log_inverse + sets + 0.5 * np.log1p(n)) / (2.0 * n))
    return np.where(sizes == 1, 0.0, np.minimum(np.minimum(by_kl, by_sets), 1.0))
