"""Runs of agents in environments: the episode loop, its result, comparisons, statistics, plots."""
