"""The guide of the command line: its sessions are played again, against a server that has nothing yet."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from penstock.cli import COMMANDS, failure
from penstock.testing import memory_server
from support.command_line import run_command
from support.shell_session import play, steps_of

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "guide" / "command-line.md"


@pytest.mark.parametrize(
    ("document", "step_count_min"),
    [("docs/guide/command-line.md", 25), ("docs/guide/jobs.md", 5), ("README.md", 3), ("docs/index.md", 3)],
)
def test_the_sessions_of_documents_are_true(
    document: str, step_count_min: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, as one session: what each command prints is what the document says it prints."""
    steps = list(steps_of(ROOT / document))
    assert len(steps) >= step_count_min
    monkeypatch.chdir(tmp_path)
    with memory_server() as server:
        for step in steps:
            printed = play(step.command, uri=server.uri, directory=tmp_path)
            assert _without_identities(printed) == _without_identities(step.output), step.command


def _without_identities(text: str) -> str:
    """Replace the identities of streams, which are random."""
    return re.sub(r"^  identity   [0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$", "  identity", text, flags=re.MULTILINE)


def test_the_guide_names_every_option_of_events_and_every_verb() -> None:
    """No option of `write`, `read` and `tail` is left out, none is invented; nor is a verb."""
    guide = GUIDE.read_text()
    told = set(re.findall(r"`(--[\w-]+)", guide))
    own: set[str] = set()
    for name in ("write", "read", "tail"):
        own |= set(re.findall(r"--[\w-]+", run_command(name, "--help").ok.stdout))
    everywhere = {"--help", "--json", "--uri", "--yes", "--install-completion", "--stream"}
    assert own - everywhere <= told
    described: set[str] = set()
    for noun, verb in (("stream", "describe"), ("stream", "cut"), ("transaction", "list")):
        described |= set(re.findall(r"--[\w-]+", run_command(noun, verb, "--help").ok.stdout))
    assert told <= own | everywhere | described
    for name, command in COMMANDS.items():
        if command.is_group and name == "bench":
            for verb in re.findall(r"^  ([\w-]+) ", run_command(name, "--help").stdout.partition("Commands:")[2], re.M):
                assert f"| `penstock bench {verb}` |" in guide
        elif command.is_group and name not in ("log", "storage"):
            row = next(line for line in guide.splitlines() if line.startswith(f"| `penstock {name}`"))
            verbs = run_command(name, "--help").stdout.partition("Commands:")[2]
            listed = set(re.findall(r"^  ([\w-]+) ", verbs, re.M))
            assert set(re.findall(r"`([\w-]+)`", row)) == listed, name


def test_the_guide_names_every_exit_code() -> None:
    """As they are in the code."""
    told = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", GUIDE.read_text(), re.M) for code in row.split(",")}
    own = {0, failure.EXIT_FAILED, failure.EXIT_USAGE, failure.EXIT_DAMAGED, failure.EXIT_DIRECTORY_LOST}
    own |= {failure.EXIT_DEFECT}
    assert told == own | {failure.EXIT_SIGNAL + number for number in (2, 15)}
