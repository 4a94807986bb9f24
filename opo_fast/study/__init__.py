"""Studies: grids of environments, agents, settings and seeds that run on an existing scheduler and can be resumed."""

from .file import Checkpoints, Entry, Record, Study
from .grid import Run
from .results import Results
from .runfile import StoredRun
from .runner import Summary, run_study
from .scaling import Growth, growth_along, growth_over_episodes, power_law, scaling_study
from .storage import Store, StoreError

__all__ = [
    "Checkpoints",
    "Entry",
    "Growth",
    "Record",
    "Results",
    "Run",
    "Store",
    "StoreError",
    "StoredRun",
    "Study",
    "Summary",
    "growth_along",
    "growth_over_episodes",
    "power_law",
    "run_study",
    "scaling_study",
]
