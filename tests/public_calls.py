"""A call of every public name with valid arguments."""

from __future__ import annotations

import functools
import importlib.util
import types

import numpy as np

import opo_fast as of
from opo_fast import agents, envs, oracles, study
from opo_fast.algorithm.rules import opo_rule
from opo_fast.runs.compare import compare

LAYOUT = of.Layout([1, 2], 2)
LOSSES = np.array([[0.1, 0.9], [0.2, 0.7], [0.6, 0.4]])
BLOCK = np.array([[[0.5, 0.5], [0.25, 0.75]]])
MDP = of.LayeredMDP(LAYOUT, LOSSES, [BLOCK])
POLICY = np.full(LAYOUT.shape, 0.5)
RNG = np.random.default_rng(0)
TABLE = envs.TabularMDP(np.full((2, 2, 2), 0.5), np.array([[0.0, 1.0], [0.5, 0.5]]))
BANDIT = of.Layout([1], 2)


def loss(context):
    return LOSSES


def dynamics(context):
    return [BLOCK]


def bandit_loss(context):
    return np.array([[0.2, 0.8]])


def features(context):
    return np.full((*LAYOUT.shape, 1), 0.5)


LOSS_CLASS, DYNAMICS_CLASS = of.FiniteLossClass([loss]), of.FiniteDynamicsClass([dynamics])
BANDIT_CLASS = of.FiniteLossClass([bandit_loss])
ENV = envs.Environment(LAYOUT, [loss], [dynamics], contexts=[0, 1])
FLOATS = envs.Environment(LAYOUT, [loss], [dynamics], contexts=[0.25, 0.75])
TRAJECTORY = of.Trajectory(0, np.array([0, 1, 3]), np.array([0, 1]), np.array([0.0, 1.0]))
LOG = oracles.TrajectoryLog.of(LAYOUT, [TRAJECTORY] * 4)
MODEL = (("layout", LAYOUT), ("loss_class", LOSS_CLASS), ("dynamics_class", DYNAMICS_CLASS))
PAIR = (("layout", BANDIT), ("loss_class", BANDIT_CLASS))
MASK = np.ones(LAYOUT.shape, bool)


def agent(**options):
    return of.OPO(LAYOUT, LOSS_CLASS, DYNAMICS_CLASS, episodes=5, **options)


def result():
    return of.simulate(ENV, agent(), 2)


def loaded(**given):
    of.simulate(ENV, agent(), 2, save="run.npz")
    return of.Simulation.load(**given)


def built(kind, **arguments):
    """A class and the oracle that it gives."""
    return kind(**arguments).oracle(LAYOUT, None)


