"""Read-ahead of a table scan: one page at most, within a bound, and none without a consumer."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.client.common.deadline import Deadline, current_deadline, within
from penstock.client.settings import ClientSettings
from penstock.client.tables.table_scan import KeySpan, entry_pages
from penstock.model.errors import ConnectionLostError, CorruptionError, PenstockError
from penstock.model.segments import TableEntry, TablePage

PAGE_ENTRY_COUNT = 10
VALUE = bytes(100)
KEY_LENGTH = 2
PAGE_BYTES = PAGE_ENTRY_COUNT * (KEY_LENGTH + len(VALUE))


def key_of(number: int) -> bytes:
    return number.to_bytes(KEY_LENGTH, "big")


class SlowSegments:
    """Segments that hold every nth key. Answers about keys from `held_from` on wait for `gate`."""

    def __init__(self, names: list[str], key_count: int) -> None:
        self.keys = {
            name: [key_of(number) for number in range(at, key_count, len(names))] for at, name in enumerate(names)
        }
        self.asked: list[str] = []
        self.waiting = 0
        self.deadlines: list[Deadline | None] = []
        self.errors: dict[tuple[str, bytes], list[PenstockError]] = {}
        self.held_from = b"\xff\xff"
        self.gate = asyncio.Event()

    async def table_entries(self, segment: str, *, limit: int, first: bytes, last: bytes) -> TablePage:
        self.asked.append(segment)
        self.deadlines.append(current_deadline())
        if first >= self.held_from:
            self.waiting += 1
            try:
                await self.gate.wait()
            finally:
                self.waiting -= 1
        errors = self.errors.get((segment, first))
        if errors:
            raise errors.pop(0)
        found = [key for key in self.keys[segment] if first <= key <= last][:limit]
        return TablePage([TableEntry(key, VALUE, 1) for key in found], b"")


def scan(segments: SlowSegments, **settings: int) -> AsyncGenerator[Any, None]:
    cluster = SimpleNamespace(segments=segments, settings=ClientSettings(**settings))
    table = SimpleNamespace(names=list(segments.keys), of_table=nullcontext)
    span = KeySpan(key_of(0), b"\xff\xff", None)
    return entry_pages(cluster, table, span, PAGE_ENTRY_COUNT)  # type: ignore[arg-type, return-value]


async def several_rounds() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def _one(pages: AsyncIterator[Any]) -> AsyncIterator[list[TableEntry]]:
    yield await anext(pages)


async def test_the_next_page_is_requested_before_this_one_is_handed_out() -> None:
    """The application does not let the loop run while it works on a page, as in a plain loop over pages."""
    segments = SlowSegments(["only"], 45)
    asked = [len(segments.asked) async for _ in scan(segments)]
    # One page alone may be all that is wanted; of those after it the next one is under way.
    assert asked == [1, 3, 4, 5, 6]


async def test_no_more_than_one_page_of_each_partition_is_read_ahead() -> None:
    """However long the application takes for a page."""
    segments = SlowSegments(["a", "b", "c"], 300)
    handed_out = 0
    async for page in scan(segments):
        await several_rounds()
        handed_out += len(page)
        # Of each a page that is not all handed out yet, for another partition's next key decides, and a page ahead.
        assert len(segments.asked) * PAGE_ENTRY_COUNT <= handed_out + 2 * 3 * PAGE_ENTRY_COUNT + 3
    assert handed_out == 300
    assert len(segments.asked) == 3 * 11


@pytest.mark.parametrize(("page_count", "expected"), [(0, 0), (1, 1), (2, 2), (9, 3)])
async def test_read_ahead_over_all_partitions_is_bounded_in_bytes(page_count: int, expected: int) -> None:
    """Three partitions, and room for so many pages: no more is under way, and the scan is complete nevertheless."""
    segments = SlowSegments(["a", "b", "c"], 300)
    pages = scan(segments, table_scan_ahead_bytes_max=max(page_count * PAGE_BYTES, 1))
    # The third page of each is held back.
    segments.held_from = key_of(55)
    found: list[bytes] = []
    while len(found) < 58:
        found += [entry.key async for page in _one(pages) for entry in page]
    await several_rounds()
    assert segments.waiting == expected
    segments.gate.set()
    found += [entry.key async for page in pages for entry in page]
    assert found == list(map(key_of, range(300)))


async def test_an_error_of_the_next_page_comes_after_all_of_this_one() -> None:
    segments = SlowSegments(["only"], 60)
    damage = CorruptionError("only", 7, "a checksum does not match")
    segments.errors["only", key_of(30)] = [damage] * 2
    found = []

    async def work() -> None:
        async for page in scan(segments):
            found.extend(page)
            # The next one has failed long before it is asked for.
            await several_rounds()

    with pytest.raises(CorruptionError):
        await work()
    assert [entry.key for entry in found] == list(map(key_of, range(30)))


async def test_an_outage_between_two_pages_does_not_end_a_scan() -> None:
    """The page ahead was given up while the application was busy; the server is back when it asks."""
    segments = SlowSegments(["only"], 60)
    segments.errors["only", key_of(20)] = [ConnectionLostError("the server was away for too long")]
    found = []
    async for page in scan(segments):
        found += page
        await several_rounds()
    assert [entry.key for entry in found] == list(map(key_of, range(60)))


async def test_an_error_that_was_waited_for_is_reported_at_once() -> None:
    segments = SlowSegments(["only"], 60)
    segments.errors["only", key_of(20)] = [ConnectionLostError("the server was away for too long")]
    segments.held_from = key_of(20)
    pages = scan(segments)
    await anext(pages)
    await anext(pages)
    third = asyncio.ensure_future(anext(pages))
    await several_rounds()
    segments.gate.set()
    with pytest.raises(ConnectionLostError):
        await third
    assert segments.asked == ["only"] * 3


@pytest.mark.parametrize("ending", ["closed", "dropped", "cancelled"])
async def test_a_scan_that_ends_early_cancels_its_read_ahead(ending: str) -> None:
    segments = SlowSegments(["only"], 60)
    segments.held_from = key_of(20)
    pages = scan(segments)
    await anext(pages)
    await anext(pages)
    await several_rounds()
    assert segments.waiting == 1
    if ending == "closed":
        await pages.aclose()
    elif ending == "dropped":
        del pages
        gc.collect()
    else:
        third = asyncio.ensure_future(anext(pages))
        await several_rounds()
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
    await several_rounds()
    assert segments.waiting == 0
    assert not [task for task in asyncio.all_tasks() if task.get_name().startswith("scan ")]


async def test_a_page_ahead_has_the_deadline_of_the_call_it_is_read_in() -> None:
    segments = SlowSegments(["only"], 40)
    with within("scan all keys", 5.0, "a limit") as deadline:
        async for _ in scan(segments):
            pass
    assert segments.deadlines == [deadline] * 5
