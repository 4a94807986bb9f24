"""Layered models of contextual MDPs, and the operations on them."""
