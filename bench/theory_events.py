"""How often the events of the proof and the statements of the paper hold: 200 seeds in five worlds, at the theory's constants and by hand.

    python bench/theory_events.py [SEEDS] [FOLDER]

Prints the table of docs/theory.md; exits with 1 if a statement is violated more often than the paper allows.
"""

from __future__ import annotations

import math
import sys
import time
import warnings

from opo_fast import envs
from opo_fast.analysis import event_study

WORLDS = [
    ("random-finite", {"horizon": 3, "n_states": 3, "n_contexts": 3, "n_losses": 6, "n_dynamics": 6}),
    ("random-linear", {"horizon": 3, "n_states": 2, "n_contexts": 3, "n_losses": 6, "n_dynamics": 6}),
    ("combination-lock", {"horizon": 4, "n_contexts": 3}),
    ("layered-bandit", {"horizon": 3, "n_contexts": 2, "unknown": 3}),
    ("hidden-path", {"horizon": 4, "n_contexts": 3}),
]
SETTINGS = {"theory": {"tuning": "theory"}, "by hand": {"eta": 0.3, "beta_loss": 4.0, "beta_dynamics": 4.0}}
EPISODES = 100


def main(seeds: int = 200, folder: str | None = None) -> int:
    """Run all worlds, print the table, and return whether all statements were consistent with the paper."""
    warnings.filterwarnings("ignore", "after 100 episodes every bonus")
    good, began = True, time.perf_counter()
    lost: dict[str, list[str]] = {}
    print("| world | setting | A | B | squared errors | Hellinger errors | factor of 6 | regret of H T | least frequency |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, options in WORLDS:
        env = envs.make(name, **options)
        for setting, parameters in SETTINGS.items():
            found = event_study(env, EPISODES, seeds, **parameters)
            f, bound = found.frequencies, found.bounds
            errors = [
                f"{f[key].share * right:.2f} of {right:,.0f}" for key, right in (("squared", bound.squared), ("hellinger", bound.hellinger))
            ]
            events = [f"{found.columns[key].mean():.3f}" for key in ("inaccurate", "under_explored")]
            factor = "no pair" if math.isnan(f["factor 6"].share) else f"{6 * f['factor 6'].share:.2f}"
            least = min(one.held for one in f.values())
            print(
                "|", " | ".join([name, setting, *events, *errors, factor, f"{f['trivial'].share:.2f}", f"{least}/{seeds}"]), "|", flush=True
            )
            good &= found.consistent
            for key, one in f.items():
                if one.held < one.runs:
                    lost.setdefault(key, []).append(f"{name}, {setting}: {one.held}/{one.runs}, at least {one.probability:g}")
            if folder is not None:
                found.plot(f"{folder}/events-{name}-{setting.replace(' ', '-')}.png")
    for key, where in lost.items():
        print(f"{key} did not hold in each run: {'; '.join(where)}")
    print(f"{len(WORLDS)} worlds, {seeds} seeds, T = {EPISODES}, {time.perf_counter() - began:.0f} s; consistent: {good}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200, sys.argv[2] if len(sys.argv) > 2 else None))
