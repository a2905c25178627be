"""How a command fails: one or two lines on standard error, or JSON on standard output; never a traceback."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from penstock.model.errors import PenstockError

EXIT_FAILED = 1


def fail(message: str, *, kind: str, as_json: bool) -> typer.Exit:
    """Print `message` and return the exit to raise. `kind` is the error's name, for programs."""
    if as_json:
        sys.stdout.write(json.dumps({"event": "error", "kind": kind, "message": message}) + "\n")
        sys.stdout.flush()
    else:
        sys.stderr.write(f"penstock: {message}\n")
    return typer.Exit(EXIT_FAILED)


@contextmanager
def failures_told(*, as_json: bool) -> Iterator[None]:
    """Turn the errors that Penstock raises on purpose into messages and exit code 1."""
    try:
        yield
    except PenstockError as error:
        raise fail(str(error), kind=type(error).__name__, as_json=as_json) from error
