"""Seconds from the start of a process to the import of the package and to its first result; run by `scaling.py`."""

import sys
import time

began = time.perf_counter()
import opo_fast as of  # noqa: E402

imported = time.perf_counter() - began

import numpy as np  # noqa: E402
from problems import constant_history, dense_mdp, engine_of  # noqa: E402

from opo_fast.algorithm.history import Fits  # noqa: E402

mdp = dense_mdp([1, 3, 3], 2)
losses, dynamics = of.FiniteLossClass([lambda c: mdp.losses]), of.FiniteDynamicsClass([lambda c: mdp.transitions])
of.simulate(of.FiniteContexts([mdp]), of.OPO(mdp.layout, losses, dynamics, episodes=10), 10)

if "all" in sys.argv:
    policy = mdp.uniform_policy()
    of.occupancy(mdp, policy)
    of.bonus(np.ones((2, 2)), 1.0)
    of.exponential_weights(policy, mdp.losses, 1.0)
    of.policy_chain([mdp] * 3, eta=0.1, beta_loss=1.0, beta_dynamics=1.0)
    single = dense_mdp([1, 80, 80], 4)
    history = constant_history(1)
    for k in range(9):
        history.append(Fits(0, 1 + k % 2))
    engine_of([single]).chain(0, history, 10)

print(imported, time.perf_counter() - began)
