"""The paper's theory applied to a run: bounds, the decomposition of the regret, and both sides of the lemmas."""

from ..runs.decomposition import ModelErrors, RegretTerms, regret_decomposition
from ..runs.steps import Step, agent_steps, history_at, optimistic_steps
from .algorithm_checks import EquationCheck, algorithm_checks
from .bounds import (
    Bounds,
    OracleErrors,
    adahedge_bound,
    bounds,
    informative_from,
    literature_rates,
    lower_bound,
    oracle_guarantees,
)
from .event_study import EventStudy, event_study
from .events import ContextEvents, Frequency, RunEvents, Statement, context_events, event_frequencies, run_events
from .lemmas import LemmaCheck, lemma_checks, oracle_errors
from .stacked import StackedSteps, stack, stacked_steps
from .theory import PRACTICAL, Parameters, parameters, regret_bound

__all__ = [
    "ContextEvents",
    "EventStudy",
    "Frequency",
    "RunEvents",
    "StackedSteps",
    "Statement",
    "context_events",
    "event_frequencies",
    "event_study",
    "run_events",
    "stack",
    "stacked_steps",
    "lower_bound",
    "literature_rates",
    "informative_from",
    "bounds",
    "adahedge_bound",
    "Bounds",
    "PRACTICAL",
    "EquationCheck",
    "LemmaCheck",
    "ModelErrors",
    "OracleErrors",
    "Parameters",
    "RegretTerms",
    "Step",
    "agent_steps",
    "algorithm_checks",
    "history_at",
    "lemma_checks",
    "optimistic_steps",
    "oracle_errors",
    "oracle_guarantees",
    "parameters",
    "regret_bound",
    "regret_decomposition",
]
