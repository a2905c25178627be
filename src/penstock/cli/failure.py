"""How a command ends when it does not end well: a line or two, or JSON; never a traceback. The exit codes are here.

They are told to users in ``docs/guide/command-line.md``.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import typer

from penstock.model.errors import (
    ControllerUnavailableError,
    NoSuchReaderGroupError,
    NoSuchScopeError,
    NoSuchStreamError,
    NoSuchTableError,
    PenstockError,
    ScopeNotEmptyError,
)

#: Penstock, or the server, refused or failed; the message says what was tried and what to do.
EXIT_FAILED = 1
#: The command line itself is wrong, or something needs ``--yes``.
EXIT_USAGE = 2
#: ``penstock storage check``, or ``penstock verify``, found something damaged or missing.
EXIT_DAMAGED = 3
#: A defect of Penstock. Source: sysexits.h, EX_SOFTWARE.
EXIT_DEFECT = 70
#: A signal ends a command with this plus its number, as shells count it: 130 for Ctrl-C, 143 for SIGTERM.
EXIT_SIGNAL = 128

#: What to do next, where the error's own message cannot know the commands.
_HINTS: tuple[tuple[type[PenstockError], str], ...] = (
    (NoSuchStreamError, "penstock stream list shows what there is, penstock stream create makes one"),
    (NoSuchScopeError, "penstock scope list shows what there is, penstock scope create makes one"),
    (NoSuchReaderGroupError, "penstock group list shows what there is"),
    (NoSuchTableError, "penstock table list shows what there is, penstock table create makes one"),
    (ScopeNotEmptyError, "penstock scope describe shows what is in it"),
    (ControllerUnavailableError, "penstock ready tells whether a server serves; --uri or PENSTOCK_URI name another"),
)


class Interrupted(BaseException):
    """A signal asked the command to end. Like `KeyboardInterrupt` it is no `Exception`."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def fail(
    message: str, *, kind: str, as_json: bool, code: int = EXIT_FAILED, details: dict[str, object] | None = None
) -> typer.Exit:
    """Print `message` and return the exit to raise. `kind` is the error's name, `details` more fields, for programs."""
    if as_json:
        sys.stdout.write(json.dumps({"event": "error", "kind": kind, "message": message, **(details or {})}) + "\n")
        sys.stdout.flush()
    else:
        sys.stderr.write(f"penstock: {message}\n")
    return typer.Exit(code)


def message_of(error: PenstockError) -> str:
    """Return what an error says, and where that helps the command to go on with."""
    hint = next((hint for kind, hint in _HINTS if isinstance(error, kind)), "")
    return f"{error}\n  {hint}" if hint else str(error)


@contextmanager
def failures_told(*, as_json: bool) -> Iterator[None]:
    """Turn errors that Penstock raises on purpose, signals, and a reader of the output that went into exit codes.

    An output that nobody reads any more is no error: whoever read it has what it wanted, as `head` has.
    """
    try:
        yield
        sys.stdout.flush()
    except PenstockError as error:
        raise fail(message_of(error), kind=type(error).__name__, as_json=as_json) from error
    except BrokenPipeError:
        forget_output()
        raise typer.Exit(0) from None
    except OSError as error:
        forget_output()
        raise fail(f"{error.strerror or error}", kind="OSError", as_json=False) from error
    except (KeyboardInterrupt, Interrupted) as error:
        raise typer.Exit(exit_code_of(error)) from error


def exit_code_of(interruption: KeyboardInterrupt | Interrupted) -> int:
    """Return the exit code for a command that a signal ended."""
    number = interruption.number if isinstance(interruption, Interrupted) else signal.SIGINT
    return EXIT_SIGNAL + int(number)


def forget_output() -> None:
    """Let what is still in the buffer of standard output go nowhere: at exit Python would fail on it once more."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # Not a file of this process.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


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
    """What the client logs, as lines of the command. A traceback helps nobody at a shell."""

    def formatException(self, ei: object) -> str:
        error = ei[1] if isinstance(ei, tuple) else None
        return f"  {type(error).__name__}: {error}"


def log_as_lines() -> None:
    """Let warnings of the client be lines on standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines("penstock: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def tell_defect(error: Exception) -> int:
    """Say that `error` is a defect of Penstock, keep its traceback in a file, and return the exit code."""
    with tempfile.NamedTemporaryFile("w", prefix="penstock-defect-", suffix=".txt", delete=False) as kept:
        traceback.print_exception(error, file=kept)
    sys.stderr.write(
        f"penstock: this is a defect of Penstock: {type(error).__name__}: {error}\n"
        f"  please report it with {kept.name}\n"
    )
    return EXIT_DEFECT
