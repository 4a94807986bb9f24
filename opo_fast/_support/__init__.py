"""Helpers that all parts of the package share: argument checks, files, progress bars, threads."""
