"""The command `opo-fast`: one tree of commands."""
