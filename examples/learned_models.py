"""Gradient boosting and a neural network as oracles: any scikit-learn regressor and classifier works, in any agent.

The environment is a treatment in three stages. A patient is a point in the unit square, and which of two drugs helps depends on
the patient in a way that no linear function of the two numbers describes (an exclusive or).

    python examples/learned_models.py [episodes] [picture.png]
"""

from __future__ import annotations

import sys
import warnings

import numpy as np
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPRegressor

import opo_fast as of
from opo_fast.oracles import LinearLossClass, SklearnDynamicsClass, SklearnLossClass, TrajectoryLog, scheduled


class Treatment:
    """Contexts are points of a 6 x 6 grid in the unit square; the states of the later stages are "worse" and "better"."""

    layout = of.Layout([1, 2, 2], n_actions=2)
    name = "treatment"
    grid = tuple((i / 5, j / 5) for i in range(6) for j in range(6))

    def sample_context(self, rng: np.random.Generator) -> tuple[float, float]:
        return self.grid[int(rng.integers(36))]

    def helps(self, context: tuple[float, float]) -> int:
        """The drug that helps this patient."""
        return int((context[0] > 0.5) != (context[1] > 0.5))

    def mdp(self, context: tuple[float, float]) -> of.LayeredMDP:
        good = np.arange(2) == self.helps(context)
        losses = np.where(good, 0.2, 0.7) + np.array([0.0, 0.1, -0.1, 0.1, -0.1])[:, None]
        better = np.where(good, 0.8, 0.3)
        rows = np.stack([1 - better, better], axis=1)
        return of.LayeredMDP(self.layout, losses, [rows[None], np.stack([rows, rows])])


def linear(context: tuple[float, float]) -> np.ndarray:
    """(1, age, severity) for each state-action pair: a class that does not contain the truth."""
    n = Treatment.layout.n_states * 2
    table = np.zeros((n, n * 3))
    for pair in range(n):
        table[pair, 3 * pair : 3 * pair + 3] = 1.0, *context
    return table.reshape(*Treatment.layout.shape, n * 3)


def agents(episodes: int) -> dict[str, of.OPO]:
    """Three agents that differ only in their oracles."""
    layout = Treatment.layout
    classes = {
        "gradient boosting": (SklearnLossClass(GradientBoostingRegressor()), SklearnDynamicsClass(GradientBoostingClassifier())),
        "neural network": (
            SklearnLossClass(MLPRegressor(hidden_layer_sizes=(32, 32), learning_rate_init=0.01, max_iter=200)),
            SklearnDynamicsClass(GradientBoostingClassifier()),
        ),
        "linear (wrong class)": (
            scheduled(LinearLossClass(linear, 30, ridge=1e-3), "doubling"),
            SklearnDynamicsClass(LogisticRegression()),
        ),
    }
    return {
        name: of.OPO(layout, loss, dynamics, episodes=episodes, bonus_scale=5e-7, eta_scale=50.0)
        for name, (loss, dynamics) in classes.items()
    }


def main(episodes: int = 2000, picture: str | None = None, logged: int = 0) -> dict[str, of.SimulationResult]:
    """Run the three agents on common random numbers; with `logged`, after a warm start from this many logged patients."""
    warnings.filterwarnings("ignore", category=ConvergenceWarning)
    treatment, results = Treatment(), {}
    for name, agent in agents(episodes).items():
        if logged:
            agent.warm_start(TrajectoryLog.collect(treatment, logged, seed=7))
        results[name] = result = of.simulate(treatment, agent, episodes, seed=0)
        late = slice(episodes // 2, None)
        excess = (result.held_out_squared_error - result.true_squared_error)[late].mean()
        regret, seconds = result.cumulative_regret[-1], result.settings["seconds"]
        print(f"{name:22} regret {regret:7.1f}   late held-out excess {excess:6.3f}   {seconds:5.1f} s")
    if picture:
        from opo_fast.runs.plots import regret_curves

        regret_curves(
            {name: [result] for name, result in results.items()},
            picture,
            title="Classes that contain the truth, and one that does not",
        )
    return results


if __name__ == "__main__":
    main(*(int(value) if value.isdigit() else value for value in sys.argv[1:]))
