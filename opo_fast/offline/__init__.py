"""From a log alone, without a simulator: policies, how well classes fit, and what a policy would have cost."""

from .evaluation import ESTIMATORS, Estimate, OffPolicyWarning, PolicyEvaluation, evaluate_policy
from .learning import FitLine, LearnedPolicy, fit_report, learn_from_logs
from .pessimism import PessimisticPlan

__all__ = [
    "ESTIMATORS",
    "Estimate",
    "FitLine",
    "LearnedPolicy",
    "OffPolicyWarning",
    "PessimisticPlan",
    "PolicyEvaluation",
    "evaluate_policy",
    "fit_report",
    "learn_from_logs",
]
