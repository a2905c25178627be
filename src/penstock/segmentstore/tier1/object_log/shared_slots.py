"""`SharedSlots`: reads each slot once for all containers that a process opens at the same time.

A slot has frames of many containers. After the end of a server its successor opens all of them at once, and each open
reads the same slots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings

#: Slots that are kept, in windows of an open: containers in other places of a journal read again what is dropped.
_WINDOWS_KEPT = 2

_Head = asyncio.Task[bytes | None]


class SharedSlots:
    """Keeps the first bytes of slots while an open runs.

    What is in a slot never changes. A slot that was found to be free is read again by the next caller, except by one
    that came before the answer did: its open finds out when it creates a seal there.
    """

    def __init__(self, bucket: LogBucket, settings: ObjectLogSettings) -> None:
        self._bucket = bucket
        self._length = settings.read_head_bytes
        self._kept_max = _WINDOWS_KEPT * settings.open_slots_max
        self._heads: dict[tuple[bytes, int], _Head] = {}
        self._open_count = 0

    @property
    def kept_count(self) -> int:
        """Slots that are kept, or being read."""
        return len(self._heads)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Keep what is read until no block like this one runs any more."""
        self._open_count += 1
        try:
            yield
        finally:
            self._open_count -= 1
            if not self._open_count:
                heads, self._heads = self._heads, {}
                for head in heads.values():
                    head.cancel()

    async def head(self, journal: bytes, slot: int) -> bytes | None:
        """Return the first bytes of a slot; None if it is free. Call it within `used`. Raises `StorageError`."""
        place = journal, slot
        head = self._heads.get(place)
        if head is None:
            reading = self._bucket.slot_start(journal, slot, self._length)
            head = self._heads[place] = asyncio.get_running_loop().create_task(reading)
            head.add_done_callback(lambda ended: self._ended(place, ended))
            if len(self._heads) > self._kept_max:
                self._drop_oldest()
        # It has several callers: one that is cancelled must not end it.
        return await asyncio.shield(head)

    def _ended(self, place: tuple[bytes, int], head: _Head) -> None:
        """Forget a read that found nothing to keep. An error goes to its callers; there may be none any more."""
        if (head.cancelled() or head.exception() is not None or head.result() is None) and (
            self._heads.get(place) is head
        ):
            del self._heads[place]

    def _drop_oldest(self) -> None:
        """Drop the oldest slot that has been read: one that is being read may have callers."""
        for place, head in self._heads.items():
            if head.done():
                del self._heads[place]
                return
