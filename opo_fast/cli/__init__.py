"""The command `opo-fast`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Entry point of `opo-fast`."""
    from .commands import main as program

    program()
