"""Studies: a grid of environment x agent x settings x seeds, run on an existing scheduler, resumed, compared and plotted."""

from .file import Checkpoints, Entry, Record, Study
from .grid import Run
from .results import Results
from .runfile import StoredRun
from .runner import Summary, run_study
from .storage import Store, StoreError

__all__ = ["Checkpoints", "Entry", "Record", "Results", "Run", "Store", "StoreError", "StoredRun", "Study", "Summary", "run_study"]
