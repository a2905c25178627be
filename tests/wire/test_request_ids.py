"""Ids of wire requests show the id of the client's call that they belong to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from penstock.wire.commands import WireCommand
from penstock.wire.connection import ConnectionSettings, WireConnection
from penstock.wire.request_ids import TAG_BITS, request_tag, tag_of, tag_text, tagged, text_of


@pytest.fixture
def in_call() -> Iterator[None]:
    """The call of a client with the id 4711."""
    token = request_tag.set(tag_of("4711"))
    yield
    request_tag.reset(token)


@pytest.mark.parametrize("text", ["0", "4711", str(2**TAG_BITS - 1)])
def test_a_short_decimal_id_is_passed_on_whole(text: str) -> None:
    token = request_tag.set(tag_of(text))
    wire_id = tagged(5)
    request_tag.reset(token)
    assert 0 < wire_id < 2**63
    assert text_of(wire_id) == tag_text(tag_of(text)) == text


@pytest.mark.parametrize("text", [str(2**TAG_BITS), "-1", "007", "7" * 19, "9" * 4000, "order-17", "é", "٣"])
def test_another_id_is_passed_on_as_a_hash(text: str) -> None:
    token = request_tag.set(tag_of(text))
    wire_id = tagged(5)
    request_tag.reset(token)
    assert 0 < wire_id < 2**63
    assert text_of(wire_id) == tag_text(tag_of(text))
    assert len(text_of(wire_id)) == 11
    assert text_of(wire_id).startswith("~")


def test_the_hash_of_an_id_never_changes() -> None:
    """Controllers and stores of several versions log the same one."""
    assert tag_text(tag_of("order-17")) == "~83a428f80c"


def test_without_a_call_the_id_is_the_number() -> None:
    assert tagged(5) == 5
    assert text_of(5) == "5"
    assert tag_of("") == 0


def test_the_id_of_another_peer_is_written_as_a_number() -> None:
    assert [text_of(each) for each in (-1, 0, 3 << 32, 2**62 - 1, -(2**63))] == [
        "-1", "0", str(3 << 32), str(2**62 - 1), str(-(2**63)),
    ]  # fmt: skip


async def test_no_two_requests_in_flight_have_one_id(in_call: None) -> None:
    """The number has 21 bits: after two million requests of one call it begins again."""
    connection = WireConnection("store:6000", ConnectionSettings())
    first = connection.next_request_id()
    waiting: asyncio.Future[WireCommand] = asyncio.get_running_loop().create_future()
    connection._futures[first] = waiting
    connection._last_request_id += 2**21 - 1
    second = connection.next_request_id()
    assert second != first
    assert text_of(second) == text_of(first) == "4711"
