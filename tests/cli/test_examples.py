"""Every command shows examples in its help, and each example is a command line that parses."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from penstock.cli import COMMANDS, _app
from penstock.cli.examples import EXAMPLES
from support.command_line import run_command


def _walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield every command and every group by its words after ``penstock``."""
    for name, child in getattr(command, "commands", {}).items():
        yield " ".join((*path, name)), child
        yield from _walk(child, (*path, name))


ROOT: Any = get_command(_app(list(COMMANDS), is_overview=False))
EVERY = dict(_walk(ROOT))


def _lines_of_penstock(line: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of ``penstock`` in a line of a shell, without pipes and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|<>")
    lexer.whitespace_split = True
    words = iter([*lexer, "|"])
    call: list[str] = []
    for word in words:
        if word in ("<", ">"):
            next(words)
        elif word == "|":
            if call[:1] == ["penstock"]:
                yield call[1:]
            call = []
        else:
            call.append(word)


def _parse(arguments: list[str]) -> str:
    """Parse a command line as `penstock` does, and return the command's name. Raises what a wrong one raises."""
    command, path = ROOT, []
    while children := getattr(command, "commands", {}):
        path.append(arguments[0])
        command, arguments = children[arguments[0]], arguments[1:]
    with command.make_context(path[-1], list(arguments)):
        return " ".join(path)


def test_every_command_and_no_other_has_examples() -> None:
    """A command that is added needs examples; one that is removed takes its own with it."""
    assert set(EXAMPLES) == set(EVERY)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_the_help_ends_with_examples_that_parse(name: str) -> None:
    """Whole lines, as they can be copied; the first one calls this command."""
    shown = run_command(*name.split(), "--help").ok.stdout
    listed = [line.strip() for line in shown.partition("\n  Examples:\n")[2].splitlines()]
    assert listed == list(EXAMPLES[name])
    called = [_parse(call) for line in listed for call in _lines_of_penstock(line)]
    assert len(called) == len(listed)
    if not EVERY[name].hidden:
        assert called[0] == name or called[0].startswith(f"{name} "), called


@pytest.mark.parametrize(
    "wrong",
    ["penstock stream create", "penstock read shop/orders --form -1h", "echo x | penstock write a/b --rate many"],
)
def test_a_wrong_example_is_found(wrong: str) -> None:
    """Missing arguments, unknown options, and values of the wrong type do not parse."""
    (call,) = _lines_of_penstock(wrong)
    with pytest.raises(Exception, match=re.compile("missing|no such option|not a valid", re.IGNORECASE)):
        _parse(call)


def test_only_examples_with_yes_delete_without_confirmation() -> None:
    """The first example of a command that asks for confirmation lets it ask."""
    for name, command in EVERY.items():
        if any("--yes" in getattr(each, "opts", ()) for each in getattr(command, "params", ())):
            assert "--yes" not in EXAMPLES[name][0], name
