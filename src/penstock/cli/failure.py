"""How a command ends when it does not end well: a line or two, or JSON; never a traceback. The exit codes are here.

``docs/guide/command-line.md`` documents them.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from penstock.cli.standard_output import OutputError
from penstock.model.errors import (
    ControllerUnavailableError,
    DataDirectoryLostError,
    InvalidArgumentError,
    InvalidNameError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    PenstockError,
    ScopeNotEmptyError,
    StreamExistsError,
    TableExistsError,
)

#: Penstock, or the server, refused or failed; the message says what was tried and what to do.
EXIT_FAILED = 1
#: The command line itself is wrong, or something needs ``--yes``.
EXIT_USAGE = 2
#: ``penstock storage check``, or ``penstock verify``, found something damaged or missing; ``penstock doctor`` found
#: an error.
EXIT_DAMAGED = 3
#: A server does not hold its data directory any more: another one runs on it, or it is gone. A restart changes nothing.
EXIT_DIRECTORY_LOST = 4
#: A defect of Penstock. Source: sysexits.h, EX_SOFTWARE.
EXIT_DEFECT = 70
#: A signal ends a command with this plus its number, as shells count it: 130 for Ctrl-C, 143 for SIGTERM.
EXIT_SIGNAL = 128

#: What to do next, where the error's own message cannot know the commands.
_HINTS: tuple[tuple[type[PenstockError], str], ...] = (
    (NoSuchStreamError, "list streams with penstock stream list, create one with penstock stream create"),
    (NoSuchScopeError, "list scopes with penstock scope list, create one with penstock scope create"),
    (NoSuchReaderGroupError, "list reader groups with penstock group list"),
    (NoSuchTableError, "list tables with penstock table list, create one with penstock table create"),
    (StreamExistsError, "penstock stream create --exist-ok accepts the stream as it is"),
    (TableExistsError, "penstock table create --exist-ok accepts a table of the same shape"),
    (ScopeNotEmptyError, "show its contents with penstock scope describe"),
    (ControllerUnavailableError, "check the server with penstock ready; --uri or PENSTOCK_URI select another"),
)


class Interrupted(BaseException):
    """A signal asked the command to end. Like `KeyboardInterrupt` it is no `Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def fail(
    message: str,
    *,
    kind: str,
    as_json: bool,
    code: int = EXIT_FAILED,
    hint: str = "",
    details: dict[str, object] | None = None,
) -> typer.Exit:
    """Print `message`, and after it the `hint` what to do next; return the exit to raise.

    `kind`: the error's name; `details`: more fields; both are for programs. With `as_json` an error is a record of the
    type ``error`` on standard output.
    """
    if as_json:
        record: dict[str, object] = {"type": "error", "kind": kind, "message": message}
        if hint:
            record["hint"] = hint
        # `event`: the name that `type` had in lines of `standalone` before.
        text = json.dumps({**record, **(details or {}), "event": "error"}) + "\n"
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OutputError:
            pass  # The exit code says as much.
    else:
        sys.stderr.write(f"penstock: {message}\n" + (f"  {hint}\n" if hint else ""))
    return typer.Exit(code)


def hint_of(error: PenstockError) -> str:
    """Return what to do next about an error, where the error itself cannot know the commands."""
    return next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")


def code_of(error: PenstockError) -> int:
    """Return the exit code for an error: `EXIT_USAGE` where the command line itself is wrong."""
    from penstock.runtime.errors import SettingsError

    if isinstance(error, DataDirectoryLostError):
        return EXIT_DIRECTORY_LOST
    # Their subclasses are about data, ports and directories, not about words on the command line.
    return EXIT_USAGE if type(error) in (InvalidArgumentError, InvalidNameError, SettingsError) else EXIT_FAILED


@contextmanager
def exit_on_error(*, as_json: bool) -> Iterator[None]:
    """Turn errors that Penstock raises on purpose, errors of the operating system, and signals into exit codes.

    What standard output raises is handled by `main`, for all commands.
    """
    try:
        yield
    except PenstockError as error:
        raise fail(
            str(error), kind=type(error).__name__, as_json=as_json, code=code_of(error), hint=hint_of(error)
        ) from error
    except OSError as error:
        raise fail(_os_message(error), kind="OSError", as_json=as_json) from error
    except (KeyboardInterrupt, Interrupted) as error:
        raise typer.Exit(exit_code_of(error)) from error


def _os_message(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


def exit_code_of(interruption: KeyboardInterrupt | Interrupted) -> int:
    """Return the exit code for a command that a signal ended."""
    number = interruption.number if isinstance(interruption, Interrupted) else signal.SIGINT
    return EXIT_SIGNAL + int(number)


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Let SIGTERM interrupt what runs in the block, as Ctrl-C does, so that it can say how far it is."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class _Lines(logging.Formatter):
    """Formats the client's log records as lines of the command, without tracebacks."""

    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return f"  {type(error).__name__}: {error}"


def log_as_lines() -> None:
    """Let warnings of the client be lines on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("penstock: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def report_bug(error: Exception) -> int:
    """Say that `error` is a defect of Penstock, keep its traceback in a file, and return the exit code."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-defect-", suffix=".txt", delete=False) as kept:
        traceback.print_exception(error, file=kept)
    sys.stderr.write(
        f"penstock: this is a defect of Penstock: {type(error).__name__}: {error}\n"
        f"  please report it with {kept.name}\n"
    )
    return EXIT_DEFECT
