"""The `penstock` command. Each subcommand, or group of them, is a module, imported only when it is asked for."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import typer
import typer.core

from penstock.cli.examples import epilog_of
from penstock.cli.standard_output import OutputError, checked_output
from penstock.runtime.standard_descriptors import open_standard_files

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class _Command:
    """Where a subcommand is, and what the help of all says of it: the first line of its own.

    Attributes:
        place: module and name in it.
        section: the heading under which the help of all commands shows it.
        summary: as its module says; repeated here so that the help of all loads none.
        is_group: the name is a `typer.Typer` with commands of its own.
        is_hidden: programs start it, not people.
    """

    place: str
    section: str
    summary: str
    is_group: bool = False
    is_hidden: bool = False

    def load(self) -> object:
        """Return the function, or the group."""
        module, _, name = self.place.partition(":")
        return getattr(importlib.import_module(f"penstock.cli.{module}"), name)


#: The headings of the help of all commands, in its order.
SECTIONS = (
    "First steps",
    "Servers",
    "Events",
    "Streams and their parts",
    "Jobs",
    "Observation and measurement",
    "Storage and checks",
)
#: In the order of the help, within each section.
COMMANDS = {
    "standalone": _Command(
        "standalone:standalone",
        "Servers",
        "Run a complete Penstock server in one or several processes until SIGTERM or Ctrl-C.",
    ),
    "ready": _Command(
        "ready:ready",
        "Servers",
        "Exit with 0 if the server serves clients; otherwise print the reason and exit with 1.",
    ),
    "doctor": _Command(
        "doctor:doctor",
        "Storage and checks",
        "Examine a server and its machine, running or stopped, and print what is wrong and what to do.",
    ),
    "jars": _Command(
        "jars:jars", "Servers", "Fetch the jars of BookKeeper's client through Maven, for a log in BookKeeper."
    ),
    "settings": _Command("settings:settings", "Servers", "Settings of a server: values and their sources.", True),
    "web": _Command(
        "web:web", "Servers", "Serve the REST interface and the web console of a cluster until SIGTERM or Ctrl-C."
    ),
    "console": _Command(
        "console:console", "Servers", "Open the web console of a cluster in a browser, and serve it until Ctrl-C."
    ),
    "user": _Command("user:user", "Servers", "Accounts of a secured server, and what they may do.", True),
    "security": _Command(
        "security:security",
        "Servers",
        "Certificates, keys and accounts of a secured server, and how clients connect.",
        True,
    ),
    "write": _Command("write:write", "Events", "Write the lines of standard input to a stream, one event each."),
    "read": _Command("read:read", "Events", "Print the events that a stream holds now, one per line."),
    "tail": _Command("read:tail", "Events", "Print the events of a stream as they are written, until Ctrl-C."),
    "export": _Command(
        "export:export",
        "Jobs",
        "Write the events of a stream into Parquet files or an Iceberg table, each exactly once, until stopped.",
    ),
    "replay": _Command(
        "replay:replay",
        "Jobs",
        "Write a range of a stream into another stream, each event exactly once, at a given rate.",
    ),
    "backfill": _Command(
        "backfill:backfill", "Jobs", "Write the rows of Parquet files into a stream, each exactly once."
    ),
    "verify": _Command(
        "verify:verify",
        "Storage and checks",
        "Compare the chunks of streams in long-term storage with the server's checksums.",
    ),
    "stream": _Command(
        "stream:stream",
        "Streams and their parts",
        "Streams: contents, scaling, retention.",
        True,
    ),
    "scope": _Command(
        "scope:scope", "Streams and their parts", "Scopes: namespaces of streams, reader groups and tables.", True
    ),
    "group": _Command("group:group", "Streams and their parts", "Reader groups: readers, positions and lag.", True),
    "retention": _Command(
        "retention:retention", "Streams and their parts", "Retention: what is deleted from streams, and why.", True
    ),
    "transaction": _Command(
        "transaction:transaction", "Streams and their parts", "Transactions that several programs can write to.", True
    ),
    "table": _Command("table:table", "Streams and their parts", "Key-value tables: keys, values, scans.", True),
    "bench": _Command(
        "bench:bench",
        "Observation and measurement",
        "Measure write and read throughput and latency from this machine.",
        True,
    ),
    "top": _Command(
        "top:top",
        "Observation and measurement",
        "Show rates, lag, segments, memory, logs and unflushed bytes, live, until Ctrl-C.",
    ),
    "quickstart": _Command(
        "quickstart:quickstart",
        "First steps",
        "Stream a year of real flights through a store and Spark, kill both during the run, and check every count.",
    ),
    "log": _Command(
        "log:log",
        "Storage and checks",
        "List, disable, enable or salvage the containers' logs.",
        True,
    ),
    "storage": _Command(
        "storage_backup:storage",
        "Storage and checks",
        "Check, back up, recover or import the long-term storage of a stopped server.",
        True,
    ),
    "version": _Command("version:version", "First steps", "Print the versions of Penstock and of Python."),
    "controller": _Command(
        "cluster_processes:controller",
        "Servers",
        "Run a controller of a cluster until SIGTERM or Ctrl-C.",
    ),
    "segment-store": _Command(
        "cluster_processes:segment_store",
        "Servers",
        "Run segment stores of a cluster until SIGTERM or Ctrl-C.",
    ),
    "cluster": _Command("cluster:cluster", "Servers", "Make, observe and change a cluster on several machines.", True),
    "store-child": _Command("store_child:store_child", "Servers", "Run one segment store.", is_hidden=True),
}
#: Characters of a summary in the help of all commands.
_SUMMARY_LIMIT = 200
#: Set by the shell for a request for completions.
_COMPLETION_VARIABLE = "_PENSTOCK_COMPLETE"


class _SectionedGroup(typer.core.TyperGroup):
    """The top-level command: its help lists the subcommands by section."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the visible subcommands of each section under its heading. The classes are Click's or Typer's own."""
        for section in SECTIONS:
            shown = [
                (name, self.commands[name])
                for name, command in COMMANDS.items()
                if command.section == section and name in self.commands and not command.is_hidden
            ]
            if shown:
                # A long summary is wrapped, not shortened.
                with formatter.section(section):
                    formatter.write_dl([(name, command.get_short_help_str(_SUMMARY_LIMIT)) for name, command in shown])


