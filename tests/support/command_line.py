"""Runs the `penstock` command in this process: what it printed, and its exit code."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from penstock.cli import main


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> dict[str, object]:
        """The one JSON document that it printed."""
        (line,) = self.stdout.splitlines()
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    @property
    def lines(self) -> list[str]:
        """What it printed, by line."""
        return self.stdout.splitlines()

    @property
    def ok(self) -> Ran:
        """This, if the command succeeded and complained of nothing."""
        assert (self.code, self.stderr) == (0, ""), self
        return self


class _Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def _without_test_variables() -> Iterator[None]:
    """Remove the variables that configure tests: the command refuses a variable that is no setting."""
    removed = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("PENSTOCK_TEST_")}
    try:
        yield
    finally:
        os.environ.update(removed)


def run_command(
    *arguments: str, stdin: bytes = b"", uri: str | None = None, is_terminal: bool = False, is_screen: bool = False
) -> Ran:
    """Run ``penstock`` with `arguments`. `uri`: the server that `PENSTOCK_URI` names.

    `is_terminal`: the input is a terminal. `is_screen`: the output is a terminal.
    """
    source = io.TextIOWrapper(_Terminal(stdin) if is_terminal else io.BytesIO(stdin), encoding="utf-8")
    kind = _Terminal if is_screen else io.BytesIO
    output = io.TextIOWrapper(kind(), encoding="utf-8", write_through=True)
    errors = io.TextIOWrapper(kind(), encoding="utf-8", write_through=True)
    environment = {} if uri is None else {"PENSTOCK_URI": uri}
    code: object = 0
    with (
        mock.patch.object(sys, "stdin", source),
        mock.patch.object(sys, "stdout", output),
        mock.patch.object(sys, "stderr", errors),
        mock.patch.dict(os.environ, environment),
        _without_test_variables(),
        # The server is in this process as well, and what it logs is not the command's.
        mock.patch("penstock.cli.session.log_as_lines"),
    ):
        try:
            main(list(arguments))
        except SystemExit as end:
            code = end.code or 0
    assert isinstance(code, int)
    printed, complained = (each.buffer.getvalue().decode() for each in (output, errors))
    return Ran(code, printed, complained)
