"""Manual pages of ``penstock``: one for the program, and one for each of its commands, from the command line itself."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from penstock.cli import COMMANDS, SECTIONS, _app
from penstock.cli.examples import EXAMPLES

#: Words that separate two uses in a usage line.
_OPTIONS = "[OPTIONS]"


def manual_pages(version: str, epoch_s: int) -> dict[str, str]:
    """Return the text of each page by its file name.

    Args:
        version: in the foot of each page.
        epoch_s: its date, in seconds.
    """
    root: Any = get_command(_app(list(COMMANDS), is_overview=False))
    foot = f'"{time.strftime("%Y-%m-%d", time.gmtime(epoch_s))}" "Penstock {version}" "Penstock"'
    pages = {"penstock.1": "\n".join(_overview(root, foot)) + "\n"}
    for name, command in COMMANDS.items():
        if not command.is_hidden:
            pages[f"penstock-{name}.1"] = "\n".join(_page(root.commands[name], name, foot)) + "\n"
    return pages


def roff(text: str) -> str:
    """Return text in which troff finds no request and no escape."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return re.sub(r"^([.'])", r"\\&\1", escaped, flags=re.MULTILINE)


def _paragraphs(text: str | None) -> Iterator[str]:
    """Yield the paragraphs of a help text. ``\\b`` marks one whose lines are kept."""
    for index, paragraph in enumerate((text or "").strip().split("\n\n")):
        # A heading begins a paragraph by itself.
        begin = [".PP"] if index else []
        lines = [line.strip() for line in paragraph.splitlines()]
        if lines and lines[0] == "\b":
            yield from (*begin, ".nf", *(roff(line) for line in lines[1:]), ".fi")
        elif lines:
            yield from (*begin, roff(" ".join(lines)))


def _overview(root: Any, foot: str) -> Iterator[str]:
    yield f".TH PENSTOCK 1 {foot}"
    yield from (".SH NAME", "penstock \\- durable, ordered, elastic streams for Python and Spark")
    yield from (".SH SYNOPSIS", ".B penstock", "[OPTIONS] COMMAND [ARGUMENTS]...")
    yield ".SH DESCRIPTION"
    yield from _paragraphs(root.help)
    for section in SECTIONS:
        yield f".SH {roff(section.upper())}"
        for name, place in COMMANDS.items():
            if place.section == section and not place.is_hidden:
                yield from (".TP", f".BR penstock\\-{roff(name)} (1)", roff(place.summary))
    yield ".SH ENVIRONMENT"
    yield from (".TP", ".B PENSTOCK_URI", "The controller of a client command that has no \\-\\-uri.")
    yield from (".TP", ".B PENSTOCK_CONFIG", "The settings file of a server that has no \\-\\-config.")
    yield from (".TP", ".B PENSTOCK_*", "Any setting of a server; two underscores divide the names of tables.")
    yield ".SH EXIT STATUS"
    yield from (".TP", ".B 0", "Success.", ".TP", ".B 1", "The command failed; standard error has the reason.")
    yield from (".TP", ".B 2", "The command line or a setting is wrong; nothing was changed.")


def _page(command: Any, name: str, foot: str) -> Iterator[str]:
    children: dict[str, Any] = getattr(command, "commands", {})
    summary = COMMANDS[name].summary.rstrip(".")
    yield f".TH PENSTOCK\\-{roff(name.upper())} 1 {foot}"
    yield from (".SH NAME", f"penstock\\-{roff(name)} \\- {roff(summary)}")
    yield ".SH SYNOPSIS"
    if children:
        yield from (f".B penstock {roff(name)}", "COMMAND [OPTIONS] [ARGUMENTS]...")
    else:
        yield from (f".B penstock {roff(name)}", roff(_usage(command)))
    yield ".SH DESCRIPTION"
    yield from _paragraphs(command.help or COMMANDS[name].summary)
    if children:
        yield ".SH COMMANDS"
        for child, path in _leaves(command, f"penstock {name}"):
            yield from (f'.SS "{roff(path)} {roff(_usage(child))}"', *_paragraphs(child.help), *_options(child))
    else:
        yield from (".SH OPTIONS", *_options(command))
    yield ".SH EXAMPLES"
    yield from (".nf", *(roff(line) for line in _examples(command, name)), ".fi")
    yield from (".SH SEE ALSO", ".BR penstock (1)")


def _leaves(group: Any, path: str) -> Iterator[tuple[Any, str]]:
    """Yield each visible command of a group and of the groups in it, with all words that call it."""
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if getattr(command, "commands", None):
            yield from _leaves(command, f"{path} {name}")
        else:
            yield command, f"{path} {name}"


def _examples(command: Any, name: str) -> Iterator[str]:
    if getattr(command, "commands", None):
        for _, path in _leaves(command, name):
            yield from EXAMPLES[path]
    else:
        yield from EXAMPLES[name]


def _usage(command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    return " ".join([_OPTIONS, *(_argument_name(one) for one in arguments)])


def _argument_name(argument: Any) -> str:
    name = str(argument.metavar or argument.name.upper())
    return name if argument.required else f"[{name}]"


def _options(command: Any) -> Iterator[str]:
    for one in command.params:
        if getattr(one, "hidden", False) or one.name == "help":
            continue
        if one.param_type_name == "argument":
            yield from (".TP", f".B {roff(_argument_name(one))}")
        else:
            names = ", ".join((*one.opts, *one.secondary_opts))
            value = "" if getattr(one, "is_flag", False) else f" {one.metavar or 'VALUE'}"
            yield from (".TP", f'.B "{roff(names + value)}"')
        yield roff(_explanation(one)) or "\\&"


def _explanation(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    default = parameter.default
    if isinstance(default, str | int | float) and not isinstance(default, bool) and default != "":
        text += f" Default: {default}."
    if parameter.envvar:
        text += f" Variable: {parameter.envvar}."
    return text
