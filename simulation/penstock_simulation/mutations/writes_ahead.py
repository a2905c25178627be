"""Planted bugs of writes that run while the writes before them are being recorded. See `catalog`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from penstock.model.errors import StorageError
from penstock.segmentstore.tier2 import chunked_storage, write_ahead
from penstock.segmentstore.tier2.storage_context import StorageContext
from penstock.segmentstore.tier2.write_ahead import TakeNext, _Begun, _WritesAhead
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


@contextmanager
def _count_before_the_record() -> Iterator[None]:
    original = write_ahead.write_segment_ahead

    async def write_segment_ahead(
        context: StorageContext,
        segment: str,
        offset: int,
        take: TakeNext,
        stored: Callable[[int], None],
        *,
        writes_max: int,
        chunk_length_max: int | None,
    ) -> int:
        counted = offset

        def count(length: int) -> None:
            nonlocal counted
            if length > counted:
                counted = length
                stored(length)

        def take_and_count(position: int) -> write_ahead.NextWrite | None:
            count(position)
            return take(position)

        return await original(
            context, segment, offset, take_and_count, count, writes_max=writes_max, chunk_length_max=chunk_length_max
        )

    with patched(chunked_storage, "write_segment_ahead", write_segment_ahead):
        yield


@contextmanager
def _record_behind_a_failure() -> Iterator[None]:
    original = _WritesAhead.next

    async def next_that_succeeds(self: _WritesAhead) -> Sequence[_Begun]:
        while True:
            try:
                return await original(self)
            except StorageError:
                self._begun.popleft()
                self._slots.release()

    with patched(_WritesAhead, "next", next_that_succeeds):
        yield


@contextmanager
def _record_as_they_end() -> Iterator[None]:
    original = _WritesAhead.next

    async def next_that_ended(self: _WritesAhead) -> Sequence[_Begun]:
        if not await original(self):
            return ()
        last = [begun for begun in self._begun if begun.task.done()][-1]
        self._begun.remove(last)
        self._begun.appendleft(last)
        return [last]

    with patched(_WritesAhead, "next", next_that_ended):
        yield


_AHEAD = replace(short_profile("writes ahead", "bytes"), storage="bucket", cache_bytes_min=32 * 1024)

WRITE_AHEAD_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "count what is written before it is recorded", "what counts as stored is recorded",
        _AHEAD, _count_before_the_record,
    ),
    Mutation(
        "record a write behind one that failed", "what is recorded has no gaps", _AHEAD, _record_behind_a_failure
    ),
    Mutation("record writes as they end", "records follow each other in order", _AHEAD, _record_as_they_end),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
