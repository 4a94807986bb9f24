"""The command `opo-fast`; each subcommand is a module, which is imported only when it is needed."""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from .._support.text import printable
from ..errors import OpoError

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "run": "opo_fast.cli.run",
    "show": "opo_fast.cli.show",
    "policy": "opo_fast.cli.policy",
    "envs": "opo_fast.cli.envs",
    "agents": "opo_fast.cli.agents",
    "describe": "opo_fast.cli.describe",
    "theory": "opo_fast.cli.theory",
    "compare": "opo_fast.cli.compare",
    "tune": "opo_fast.cli.tune",
    "study": "opo_fast.cli.study",
    "offline": "opo_fast.cli.offline",
}
"""The modules of the subcommands. Each has a `typer.Typer` named ``app``; if that has a single command, it is the subcommand."""


class _Group(TyperGroup):
    """Finds the commands of `COMMANDS`, and reports every `OpoError` as one line with exit code 2.

    Warnings are also printed as one line, each once.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(COMMANDS[cmd_name]).app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        close = get_close_matches(args[0], COMMANDS, 1)
        if args[0] not in COMMANDS and close:
            ctx.fail(f"No such command '{printable(args[0])}'. Did you mean '{close[0]}'?")
        # An empty path would be the current folder.
        for i, arg in enumerate(args):
            option = arg.removesuffix("=")
            if option in ("--out", "--resume") and (arg.endswith("=") or args[i + 1 : i + 2] == [""]):
                ctx.fail(f"The value of {option} is empty: name a folder. (Is a variable of the shell unset?)")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _warnings_as_lines():
                return super().invoke(ctx)
        except typer.BadParameter as error:
            if "valid integer" in error.message:
                error.message = "a whole number, such as 1000, is needed"
            raise
        except OpoError as error:
            message = " ".join([str(error), *(f"({note})" for note in getattr(error, "__notes__", ()))])
        except MemoryError as error:
            message = f"out of memory: {error}"
        except BrokenPipeError:
            raise
        except OSError as error:
            message = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        except KeyboardInterrupt:
            raise typer.Exit(130) from None
        typer.echo("opo-fast: " + printable(" ".join(message.split())), err=True)
        raise typer.Exit(2)


@contextlib.contextmanager
def _warnings_as_lines() -> Iterator[None]:
    shown = set()

    def show(message: Warning | str, *rest: Any, **options: Any) -> None:
        if str(message) not in shown:
            shown.add(str(message))
            typer.echo("opo-fast: warning: " + printable(" ".join(str(message).split())), err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


app = typer.Typer(
    name="opo-fast",
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Entry point of `opo-fast`."""
    # A terminal that cannot print a character shows its code instead of raising an error.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app()


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"opo-fast {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """OPO-CMDP and its competitors on contextual Markov decision processes. Start with: opo-fast run"""
