"""`sum_parts`: reads parts of chunks from long-term storage, and compares every block with its checksum.

Runs in any process with access to that storage; segment stores are not involved. A part is the layout of one chunk, or
of some of its blocks. A part with a problem is read again, after a new check of the storage itself: chunks of an
unmounted file system are missing as well, but not damaged.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from penstock.client.low_level import chunk_places_of
from penstock.client.reading.chunk_places import check_chunk_name
from penstock.model.block_checksums import verify_blocks
from penstock.model.errors import (
    STORAGE_AWAY,
    CorruptionError,
    InvalidArgumentError,
    NoSuchChunkError,
    PenstockError,
    StorageError,
    StorageRefusedError,
)
from penstock.runtime.bulk import for_each
from penstock.spark.options import StoreSettings
from penstock.spark.store import run_in_client

if TYPE_CHECKING:
    from penstock import aio
    from penstock.client.transport.chunk_layouts import SegmentLayout

#: Concurrent reads of parts, so that one is read while another is summed; and the length of one read.
PARTS_AT_ONCE = 4
READ_BYTES = 4 * 1024 * 1024


class Finding(StrEnum):
    """The state of a part. Names are those of ``penstock storage check``.

    Attributes:
        SOUND: every block matches its checksum.
        MISSING: the chunk does not exist.
        SHORT: it has fewer bytes than belong to its segment.
        UNREADABLE: storage fails to read it.
        DAMAGED: bytes of it differ from those written.
        AWAY: unknown: storage was unavailable for longer than the longest outage, or refuses requests.
    """

    SOUND = "sound"
    MISSING = "chunk_missing"
    SHORT = "chunk_short"
    UNREADABLE = "chunk_unreadable"
    DAMAGED = "block_damaged"
    AWAY = "storage_away"


@dataclass(frozen=True, slots=True)
class PartResult:
    """The result of one part.

    Attributes:
        offset: in the chunk, of the first byte with a problem.
        read_bytes: bytes read and compared.
        message: the problem.
    """

    finding: Finding
    offset: int = 0
    read_bytes: int = 0
    message: str = ""


def told_range(part: SegmentLayout) -> tuple[int, int]:
    """Return the byte range of a part in its chunk: whole blocks."""
    (chunk,) = part.chunks
    first = chunk.first_block * chunk.block_length
    return first, min(chunk.length, first + len(chunk.checksums) // 4 * chunk.block_length)


def sum_parts(store: StoreSettings, place: str, parts: Sequence[SegmentLayout]) -> list[PartResult]:
    """Return the state of each of `parts`; `place`: the place of long-term storage on this machine, if another one."""
    return run_in_client(store, partial(_sum_all, store, place, parts))


async def _sum_all(
    store: StoreSettings, place: str, parts: Sequence[SegmentLayout], client: aio.Client
) -> list[PartResult]:
    sums = _Sums(store, place, client)
    results: list[PartResult] = []
    for result in await for_each(parts, sums.check, PARTS_AT_ONCE):
        if isinstance(result, PenstockError):
            raise result
        results.append(result)
    return results


class _Sums:
    """The parts of one call, which share the measured time of a storage outage."""

    def __init__(self, store: StoreSettings, place: str, client: aio.Client) -> None:
        self._store = store
        self._place = place
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._progress_s = self._loop.time()
        self._away: PartResult | None = None

    async def check(self, part: SegmentLayout) -> PartResult:
        """Check a part, twice if there is a problem, until storage was unavailable for too long."""
        while self._away is None:
            try:
                result = await self._inspect(part, is_again=False)
                return result if result.finding is Finding.SOUND else await self._inspect(part, is_again=True)
            except (StorageError, InvalidArgumentError) as error:
                left_s = self._progress_s + self._store.outage_s_max - self._loop.time()
                if isinstance(error, StorageRefusedError | InvalidArgumentError) or left_s <= 0:
                    self._away = PartResult(Finding.AWAY, message=f"{type(error).__name__}: {error}")
                    break
                await asyncio.sleep(min(self._store.retry_interval_s, left_s))
        return self._away

    async def _inspect(self, part: SegmentLayout, *, is_again: bool) -> PartResult:
        """Check once. Raises `StorageError` and `InvalidArgumentError` for errors that do not concern this chunk."""
        (chunk,) = part.chunks
        check_chunk_name(chunk.name)
        place = await chunk_places_of(self._client).find(part.storage, self._place, is_again=is_again)
        first, end = told_range(part)
        checksums = struct.unpack(f">{len(chunk.checksums) // 4}I", chunk.checksums)
        step = max(READ_BYTES // chunk.block_length, 1) * chunk.block_length
        for start in range(first, end, step):
            wanted = min(step, end - start)
            try:
                data = await place.read(chunk.name, start, wanted)
            except NoSuchChunkError:
                message = f"the chunk is missing, its record says {chunk.length} bytes"
                return PartResult(Finding.MISSING, start, start - first, message)
            except STORAGE_AWAY:
                raise
            except StorageError as error:
                return PartResult(Finding.UNREADABLE, start, start - first, str(error))
            self._progress_s = self._loop.time()
            if len(data) < wanted:
                message = f"it ends after {start + len(data)} bytes, its record says {chunk.length}"
                return PartResult(Finding.SHORT, start + len(data), start - first, message)
            try:
                verify_blocks(
                    chunk.name, start, data, checksums, block_length=chunk.block_length, first_block=chunk.first_block
                )
            except CorruptionError as error:
                return PartResult(Finding.DAMAGED, error.offset, start - first + wanted, str(error))
        return PartResult(Finding.SOUND, end, end - first)
