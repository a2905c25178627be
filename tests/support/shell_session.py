"""Sessions at a shell, as the guides show them: read from a document, and played again.

`penstock` runs in this process, everything else of a line in `sh`. So a session costs no process for each command.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from support.command_line import run_command


@dataclass(frozen=True, slots=True)
class Step:
    """A typed line, and its output on the screen."""

    command: str
    output: str


def steps_of(document: Path, mark: str = "session") -> Iterator[Step]:
    """Yield the steps of the ``console`` blocks that a document marks by ``<!-- session -->``, as one session."""
    text = document.read_text()
    for block in re.findall(rf"<!-- {mark} -->\n+```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            while command.endswith("\\"):
                more, _, output = output.partition("\n")
                command = command[:-1] + more.removeprefix("> ")
            yield Step(command, output)


def play(command: str, *, uri: str, directory: Path) -> str:
    """Run a line and return what it prints: standard output, then standard error."""
    if "penstock " not in command:
        return _shell(command, b"", directory).decode()
    before, inside, after = _around_penstock(command)
    ran = run_command(*shlex.split(inside), stdin=_shell(before, b"", directory) if before else b"", uri=uri)
    printed = _shell(after, ran.stdout.encode(), directory).decode() if after else ran.stdout
    return printed + ran.stderr


def _shell(command: str, given: bytes, directory: Path) -> bytes:
    return subprocess.run(command, shell=True, cwd=directory, input=given, capture_output=True, check=True).stdout


def _around_penstock(command: str) -> tuple[str, str, str]:
    """Split ``a | penstock b | c`` into its three parts, either of the outer two perhaps empty."""
    parts = [part.strip() for part in re.split(r" \| (?=penstock )|(?<=[^|]) \| ", command)]
    own = next(index for index, part in enumerate(parts) if part.startswith("penstock "))
    return " | ".join(parts[:own]), parts[own].removeprefix("penstock "), " | ".join(parts[own + 1 :])
