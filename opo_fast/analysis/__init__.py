"""The paper's theory on a run: bounds, the decomposition of the regret, and both sides of the lemmas."""

from .decomposition import ModelErrors, RegretTerms, Step, history_at, optimistic_steps, regret_decomposition
from .lemmas import LemmaCheck, OracleErrors, lemma_checks, oracle_errors, oracle_guarantees
from .theory import PRACTICAL, Parameters, parameters, regret_bound

__all__ = [
    "PRACTICAL",
    "LemmaCheck",
    "ModelErrors",
    "OracleErrors",
    "Parameters",
    "RegretTerms",
    "Step",
    "history_at",
    "lemma_checks",
    "optimistic_steps",
    "oracle_errors",
    "oracle_guarantees",
    "parameters",
    "regret_bound",
    "regret_decomposition",
]
