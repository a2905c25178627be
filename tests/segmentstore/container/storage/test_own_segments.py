"""The container's own segments in long-term storage: their records lie in its log, and need no table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from penstock.model.errors import StorageError
from penstock.model.segments import Buffer, TableEntry, TablePage, TableRemoval, TableUpdate
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.container.storage.container_storage import storage_metadata_segment
from penstock.segmentstore.container_settings import OrphanSettings
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock.segmentstore.tier2.storage_check import CheckedContainer, StorageCheck
from support.containers import QUIET, FaultyChunks, Incarnations, append, evict_all, pause_writer, read_all

NAMES = [f"s/t/{number}.#epoch.0" for number in range(4)]
OWN = "_system/containers/"


class HalfWrites(FaultyChunks):
    """Writes half of the bytes of the n-th change of one of the container's own chunks, and fails."""

    def __init__(self, *, supports_append: bool) -> None:
        super().__init__(MemoryChunkStorage(supports_append=supports_append))
        self.at = -1
        self.count = 0

    def strikes(self, name: str) -> bool:
        self.count += name.startswith(OWN)
        return name.startswith(OWN) and self.count - 1 == self.at

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        if not self.strikes(name):
            return await super().create_with_content(name, data)
        whole = b"".join(data)
        await super().create_with_content(name, [whole[: len(whole) // 2 or 1]])
        raise StorageError("half of it was written")

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        if not self.strikes(name):
            return await super().write(name, offset, data)
        whole = b"".join(data)
        await super().write(name, offset, [whole[: len(whole) // 2]])
        raise StorageError("half of it was written")


async def check_all(container: SegmentContainer, lives: Incarnations) -> None:
    """Compare every chunk that a record leads to with its checksums."""
    tables = [storage._context.table for storage in (container.storage._system, container.storage._user)]
    checked = CheckedContainer(0, container.epoch, container.storage.orphans.mark, tables)
    check = StorageCheck(lives.chunks, [checked], runtime=lives.runtime)
    await check.survey()
    await check.verify()
    assert check.report.problems == []
    assert check.report.checked_chunk_count


async def story(container: SegmentContainer, written: dict[str, bytes]) -> int:
    """Write to segments and a table and flush, some times; return how often that failed, and was tried again."""
    failure_count = 0
    table = await container.create("s/table", flags=SegmentFlags.TABLE)
    for name in NAMES:
        await container.create(name)
        written[name] = b""
    for turn in range(3):
        for name in NAMES:
            await append(container, name, name.encode() * (turn + 1))
            written[name] += name.encode() * (turn + 1)
        await container.tables.put(table, [TableUpdate(b"%d" % turn, b"value")], -1)
        for _ in range(2):
            try:
                await container.flush()
                break
            except StorageError:
                failure_count += 1
    return failure_count


async def half_written(at: int, supports_append: bool) -> tuple[int, int]:
    """Let the change number `at` come to a half, and restart. Return how many changes there were, and failures."""
    lives = Incarnations(replace(QUIET, orphans=OrphanSettings(sweep_names=3, sweep_pause_s=0.0)))
    lives.chunks = chunks = HalfWrites(supports_append=supports_append)
    container = await lives.start()
    await pause_writer(container)
    chunks.at = at
    written: dict[str, bytes] = {}
    failure_count = await story(container, written)
    count = chunks.count
    container = await lives.restart(container)
    await pause_writer(container)
    await container.storage.orphans.sweep(container.epoch, container.storage.unrecorded)
    evict_all(container)
    for name in NAMES:
        assert await read_all(container, await container.find(name)) == written[name]
    assert len((await container.tables.entries(await container.find("s/table"), limit=10, token=b"")).entries) == 3
    await container.flush()
    await check_all(container, lives)
    await lives.close()
    return count, failure_count


@pytest.mark.parametrize("supports_append", [True, False])
async def test_a_half_written_change_of_its_own_segments_is_never_read(supports_append: bool) -> None:
    """SS-199: any of them; then a restart, and a sweep. Nothing is lost, and nothing of the half comes back."""
    count, _ = await half_written(-1, supports_append)
    assert count >= 3
    for at in range(count):
        assert (await half_written(at, supports_append))[1] == 1


class Unusable:
    """A table of records that fails every request."""

    async def get(self, keys: Sequence[bytes]) -> Sequence[TableEntry | None]:
        raise AssertionError(keys)

    async def commit(self, updates: Sequence[TableUpdate], removals: Sequence[TableRemoval]) -> Sequence[int]:
        raise AssertionError(updates)

    async def page(self, *, limit: int, token: bytes = b"", first: bytes = b"", last: bytes | None = None) -> TablePage:
        raise AssertionError(first)


async def test_its_own_segments_are_written_and_truncated_without_the_table_of_records() -> None:
    """SS-235: whose own log is one of them."""
    lives = Incarnations(replace(QUIET, rollover_bytes_min=1))
    container = await lives.start()
    await pause_writer(container)
    await story(container, {})
    storage = container.storage
    own = container.segment(storage_metadata_segment(0))
    container.storage._user._context.table = Unusable()
    with pytest.raises(AssertionError):
        await storage.of(container.segment(NAMES[0])).truncate(NAMES[0], 1)
    stored = [segment async for segment in storage._system.list_segments()]
    assert own.name in [segment.name for segment in stored]
    for segment in stored:
        assert segment.name.startswith(OWN)
        before = await storage._system.read(segment.name, segment.start_offset, 1 << 20)
        end = await storage._system.write(segment.name, segment.length, [b"more"])
        cut = (segment.start_offset + end) // 2
        await storage._system.truncate(segment.name, cut)
        assert await storage._system.read(segment.name, cut, 1 << 20) == (before + b"more")[cut - end :]
        await storage._system.truncate(segment.name, end)
        assert await storage._system.chunks_of(segment.name) == []
    await lives.crash(container)
    await lives.close()


async def test_five_incarnations_without_truncation_are_all_replayed() -> None:
    """SS-225: each moves bytes to storage, its own tables included, and ends before it can record that elsewhere.

    The log has the bytes of these tables, too. If their records were lost, the bytes would be stored again and no
    read would show a difference. So the records themselves are compared after each incarnation.
    """
    lives = Incarnations(QUIET)
    container = await lives.start()
    written: dict[str, bytes] = {}
    await story(container, written)
    for number in range(5):
        for name in NAMES:
            await append(container, name, b"life %d" % number)
            written[name] += b"life %d" % number
        await container.flush()
        await container.truncate(NAMES[0], 10 * (number + 1))
        await container.writer.flush_all()
        chunks = await container.storage._system.chunks_of(storage_metadata_segment(0))
        # Each life has stored something of its own table, and begins a chunk for that.
        assert [f".E-{epoch}-" in chunk.name for epoch, chunk in enumerate(chunks, 1)] == [True] * (number + 1)
        frames, records = lives.frames(), dict(container.state.metadata.pinned)
        container = await lives.restart(container)
        assert lives.frames()[: len(frames)] == frames
        assert container.state.metadata.pinned == records
        assert await container.storage._system.chunks_of(storage_metadata_segment(0)) == chunks
    evict_all(container)
    assert await read_all(container, await container.find(NAMES[0])) == written[NAMES[0]][50:]
    for name in NAMES[1:]:
        assert await read_all(container, await container.find(name)) == written[name]
    await container.flush()
    await check_all(container, lives)
    await lives.close()
