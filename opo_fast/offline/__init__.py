"""From a log alone, without a simulator: policies, and what a policy would have cost."""

from .evaluation import ESTIMATORS, Estimate, OffPolicyWarning, PolicyEvaluation, evaluate_policy

__all__ = ["ESTIMATORS", "Estimate", "OffPolicyWarning", "PolicyEvaluation", "evaluate_policy"]