CALLS = {
    "Layout": (of.Layout, {"layer_sizes": [1, 2], "n_actions": 2}),
    "LayeredMDP": (of.LayeredMDP, {"layout": LAYOUT, "losses": LOSSES, "transitions": [BLOCK], "action_mask": MASK, "dtype": np.float64}),
    "UpdatableMDP": (
        of.UpdatableMDP,
        {"layout": LAYOUT, "losses": LOSSES, "transitions": [BLOCK], "action_mask": MASK, "dtype": np.float64},
    ),
    "LayeredMDP.stationary": (
        of.LayeredMDP.stationary,
        {
            "P": np.full((2, 2, 2), 0.5), "losses": LOSSES[:2], "horizon": 3, "start": 0, "action_mask": MASK[:2],
            "terminal": [0.0, 1.0], "dtype": "float32",
        },
    ),
    "LayeredMDP.with_losses": (MDP.with_losses, {"losses": LOSSES}),
    "LayeredMDP.unroll": (MDP.unroll, {"values": POLICY[:2], "first": POLICY[0]}),
    "LayeredMDP.load": (of.LayeredMDP.load, {"path": "none.npz"}),
    "LayeredMDP.save": (MDP.save, {"path": "no/such/folder/model.npz"}),
    "FiniteContexts": (of.FiniteContexts, {"mdps": [MDP, MDP], "probabilities": [0.5, 0.5], "labels": ["a", "b"], "name": "x"}),
    "FiniteContexts.mdp": (of.FiniteContexts([MDP]).mdp, {"context": 0}),
    "FiniteContexts.sample_context": (of.FiniteContexts([MDP]).sample_context, {"rng": RNG}),
    "occupancy": (of.occupancy, {"mdp": MDP, "policy": POLICY, "backend": "numba"}),
    "evaluate": (of.evaluate, {"mdp": MDP, "policy": POLICY, "backend": "numba"}),
    "solve": (of.solve, {"mdp": MDP, "backend": "numba"}),
    "solve_layer": (of.solve_layer, {"mdp": MDP, "stage": 0, "v": np.zeros(MDP.layout.n_states), "backend": "numba"}),
    "rollout": (of.rollout, {"mdp": MDP, "policy": POLICY, "rng": RNG, "context": 0, "backend": "numba"}),
    "bonus": (of.bonus, {"visits": [0.0, 1.0], "beta": 1.0}),
    "exponential_weights": (of.exponential_weights, {"policy": POLICY, "q": LOSSES, "eta": 1.0, "backend": "numpy"}),
    "policy_chain": (of.policy_chain, {"history": [MDP], "eta": 1.0, "beta_loss": 1.0, "beta_dynamics": 1.0, "backend": "numba"}),
    "PolicyChain": (
        of.PolicyChain,
        {"layout": LAYOUT, "eta": 1.0, "beta_loss": 1.0, "beta_dynamics": 1.0, "action_mask": MASK, "memory": 10**6},
    ),
    "PolicyChain.append": (of.PolicyChain(LAYOUT, eta=1.0, beta_loss=1.0, beta_dynamics=1.0).append, {"model": MDP}),
    "Transitions": (
        of.Transitions,
        {"layout": LAYOUT, "arrays": [BLOCK], "action_mask": MASK, "dtype": np.float64},
    ),
    "Simulation": (
        lambda **given: of.Simulation(**{"agent": agent(), **given}),
        {"cmdp": ENV, "agent": agent(), "episodes": 2, "seed": 0, "backend": "numba"},
    ),
    "ChainAgent": (
        of.ChainAgent,
        {**dict(MODEL), "rule": opo_rule(LAYOUT, 1.0, 1.0, 1.0), "action_mask": MASK, "backend": "numba", "memory": 10**6},
    ),
    "stationary_features": (
        lambda **given: oracles.stationary_features(**given)(0),
        {"features": lambda context: np.ones((2, 2, 1)), "layout": LAYOUT, "start": 1},
    ),
    "hidden_path": (envs.hidden_path, {"horizon": 3, "n_actions": 2, "n_contexts": 2, "payoff": 1, "gap": 0.25, "seed": 0}),
    "layered_bandit": (
        envs.layered_bandit,
        {"horizon": 2, "n_states": 2, "n_actions": 2, "n_contexts": 2, "unknown": 2, "gap": 0.25, "seed": 0},
    ),
    "Names": (of.Names, {"states": ["a", "b", "c"], "actions": ["x", "y"]}),
    "policy_table": (
        lambda **given: str(of.policy_table(**given)),
        {"agent": agent(), "context": 0, "env": ENV, "names": of.Names(), "true_model": False, "reached_only": True},
    ),
    "agent.recommend": (lambda **given: agent().recommend(**given), {"context": 0, "stage": 1, "state": 1}),
    "agent.record": (
        lambda **given: agent().record(**given),
        {"context": 0, "states": [0, 1], "actions": [0, 1], "losses": [0.0, 1.0]},
    ),
    "agent.names": (lambda names: setattr(agent(), "names", names), {"names": of.Names(actions=["x", "y"])}),
    "Simulation.load": (loaded, {"path": "run.npz", "cmdp": ENV, "agent": agent(), "episodes": 3}),
    "SimulationResult.summary_by_quarter": (
        lambda **given: of.simulate(FLOATS, agent(), 2).summary_by_quarter(**given), {"last": 0.5, "most": 2},
    ),
    "SimulationResult.join": (lambda later: result().join(later), {"later": None}),
    "from_functions": (
        envs.from_functions,
        {
            "horizon": 2, "start": 0, "actions": ["x", "y"], "transitions": lambda *given: 0, "loss": lambda *given: 0.0,
            "terminal": lambda *given: 0.0, "allowed": lambda *given: ["x"], "contexts": [0], "probabilities": [1.0], "labels": ["a"],
            "true_loss": 0, "true_dynamics": 0,
        },
    ),
    "set_threads": (of.set_threads, {"n": 1}),
    "simulate": (
        lambda **given: of.simulate(**{"agent": agent(), **given}),
        {"cmdp": ENV, "agent": agent(), "episodes": 2, "seed": 0, "backend": "numba"},
    ),
    "simulate_many": (
        of.simulate_many,
        {
            "cmdp": ENV,
            "make_agent": lambda seed: agent(),
            "episodes": 2,
            "seeds": 1,
            "backend": "numba",
            "save": "runs",
            "resume": "none",
        },
    ),
    "SimulationResult.load": (of.SimulationResult.load, {"path": "none.npz"}),
    "SimulationResult.save": (lambda path: result().save(path), {"path": "no/such/folder/result.npz"}),
    "SimulationResult.summary": (lambda last: result().summary(last), {"last": 0.5}),
    "rewards_to_losses": (of.rewards_to_losses, {"rewards": [[0.0, 1.0]], "reward_range": (0.0, 2.0), "action_mask": [[True, True]]}),
    "FiniteLossClass": (functools.partial(built, of.FiniteLossClass), {"models": [loss], "names": ["a"]}),
    "FiniteDynamicsClass": (functools.partial(built, of.FiniteDynamicsClass), {"models": [dynamics], "names": ["a"]}),
    "compare": (
        compare,
        {"cmdp": ENV, "agents": ["uniform"], "episodes": 2, "seeds": 1, "options": {"uniform": {}}, "folder": None},
    ),
    # agents
    "OPO": (
        of.OPO,
        {
            **dict(MODEL), "episodes": 5, "delta": 0.1, "bonus_scale": 1.0, "eta_scale": 1.0, "eta": None, "beta_loss": None,
            "beta_dynamics": None, "action_mask": MASK, "backend": "numba", "memory": 10**6,
        },
    ),
    "EUC3RL": (
        agents.EUC3RL,
        {
            **dict(MODEL), "episodes": 5, "delta": 0.1, "eluder": 1.0, "bonus_scale": 1.0, "beta_loss": None, "beta_dynamics": None,
            "action_mask": MASK, "backend": "numba", "memory": 10**6,
        },
    ),
    "RMUCDD": (
        agents.RMUCDD,
        {
            **dict(MODEL), "p_min": 0.1, "episodes": 5, "delta": 0.1, "bonus_scale": 1.0, "kappa_loss": None, "kappa_dynamics": None,
            "action_mask": MASK, "backend": "numba", "memory": 10**6,
        },
    ),
    "LOLIPOP": (
        agents.LOLIPOP,
        {**dict(MODEL), "delta": 0.1, "eta_scale": 1.0, "trust_scale": 1.0, "seed": 0, "action_mask": MASK},
    ),
    "TabularOPO": (
        agents.TabularOPO,
        {"layout": LAYOUT, "episodes": 5, "delta": 0.1, "bonus_scale": 1.0, "eta_scale": 1.0, "per_context": True, "action_mask": MASK},
    ),
    "Uniform": (agents.Uniform, {"layout": LAYOUT, "action_mask": MASK}),
    "Greedy": (agents.Greedy, {**dict(MODEL), "action_mask": MASK, "backend": "numba"}),
    "EpsilonGreedy": (agents.EpsilonGreedy, {**dict(MODEL), "scale": 1.0, "epsilon": 0.1, "action_mask": MASK, "backend": "numba"}),
    "BonusFreeOPO": (agents.BonusFreeOPO, {**dict(MODEL), "episodes": 5, "eta": None}),
    "Optimum": (agents.Optimum, {"cmdp": ENV, "action_mask": MASK, "backend": "numba"}),
    "POCMAB": (agents.POCMAB, {**dict(PAIR), "episodes": 5, "beta_loss": None}),
    "UCCB": (
        agents.UCCB,
        {**dict(PAIR), "episodes": 5, "delta": 0.1, "bonus_scale": 1.0, "beta": None, "backend": "numba", "memory": 10**6},
    ),
    "SquareCB": (
        agents.SquareCB,
        {**dict(PAIR), "episodes": 5, "delta": 0.1, "eta_scale": 1.0, "schedule": (10.0, 0.5), "backend": "numba"},
    ),
    "FALCON": (agents.FALCON, {**dict(PAIR), "delta": 0.1, "eta_scale": 1.0, "backend": "numba"}),
    "RegCB": (agents.RegCB, {**dict(PAIR), "delta": 0.1, "bonus_scale": 1.0, "backend": "numba"}),
    "OracleAgent": (agents.OracleAgent, {**dict(MODEL), "action_mask": MASK, "backend": "numba"}),
    "BaseAgent": (agents.BaseAgent, {"layout": LAYOUT, "action_mask": MASK}),
    "inverse_gap_weights": (agents.inverse_gap_weights, {"losses": np.array([0.1, 0.5]), "gamma": 1.0, "allowed": np.array([True, True])}),
    "euc3rl_parameters": (
        agents.euc3rl_parameters,
        {
            "layout": LAYOUT, "episodes": 5, "loss_class_size": 2.0, "dynamics_class_size": 2.0, "delta": 0.1, "eluder": 1.0,
            "bonus_scale": 1.0,
        },
    ),
    "rmucdd_parameters": (
        agents.rmucdd_parameters,
        {
            "layout": LAYOUT, "episodes": 5, "p_min": 0.1, "loss_class_size": 2.0, "dynamics_class_size": 2.0, "delta": 0.1,
            "bonus_scale": 1.0,
        },
    ),
    "minimum_reachability": (agents.minimum_reachability, {"model": ENV, "contexts": [0, 1]}),
    "agents.make": (agents.make, {"name": "opo", "env": ENV, "episodes": 5, "bonus_scale": 1.0, "eta_scale": 1.0, "seed": 0}),
    "agents.info": (agents.info, {"name": "opo"}),
    "agents.names": (agents.names, {"layout": LAYOUT}),
    "agents.practical": (agents.practical, {"name": "opo"}),
    "agent.policy": (lambda context: agent().policy(context), {"context": 0}),
    "agent.observe": (lambda trajectory: agent().observe(trajectory), {"trajectory": TRAJECTORY}),
    "agent.warm_start": (
        lambda trajectories: agent().warm_start(trajectories),
        {"trajectories": LOG},
    ),
    "agent.restore": (lambda state: agent().restore(state), {"state": agent().state()}),
    "agent.save": (lambda path: agent().save(path), {"path": "no/such/folder/agent.npz"}),
    "agent.load": (lambda path: agent().load(path), {"path": "none.npz"}),
    "agent.saturation": (lambda context: agent().saturation(context), {"context": 0}),
    "agent.restore_chains": (lambda chains: agent().restore_chains(chains), {"chains": agent().chains()}),
    # oracles
    "LinearLossClass": (
        functools.partial(built, oracles.LinearLossClass),
        {"features": features, "dimension": 1, "ridge": 1.0, "size": 2.0},
    ),
    "DisjointLinearLossClass": (
        functools.partial(built, oracles.DisjointLinearLossClass),
        {"features": lambda context: np.ones(1), "dimension": 1, "ridge": 1.0, "size": 2.0},
    ),
    "MixtureDynamicsClass": (
        functools.partial(built, oracles.MixtureDynamicsClass),
        {"bases": [[BLOCK]], "groups": 1, "memberships": lambda context: [1.0], "size": 2.0},
    ),
    "SoftmaxDynamicsClass": (
        functools.partial(built, oracles.SoftmaxDynamicsClass),
        {"features": lambda context: [np.zeros((1, 2, 2, 1))], "dimension": 1, "ridge": 1.0, "size": 2.0},
    ),
    "TabularLossClass": (
        functools.partial(built, oracles.TabularLossClass),
        {"per_context": True, "unseen": 0.0, "size": 2.0},
    ),
    "TabularDynamicsClass": (
        functools.partial(built, oracles.TabularDynamicsClass),
        {"per_context": True, "smoothing": 0.0, "size": 2.0},
    ),
    "scheduled": (oracles.scheduled, {"source": LOSS_CLASS, "refit": 3}),
    "Refit.parse": (oracles.Refit.parse, {"value": 3}),
    "TrajectoryLog": (
        oracles.TrajectoryLog,
        {
            "layout": LAYOUT, "contexts": [0], "states": [[0, 1, 3]], "actions": [[0, 1]], "losses": [[0.0, 1.0]], "action_mask": MASK,
        },
    ),
    "TrajectoryLog.of": (oracles.TrajectoryLog.of, {"layout": LAYOUT, "trajectories": [TRAJECTORY], "action_mask": MASK}),
    "TrajectoryLog.collect": (
        oracles.TrajectoryLog.collect,
        {"cmdp": ENV, "episodes": 2, "seed": 0, "policy": lambda context: POLICY},
    ),
    "TrajectoryLog.save": (LOG.save, {"path": "no/such/folder/log.npz"}),
    "TrajectoryLog.load": (oracles.TrajectoryLog.load, {"path": "none.npz"}),
    "check_oracle": (
        oracles.check_oracle,
        {"source": LOSS_CLASS, "layout": LAYOUT, "trajectories": LOG, "contexts": [0], "action_mask": None, "tolerance": 1e-6},
    ),
    "mixture_weights": (
        oracles.mixture_weights,
        {"z": np.array([[0.5, 0.2]]), "counts": np.array([2.0]), "start": np.array([[0.5, 0.5]]), "tolerance": 1e-9},
    ),
    "pair_features": (lambda layout: oracles.pair_features(layout)(0), {"layout": LAYOUT}),
    "oracle.restore": (
        lambda state: oracles.TabularLossClass().oracle(LAYOUT).restore(state),
        {"state": oracles.TabularLossClass().oracle(LAYOUT).state()},
    ),
    "finite oracle.restore": (
        lambda state: LOSS_CLASS.oracle(LAYOUT, None).restore(state),
        {"state": LOSS_CLASS.oracle(LAYOUT, None).state()},
    ),
    "oracle.observe": (lambda trajectory: LOSS_CLASS.oracle(LAYOUT, None).observe(trajectory), {"trajectory": TRAJECTORY}),
    "oracle.observe_many": (lambda trajectories: LOSS_CLASS.oracle(LAYOUT, None).observe_many(trajectories), {"trajectories": LOG}),
    # environments
    "Environment": (
        envs.Environment,
        {
            "layout": LAYOUT, "loss_models": [loss], "dynamics_models": [dynamics], "true_loss": 0, "true_dynamics": 0, "contexts": [0],
            "probabilities": [1.0], "labels": ["a"], "action_mask": MASK, "reward_map": envs.RewardMap(0.0, 1.0), "steps": 2,
            "noise": envs.Noise(0.1), "name": "x", "source": "y",
        },
    ),
    "Environment.mdp": (ENV.mdp, {"context": 0}),
    "Environment.label": (ENV.label, {"context": 0}),
    "Environment.reward_value": (
        envs.Environment(LAYOUT, [loss], [dynamics], contexts=[0], reward_map=envs.RewardMap(0.0, 1.0)).reward_value,
        {"loss_value": 1.0},
    ),
    "Environment.sample_context": (ENV.sample_context, {"rng": RNG}),
    "Noise": (envs.Noise, {"width": 0.1}),
    "PerContext": (envs.PerContext, {"objects": [LOSSES], "name": "x", "contexts": [0]}),
    "RewardMap": (envs.RewardMap, {"low": 0.0, "high": 1.0}),
    "RewardMap.losses": (envs.RewardMap(0.0, 1.0).losses, {"rewards": [0.5]}),
    "RewardMap.rewards": (envs.RewardMap(0.0, 1.0).rewards, {"losses": [0.5]}),
    "RewardMap.value": (envs.RewardMap(0.0, 1.0).value, {"loss_value": [0.5], "steps": 2}),
    "RewardMap.loss_value": (envs.RewardMap(0.0, 1.0).loss_value, {"reward_value": [0.5], "steps": 2}),
    "TabularMDP": (
        envs.TabularMDP,
        {
            "P": np.full((2, 2, 2), 0.5), "rewards": np.array([[0.0, 1.0], [0.5, 0.5]]), "start": 0, "action_mask": MASK[:2],
            "reward_range": (0.0, 1.0), "terminals": [], "state_names": ["a", "b"], "action_names": ["x", "y"], "name": "n", "source": "s",
        },
    ),
    "TabularMDP.layered": (TABLE.layered, {"horizon": 2}),
    "TabularMDP.environment": (TABLE.environment, {"horizon": 2}),
    "TabularMDP.discounted": (TABLE.discounted, {"discount": 0.9}),
    "TabularMDP.from_layered": (envs.TabularMDP.from_layered, {"mdp": TABLE.layered(3), "name": "x", "source": "y"}),
    "TabularMDP.save": (TABLE.save, {"path": "no/such/folder/table.npz"}),
    "TabularMDP.load": (envs.TabularMDP.load, {"path": "none.npz"}),
    "expected_rewards": (envs.expected_rewards, {"P": np.full((2, 2, 2), 0.5), "rewards": np.ones((2, 2, 2))}),
    "family": (
        envs.family,
        {"tables": [TABLE, TABLE], "horizon": 2, "labels": ["a", "b"], "probabilities": [0.5, 0.5], "name": "n", "source": "s"},
    ),
    "from_gymnasium": (
        envs.from_gymnasium,
        {
            "env": {0: {0: [(1.0, 0, 0.5, False)]}}, "start": 0, "reward_range": (0.0, 1.0), "name": "x",
        },
    ),
    "from_mdptoolbox": (
        envs.from_mdptoolbox,
        {
            "P": np.full((2, 2, 2), 0.5), "R": np.ones((2, 2)), "start": 0, "reward_range": (0.0, 1.0), "name": "x", "source": "y",
        },
    ),
    "from_pairs": (
        envs.from_pairs,
        {
            "R": [1.0, 0.5], "Q": [[0.5, 0.5], [0.0, 1.0]], "s_indices": [0, 1], "a_indices": [0, 0], "start": 0,
            "reward_range": (0.0, 1.0), "name": "x", "source": "y",
        },
    ),
    "from_quantecon": (
        envs.from_quantecon,
        {"ddp": types.SimpleNamespace(R=np.ones((2, 2)), Q=np.full((2, 2, 2), 0.5), beta=1.0), "start": 0, "name": "x"},
    ),
    "from_prism": (
        envs.from_prism,
        {"transitions": "chain.tra", "labels": None, "states": None, "rewards": (), "start": 0, "deadlocks": "error",
         "reward_range": (0.0, 1.0), "name": "x"},
    ),
    "gathering_table": (envs.gathering_table, {"attack": 0.1, "gold": 1.0, "gem": 0.0, "attacked": 0.0}),
    "resource_gathering": (
        envs.resource_gathering,
        {"horizon": 2, "attacks": [0.1], "wanted": [(1.0, 0.2)], "penalty": 0.5},
    ),
    "combination_lock": (
        envs.combination_lock,
        {"horizon": 3, "n_actions": 2, "n_contexts": 1, "path_cost": 0.5, "n_dynamics": 2, "seed": 0},
    ),
    "random_finite": (
        envs.random_finite,
        {
            "horizon": 2, "n_states": 2, "n_actions": 2, "n_contexts": 1, "n_losses": 2, "n_dynamics": 2, "successors": 1, "gap": 0.0,
            "noise": 0.1, "seed": 0,
        },
    ),
    "random_linear": (
        envs.random_linear,
        {
            "horizon": 2, "n_states": 2, "n_actions": 2, "dimension": 2, "n_contexts": 1, "n_losses": 2, "n_dynamics": 2, "successors": 1,
            "noise": 0.1, "seed": 0,
        },
    ),
    "random_softmax": (
        envs.random_softmax,
        {
            "horizon": 2, "n_states": 2, "n_actions": 2, "dimension": 2, "n_contexts": 1, "strength": 1.0, "n_losses": 2, "n_dynamics": 2,
            "successors": 1, "noise": 0.1, "seed": 0,
        },
    ),
    "inventory": (
        envs.inventory,
        {
            "horizon": 2, "items": 1, "capacity": 2, "batch": 1, "demands": [0.5], "most": 2, "holding": 0.1, "shortage": 1.0,
            "ordering": 0.5,
        },
    ),
    "queue_network": (
        envs.queue_network,
        {"horizon": 2, "queues": 2, "capacity": 2, "arrivals": [[0.1, 0.2]], "service": 0.5},
    ),
    "envs.make": (envs.make, {"name": "random-finite", "horizon": 2}),
    "envs.info": (envs.info, {"name": "random-finite"}),
    "envs.about": (envs.about, {"name": "random-finite"}),
    "envs.describe": (envs.describe, {"environment": ENV, "most": 2}),
    "envs.from_file": (envs.from_file, {"path": "table.npz", "horizon": 2}),
    # studies
    "Study": (
        study.Study,
        {
            "name": "s", "environments": ["random-finite"], "agents": ["opo"], "episodes": 2, "seeds": 1, "record": {"every": 1},
            "checkpoint": {"seconds": 1.0}, "format": "npz", "root": ".",
        },
    ),
    "Study.load": (study.Study.load, {"path": "none.toml"}),
    "Study.from_dict": (
        study.Study.from_dict,
        {"data": {"name": "s", "environments": ["random-finite"], "agents": ["opo"], "episodes": 2}, "root": "."},
    ),
    "Store": (study.Store, {"folder": "none"}),
    "Store.open": (study.Store.open, {"folder": "none"}),
    "Results": (study.Results, {"store": "none"}),
    "run_study": (
        study.run_study,
        {
            "study": study.Study("s", ["random-finite"], ["uniform"], episodes=1), "folder": "none", "workers": 1, "scheduler": "loky",
            "address": None, "threads": 1,
        },
    ),
}  # fmt: skip
if importlib.util.find_spec("gymnasium") is not None:
    CALLS["frozen_lake"] = (
        envs.frozen_lake,
        {
            "horizon": 2, "success_rates": [0.5], "map_name": "4x4", "maps": 1, "size": 4, "reward_schedules": [(1, 0, 0)], "seed": 0,
        },
    )  # fmt: skip
    CALLS["taxi"] = (envs.taxi, {"horizon": 2, "rain": [1.0]})
    CALLS["cliff_walking"] = (envs.cliff_walking, {"horizon": 2})
