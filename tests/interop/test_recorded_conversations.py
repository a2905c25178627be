"""What the Rust client and Pravega 0.13 said to each other: the same requests get the same kinds of answers here.

The requests of tests/data/conversations.txt are sent in order, on fresh segments of a real server; replies are compared
by kind and by every field that carries meaning. Recorded byte arrays are known by length: keys of one length are one
key, other bytes are made up. Times and messages are not compared.
"""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

import penstock.wire.commands as wire
from support.standalone_process import StandaloneProcess
from support.wire_client import WireClient

pytestmark = [pytest.mark.interop, pytest.mark.e2e]

SOURCE = Path(__file__).parents[1] / "data" / "conversations.txt"

RENAMED = {
    "segmentName": "segment",
    "highVersion": "high",
    "lowVersion": "low",
    "suggestedEntryCount": "suggested_count",
    "tableEntries": "entries",
    "updatedVersions": "versions",
}
#: Fields whose values are the server's own business: versions it speaks, times, texts.
NOT_COMPARED = {"high", "low", "last_modified", "server_stack_trace"}
ENTRY = re.compile(r"\(data=<(\d+) bytes>\), keyVersion=(-?\d+)\)=\(data=<(\d+) bytes>\)")
KEY = re.compile(r"\(data=<(\d+) bytes>\), keyVersion=(-?\d+)\)")
FIELD = re.compile(r"(\w+)=(<\d+ bytes>|\[[-\d, ]*\]|[^,()\[\]]*)")


def conversations() -> dict[str, list[str]]:
    """Return the lines of each conversation by its title."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in SOURCE.read_text().splitlines():
        if line.startswith("## "):
            lines = found.setdefault(line[3:], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def class_of(line: str) -> type[wire.WireCommand]:
    """Return the command named in upper case at a line's third character."""
    name = "".join(part.capitalize() for part in line[2:].split()[0].split("_"))
    found = getattr(wire, name)
    assert isinstance(found, type)
    return found


def fields_of(line: str) -> dict[str, str]:
    """Return the scalar fields of a line under the names of this project."""
    text = KEY.sub("", ENTRY.sub("", line)).replace("(entries=[", "(").partition(" (")[2]
    fields = {}
    for name, value in FIELD.findall(text):
        snake = re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), RENAMED.get(name, name))
        fields[snake] = value
    return fields


def entries_of(line: str) -> list[tuple[int, int, int]]:
    """Return (key length, version, value length) of the table entries in a line."""
    return [(int(key), int(version), int(value)) for key, version, value in ENTRY.findall(line)]


def value_of(text: str) -> object:
    """Return a field's value."""
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    if match := re.fullmatch(r"<(\d+) bytes>", text):
        return b"d" * int(match[1])
    if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        return uuid.UUID(text).bytes
    if text.startswith("["):
        return tuple(int(part) for part in text.strip("[]").split(",") if part.strip())
    return text


def request_of(line: str) -> wire.WireCommand:
    """Build the request that a line describes."""
    kind = class_of(line)
    fields = {name: value_of(text) for name, text in fields_of(line).items()}
    if "token" in kind.__dataclass_fields__:  # All commands are dataclasses.
        fields["token"] = ""
    if entries := entries_of(line):
        fields["entries"] = tuple(
            wire.TableKeyValue(b"k" * key, version, b"v" * value) for key, version, value in entries
        )
    elif keys := KEY.findall(line):
        fields["keys"] = tuple(wire.TableKey(b"k" * int(key), int(version)) for key, version in keys)
    known = kind.__dataclass_fields__  # As above.
    return kind(**{name: value for name, value in fields.items() if name in known})


def assert_same(line: str, reply: wire.WireCommand) -> None:
    """Compare a reply with the recorded one."""
    assert type(reply) is class_of(line), f"{reply} instead of {line}"
    is_table_page = isinstance(reply, wire.TableEntriesDeltaRead)
    if isinstance(reply, wire.TableEntriesDeltaRead):
        got = sorted((len(entry.key), entry.version, len(entry.value)) for entry in reply.entries)
        assert got == sorted(entries_of(line))
    for name, text in fields_of(line).items():
        # An empty page ends the reading; where it says it ended is not inspected by clients (wire-protocol 6.5).
        is_end = is_table_page and name == "last_position" and not entries_of(line)
        if name in NOT_COMPARED or name == "entries" or is_end:
            continue
        expected, actual = value_of(text), getattr(reply, name)
        if name == "data":
            expected, actual = len(str(expected)) - 3, len(actual)
        assert actual == expected, f"{name} of {reply}, recorded: {line}"


def meanwhile(client: WireClient, line: str) -> None:
    """Do what another client did: create a segment, or append to one."""
    what, segment, *length = line[2:].split()
    if what == "create":
        client.ask(wire.CreateSegment(client.next_id(), segment, 0, 0, "", 0), wire.SegmentCreated)
        return
    writer, data = uuid.uuid4().bytes, b"m" * int(length[0])
    client.ask(wire.SetupAppend(client.next_id(), writer, segment, ""), wire.AppendSetup)
    client.ask(wire.AppendBlockEnd(writer, len(data), data, 1, 1, client.next_id()), wire.DataAppended)


@pytest.mark.parametrize("title", list(conversations()))
def test_recorded_requests_get_the_recorded_kinds_of_answers(server: StandaloneProcess, title: str) -> None:
    """In order, on one connection, each reply awaited as the Rust client does."""
    lines = conversations()[title]
    compared = 0
    with (
        WireClient(server.segment_store_port, greet=False) as client,
        WireClient(server.segment_store_port) as other,
    ):
        if not any(line.startswith("> HELLO") for line in lines):
            client.ask(wire.Hello(15, 5), wire.Hello)
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            if line.startswith("* "):
                meanwhile(other, line)
            elif line.startswith("> "):
                assert following.startswith("< ")
                assert_same(following, client.ask(request_of(line)))
                compared += 1
    assert compared >= 3