def _app(names: list[str], *, is_overview: bool) -> typer.Typer:
    """Return the command line with these subcommands; in an overview they have no more than a summary."""
    app = typer.Typer(
        name="penstock",
        cls=_SectionedGroup,
        # Plain text: as markup, "[default: 9090]" in a help text would be a style, and vanish.
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    # Keeps "penstock COMMAND" when only one command was loaded.
    app.callback()(_root)
    for name in names:
        command = COMMANDS[name]
        if is_overview:
            app.command(name, help=command.summary, short_help=command.summary, hidden=command.is_hidden)(_nothing)
        elif command.is_group:
            group = command.load()
            assert isinstance(group, typer.Typer)
            _complete_help(group, name)
            app.add_typer(group, name=name, help=command.summary, epilog=epilog_of(name))
        else:
            function = command.load()
            assert callable(function)
            app.command(name, hidden=command.is_hidden, epilog=epilog_of(name))(function)
    return app


def _complete_help(group: typer.Typer, name: str) -> None:
    """Add a summary and examples to each command of a group, and of the groups in it. `name`: after ``penstock``."""
    for one in group.registered_commands:
        # The whole first sentence of each; what it would take by itself ends in dots after some words.
        one.short_help = (one.callback.__doc__ or "").partition("\n\n")[0] if one.callback else None
        verb = one.name or (one.callback.__name__ if one.callback else "")
        one.epilog = epilog_of(f"{name} {verb.replace('_', '-')}")
    for inner in group.registered_groups:
        inner.epilog = epilog_of(f"{name} {inner.name}")
        if inner.typer_instance is not None:
            _complete_help(inner.typer_instance, f"{name} {inner.name}")


def _nothing() -> None:
    """Stand for a command whose summary alone is wanted."""


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        from penstock.runtime.version import penstock_version

        typer.echo(f"penstock {penstock_version()}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(False, "--version", is_eager=True, callback=_print_version, help="Print the version."),
) -> None:
    """Durable, ordered, elastic streams for Python and Spark.

    A first minute: "penstock standalone" in one terminal; in another one "penstock stream create shop/orders",
    "echo hello | penstock write shop/orders" and "penstock read shop/orders". Commands find the server by --uri, then
    the variable PENSTOCK_URI, then at tcp://localhost:9090.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. `arguments` are without the program's name; None takes the process's own."""
    open_standard_files()
    given = sys.argv[1:] if arguments is None else arguments
    asked = [name for name in given[:1] if name in COMMANDS]
    is_completing = _COMPLETION_VARIABLE in os.environ
    if not is_completing and (not given or (given == asked and COMMANDS[asked[0]].is_group)):
        given = [*given, "--help"]
    app = _app(asked or list(COMMANDS), is_overview=not asked and not is_completing)
    code = 0
    try:
        with checked_output():
            code = _run(app, given)
    except OutputError as error:
        if code or error.is_reader_gone:
            sys.exit(code)  # It failed before; or its reader has enough.
        sys.stderr.write(f"penstock: standard output: {error}\n")
        sys.exit(1)
    sys.exit(code)


def exit_beside_java(code: object) -> None:
    """See `penstock.runtime.java_machine.exit_beside_java`."""
    from penstock.runtime import java_machine

    java_machine.exit_beside_java(code)


def _run(app: Callable[..., object], arguments: list[str]) -> int:
    """Run the command line; return the exit code. Raises `OutputError` alone."""
    try:
        code = app(arguments, prog_name="penstock", standalone_mode=False)
    except OutputError:
        raise
    except typer.Abort:
        return 128 + signal.SIGINT
    except Exception as error:  # noqa: BLE001  # an unexpected error is reported in a line, too
        if isinstance(error, _UsageError):
            return _tell_usage(error, as_json="--json" in arguments)
        from penstock.cli.failure import report_bug

        return report_bug(error)
    return code if isinstance(code, int) else 0


@runtime_checkable
class _UsageError(Protocol):
    """What Typer raises for a wrong command line. Its class is Click's or Typer's own, by the version of Typer."""

    exit_code: int

    def format_message(self) -> str:
        """Return what is wrong."""

    def show(self) -> None:
        """Print it to standard error, after the usage."""


def _tell_usage(error: _UsageError, *, as_json: bool) -> int:
    """Report a wrong command line; return the exit code. Nothing was connected to."""
    if as_json:
        from penstock.cli.failure import EXIT_USAGE, fail

        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "penstock"
        fail(
            error.format_message(),
            kind="UsageError",
            as_json=True,
            code=EXIT_USAGE,
            hint=f"see {command} --help",
        )
    else:
        error.show()
    return error.exit_code