if importlib.util.find_spec("sklearn") is not None:
    from sklearn.linear_model import LinearRegression, LogisticRegression

    CALLS["SklearnLossClass"] = (
        functools.partial(built, oracles.SklearnLossClass),
        {"estimator": LinearRegression(), "features": features, "refit": "every", "first": 1, "unseen": 0.0, "seed": 0, "size": 2.0},
    )
    CALLS["SklearnDynamicsClass"] = (
        functools.partial(built, oracles.SklearnDynamicsClass),
        {
            "estimator": LogisticRegression(), "features": features, "refit": "every", "first": 1, "smoothing": 0.0,
            "seed": 0, "size": 2.0,
        },
    )  # fmt: skip
    CALLS["classification_bandit"] = (envs.classification_bandit, {"data": "iris", "noise": 0.1, "contexts": 5, "seed": 0})
if importlib.util.find_spec("optuna") is not None:
    CALLS["tune"] = (
        of.tune,
        {
            "cmdp": ENV, "agent": "tabular-opo", "episodes": 2, "over": {"eta_scale": [1.0, 2.0]}, "trials": 2, "seeds": 1, "validation": 2,
            "options": {"bonus_scale": 1.0}, "seed": 0,
        },
    )  # fmt: skip
if importlib.util.find_spec("lifelines") is not None:
    CALLS["trial_bandit"] = (envs.trial_bandit, {"by": "age", "groups": 2})
