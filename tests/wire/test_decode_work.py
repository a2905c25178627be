"""What the decoding of one frame costs, for every command and the largest frame: counted, not timed.

Counted are lines of Python, and bytes of text that the slow decoder of modified UTF-8 gets. With the cost of each, as
measured on the machine of the benchmarks, no request may cost more than 10 ms.
"""

from __future__ import annotations

import dataclasses
import random
import struct
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from penstock.model.errors import ProtocolError
from penstock.wire import fields, text
from penstock.wire.codec import FRAME_LENGTH_MAX, HEADER_LENGTH, decode, decode_request
from penstock.wire.commands import COMMANDS, OWN_COMMANDS, Reply, StorageChunksListed, WireCommand
from penstock.wire.layout import LAYOUTS
from penstock.wire.text import MODIFIED_LENGTH_MAX, TEXT_LENGTH_MAX
from wire.test_list_limits import kind_of, smallest_element

ALL = [*COMMANDS, *OWN_COMMANDS]
REQUESTS = [command for command in ALL if not issubclass(command, Reply)]
#: The longest list of all is decoded only by administration tools: `test_list_limits` has its limit.
REPLIES = [command for command in ALL if issubclass(command, Reply) and command is not StorageChunksListed]
PAYLOAD_LENGTH_MAX = FRAME_LENGTH_MAX - HEADER_LENGTH
#: Costs in microseconds.
LINE_US, MODIFIED_BYTE_US = 0.05, 0.09
REQUEST_US_MAX = 10_000
#: Replies are decoded by clients, each on its own loop.
REPLY_US_MAX = 50_000
#: A character above U+FFFF, as Java writes it, and the first half of one.
PAIR, HALF = b"\xed\xa0\xbd\xed\xb8\x80", b"\xed\xa0\xbd"


class Work:
    """Counts the work of what runs inside of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.line_count = 0
        self.modified_bytes = 0
        slow = text._decode_modified

        def decode_modified(encoded: bytes) -> str:
            self.modified_bytes += len(encoded)
            return slow(encoded)

        monkeypatch.setattr(text, "_decode_modified", decode_modified)

    @property
    def cost_us(self) -> float:
        return self.line_count * LINE_US + self.modified_bytes * MODIFIED_BYTE_US

    def __enter__(self) -> Work:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        self.line_count += event == "line"
        return self._trace


def frames_of(command_type: type[WireCommand]) -> Iterator[tuple[str, bytes]]:
    """Yield payloads of the largest frame that make the decoder of a command work for long."""
    yield "zeros", bytes(PAYLOAD_LENGTH_MAX)
    yield "ones", b"\xff" * PAYLOAD_LENGTH_MAX
    yield "noise", random.Random(command_type.TYPE).randbytes(PAYLOAD_LENGTH_MAX)
    for filler in (b"a", PAIR, HALF, PAIR[3:], b"\xc0\x80", b"\xc3\xa4"):
        for length_max in (TEXT_LENGTH_MAX, MODIFIED_LENGTH_MAX):
            yield f"texts of {length_max} bytes of {filler!r}", filled(command_type, filler, length_max)


def filled(command_type: type[WireCommand], filler: bytes, length_max: int) -> bytes:
    """Return a payload with the longest texts, of a few bytes repeated, and lists of the most elements."""
    out = bytearray()
    text_kind = kind_of(fields.Text)
    names_kind = kind_of(fields.SourceNames)
    for field in LAYOUTS[command_type.TYPE]._fields:
        kind = field[1]
        if kind is text_kind:
            value = filler * (length_max // len(filler))
            out += struct.pack(">H", len(value)) + value
        elif kind is names_kind:
            name = filler * (fields.MERGE_SOURCES_NON_ASCII_BYTES_MAX // fields.MERGE_SOURCES_MAX // len(filler))
            out += struct.pack(">i", fields.MERGE_SOURCES_MAX)
            out += (struct.pack(">H", len(name)) + name) * fields.MERGE_SOURCES_MAX
        elif kind.count_max is not None:
            out += struct.pack(">i", kind.count_max) + smallest_element(kind) * kind.count_max
        else:
            out += bytes(kind.length_min)
    return bytes(out.ljust(PAYLOAD_LENGTH_MAX, b"\0"))


def work_of(command_type: type[WireCommand], payload: bytes, monkeypatch: pytest.MonkeyPatch) -> Work:
    decoder = decode if issubclass(command_type, Reply) else decode_request
    with monkeypatch.context() as patch, Work(patch) as work:
        try:
            decoder(command_type.TYPE, payload)
        except ProtocolError:
            pass
    return work


@pytest.mark.parametrize("command_type", REQUESTS, ids=lambda command: command.__name__)
def test_no_frame_of_a_request_costs_more_than_a_bounded_number_of_steps(
    command_type: type[WireCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, payload in frames_of(command_type):
        work = work_of(command_type, payload, monkeypatch)
        assert work.cost_us <= REQUEST_US_MAX, (name, work.line_count, work.modified_bytes)


@pytest.mark.parametrize("command_type", REPLIES, ids=lambda command: command.__name__)
def test_no_reply_costs_more_than_its_limits_of_elements_and_texts(
    command_type: type[WireCommand], monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = filled(command_type, PAIR, MODIFIED_LENGTH_MAX)
    work = work_of(command_type, payload, monkeypatch)
    assert work.cost_us <= REPLY_US_MAX, (work.line_count, work.modified_bytes)


def test_the_largest_lists_are_among_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame that is refused at once shows nothing: those of texts that fit are decoded whole."""
    for command_type in REQUESTS:
        payload = filled(command_type, b"a", MODIFIED_LENGTH_MAX)
        decoded = decode_request(command_type.TYPE, payload)
        for field, (name, kind, _) in zip(
            dataclasses.fields(command_type), LAYOUTS[command_type.TYPE]._fields, strict=True
        ):
            assert field.name == name
            if kind.count_max is not None:
                assert len(getattr(decoded, name)) == kind.count_max
