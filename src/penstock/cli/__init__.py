"""The `penstock` command. Each subcommand, or group of them, is a module, imported only when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable

import typer

__all__ = ["main"]

#: Subcommand -> where its function is. In the order of the help.
_COMMANDS = {
    "standalone": "penstock.cli.standalone",
    "ready": "penstock.cli.ready",
    "quickstart": "penstock.cli.quickstart",
    "version": "penstock.cli.version",
    "segment-store": "penstock.cli.segment_store",
}
#: Groups of subcommands -> where its `typer.Typer` of the same name is.
_GROUPS = {"log": "penstock.cli.log"}
#: Not in the list of commands: programs start them, not people.
_HIDDEN = {"segment-store"}


def _app(names: list[str]) -> typer.Typer:
    app = typer.Typer(
        name="penstock",
        help="Durable, ordered, elastic streams for Python and Spark.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    # Keeps "penstock COMMAND" when only one command was loaded.
    app.callback()(_root)
    for name in names:
        if name in _GROUPS:
            group: typer.Typer = getattr(importlib.import_module(_GROUPS[name]), name)
            app.add_typer(group)
            continue
        command: Callable[..., None] = getattr(importlib.import_module(_COMMANDS[name]), name.replace("-", "_"))
        app.command(name, hidden=name in _HIDDEN)(command)
    return app


def _root() -> None:
    """Durable, ordered, elastic streams for Python and Spark."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. `arguments` are without the program's name; None takes the process's own."""
    given = sys.argv[1:] if arguments is None else arguments
    known = [*_COMMANDS, *_GROUPS]
    asked = [name for name in given[:1] if name in known]
    _app(asked or known)(given)
