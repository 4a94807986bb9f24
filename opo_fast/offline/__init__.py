"""Learning from a log without a simulator: policies, how well function classes fit, and off-policy evaluation."""

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
