"""Containers that a process opens at the same time read each slot of a journal once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import cast

import pytest

from penstock.model.errors import StorageError
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier1.object_log.shared_slots import SharedSlots

JOURNAL = bytes(16)
WINDOW = 4


class Slots:
    """A bucket whose answers to reads of slots are given by the test."""

    def __init__(self) -> None:
        self.reads: list[tuple[int, asyncio.Future[bytes | None]]] = []

    async def slot_start(self, journal: bytes, slot: int, length: int) -> bytes | None:
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self.reads.append((slot, answer))
        return await answer


def shared(slots: Slots) -> SharedSlots:
    return SharedSlots(cast("LogBucket", slots), ObjectLogSettings(open_slots_max=WINDOW))


async def begun(*heads: Awaitable[bytes | None]) -> list[asyncio.Future[bytes | None]]:
    tasks: list[asyncio.Future[bytes | None]] = [asyncio.ensure_future(head) for head in heads]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_callers_share_a_read_and_one_that_is_cancelled_does_not_end_it() -> None:
    slots = Slots()
    heads = shared(slots)
    with heads.used():
        first, second = await begun(heads.head(JOURNAL, 7), heads.head(JOURNAL, 7))
        first.cancel()
        (read,) = slots.reads
        read[1].set_result(b"head")
        assert await second == b"head"
        assert await heads.head(JOURNAL, 7) == b"head"
    assert len(slots.reads) == 1
    assert heads.kept_count == 0


@pytest.mark.parametrize("outcome", [None, StorageError("503")])
async def test_a_slot_that_is_free_or_not_readable_is_read_again(outcome: StorageError | None) -> None:
    slots = Slots()
    heads = shared(slots)
    with heads.used():
        (first,) = await begun(heads.head(JOURNAL, 0))
        if outcome is None:
            slots.reads[0][1].set_result(None)
            assert await first is None
        else:
            slots.reads[0][1].set_exception(outcome)
            with pytest.raises(StorageError, match="503"):
                await first
        await asyncio.sleep(0)
        (again,) = await begun(heads.head(JOURNAL, 0))
        slots.reads[1][1].set_result(b"created since")
        assert await again == b"created since"


async def test_the_number_of_slots_kept_is_bounded_and_one_with_callers_is_not_dropped() -> None:
    slots = Slots()
    heads = shared(slots)
    with heads.used():
        (slow,) = await begun(heads.head(JOURNAL, 0))
        for slot in range(1, 5 * WINDOW):
            (task,) = await begun(heads.head(JOURNAL, slot))
            slots.reads[-1][1].set_result(b"%d" % slot)
            assert await task == b"%d" % slot
            assert heads.kept_count <= 2 * WINDOW + 1
        slots.reads[0][1].set_result(b"slow")
        assert await slow == b"slow"


async def test_reads_end_with_the_last_open_not_with_an_earlier_one() -> None:
    slots = Slots()
    heads = shared(slots)
    with heads.used():
        with heads.used():
            (read,) = await begun(heads.head(JOURNAL, 0))
        assert heads.kept_count == 1
        read.cancel()
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert slots.reads[0][1].cancelled()
