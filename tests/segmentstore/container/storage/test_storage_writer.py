"""The storage writer: when it flushes, what it does about storage that fails. SS-n: docs/spec/segment-store.md.

The sizes of the scenarios are divided by 100 where nothing depends on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

import pytest

from penstock.model.errors import (
    CorruptionError,
    OutcomeUnknownError,
    SegmentSealedError,
    StorageError,
    StorageNotPrimaryError,
)
from penstock.model.segments import Buffer
from penstock.model.sizes import MIB
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import ContainerStatus, SegmentContainer
from penstock.segmentstore.container.space import SpaceWatch
from penstock.segmentstore.container.storage.storage_writer import _Job
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier2.chunked_storage import ChunkedStorage, StoredSegment
from penstock.segmentstore.tier2.wrapped import WrappedChunkStorage
from support.containers import Incarnations, append, evict_all, pause_writer, read_all, turns, until

A, B, C = "s/t/0.#epoch.0", "s/t/1.#epoch.0", "s/t/2.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


class StuckFor(WrappedChunkStorage):
    """Chunks of the segments named here can be neither written nor deleted until `gate` is set."""

    def __init__(self, inner: WrappedChunkStorage, *segments: str) -> None:
        super().__init__(inner)
        self.segments = segments
        self.gate = asyncio.Event()
        self.writes: list[tuple[str, int, int]] = []

    async def _pass(self, name: str) -> None:
        if name.startswith(self.segments):
            await self.gate.wait()

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        await self._pass(name)
        self.writes.append((name, 0, sum(map(len, data))))
        return await super().create_with_content(name, data)

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        await self._pass(name)
        self.writes.append((name, offset, sum(map(len, data))))
        return await super().write(name, offset, data)

    async def delete(self, name: str) -> None:
        await self._pass(name)
        await super().delete(name)


class RefusedFor(StuckFor):
    """Chunks of the segments named here are refused until `gate` is set."""

    async def _pass(self, name: str) -> None:
        if name.startswith(self.segments) and not self.gate.is_set():
            raise StorageError(f"{name}: refused")


async def over(lives: Incarnations, chunks: WrappedChunkStorage, **changes: float) -> SegmentContainer:
    """Start the next incarnation over other chunks."""
    inner = lives.chunks
    lives.chunks = chunks  # type: ignore[assignment]  # A wrapper of what is declared.
    try:
        return await lives.start(**changes)
    finally:
        lives.chunks = inner


def chunk_names(lives: Incarnations, segment: str) -> list[str]:
    """Return the chunks of a segment, as they lie in storage."""
    return sorted(name for name in stored_chunks(lives) if name.startswith(segment))


def stored_chunks(lives: Incarnations) -> dict[str, bytearray]:
    inner = lives.chunks.inner
    found: dict[str, bytearray] = inner._chunks  # type: ignore[attr-defined]  # To tamper with.
    return found


async def test_a_segment_is_flushed_for_its_bytes_or_its_age(lives: Incarnations) -> None:
    """SS-171: nearly 4 MiB and no time: not due; 4 MiB: due; one byte: due after 30 s and not before."""
    settings = ContainerSettings()
    assert (settings.flush_bytes, settings.flush_age_s) == (4 * MIB, 30.0)
    container = await lives.start(flush_age_s=30.0, flush_bytes=40_000)
    await pause_writer(container)
    writer = container.writer
    for name in (A, B):
        await container.create(name)
    await append(container, A, bytes(39_000))
    now_s = asyncio.get_running_loop().time()
    assert not writer._is_due(container.segment(A), now_s)
    await append(container, A, bytes(1000))
    assert writer._is_due(container.segment(A), now_s)
    await append(container, B, b"1")
    since_s = asyncio.get_running_loop().time()
    assert not writer._is_due(container.segment(B), now_s + 29.9)
    assert writer._is_due(container.segment(B), since_s + 30)
    writer._scan()
    await turns(50)
    assert container.segment(A).storage_length == 40_000
    assert container.segment(B).storage_length == 0


async def test_truncations_are_sent_to_storage_together(lives: Incarnations, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not due before the delay, whatever comes after them; at once where there is little room; then one request."""
    assert ContainerSettings().truncate_delay_s == 1.0
    container = await lives.start(truncate_delay_s=30.0)
    await pause_writer(container)
    writer, segment = container.writer, (await container.create(A), container.segment(A))[1]
    await append(container, A, bytes(1000))
    await container.flush()
    before_s = asyncio.get_running_loop().time()
    for offset in range(100, 600, 100):
        await container.truncate(A, offset)
    since_s = asyncio.get_running_loop().time()
    assert not writer._is_due(segment, before_s + 29.9)
    await append(container, A, b"behind")
    assert not writer._is_due(segment, before_s + 29.9)
    assert writer._is_due(segment, since_s + 30)
    with monkeypatch.context() as patch:
        patch.setattr(SpaceWatch, "is_storage_low", True)
        assert writer._is_due(segment, since_s)
    told: list[int] = []
    truncate = ChunkedStorage.truncate

    async def noting(self: ChunkedStorage, name: str, offset: int) -> None:
        told.append(offset)
        await truncate(self, name, offset)

    monkeypatch.setattr(ChunkedStorage, "truncate", noting)
    await container.flush()
    assert told == [500]
    assert not segment.pending


async def test_the_storage_writer_wakes_by_itself_when_truncations_are_due(lives: Incarnations) -> None:
    """It scans for work once an hour here, and is not woken by anything else."""
    container = await lives.start(truncate_delay_s=0.01)
    await container.create(A)
    await append(container, A, bytes(1000))
    await container.flush()
    for offset in (100, 200):
        await container.truncate(A, offset)
        await until(lambda: not container.segment(A).pending)


async def test_a_burst_goes_to_storage_in_bounded_writes_in_order(lives: Incarnations) -> None:
    """SS-172: a burst of 1 MB is written 40 kB at a time, each write where the one before ended.

    Also when it waits in pieces of 20 kB: what waits together is written together, or a backlog of small pieces would
    go to storage, once that answers again, no faster than storage syncs.
    """
    chunks = StuckFor(lives.chunks)
    container = await over(lives, chunks, flush_bytes=20_000, flush_write_bytes_max=40_000)
    await pause_writer(container)
    await container.create(A)
    expected = b"".join(bytes([number]) * 10_000 for number in range(100))
    for number in range(100):
        container.acceptor.append(container.segment(A), AppendRequest(bytes([number]) * 10_000), lambda _: None)
    await container.pipeline.barrier()
    await container.flush()
    writes = [(offset, length) for name, offset, length in chunks.writes if name.startswith(A)]
    assert max(length for _, length in writes) <= 40_000
    assert len(writes) == 25
    assert [offset for offset, _ in writes] == [40_000 * number for number in range(25)]
    evict_all(container)
    assert await read_all(container, A) == expected


@pytest.mark.parametrize("has_effect", [False, True])
async def test_after_five_failures_storage_has_every_byte_once(lives: Incarnations, has_effect: bool) -> None:
    """SS-173, SS-174: the writes fail, or their replies are lost; the writer continues until each byte is there once.

    A write that was applied although it failed leaves bytes that no record leads to: they are neither read nor
    overwritten, so there is nothing to compare them with.
    """
    container = await lives.start(writer_interval_s=0.005, writer_retry_s=0.001, flush_age_s=0.0)
    await container.create(A)
    await append(container, A, b"before")
    await until(lambda: container.segment(A).storage_length == 6)
    lives.chunks.fail("write", times=5, has_effect=has_effect)
    await append(container, A, b", and after")
    await until(lambda: container.segment(A).storage_length == 17)
    assert container.writer.failed_job_count >= 1
    assert not lives.failures
    evict_all(container)
    assert await read_all(container, A) == b"before, and after"
    container = await lives.restart(container)
    evict_all(container)
    assert await read_all(container, A) == b"before, and after"


async def test_bytes_of_a_write_with_a_lost_reply_are_never_read(lives: Incarnations) -> None:
    """SS-174, SS-175: the bytes are changed before the writer retries. They do no harm and stay as they are."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"before")
    await container.flush()
    await append(container, A, b", and after")
    lives.chunks.fail("write", has_effect=True)
    with pytest.raises(StorageError):
        await container.flush()
    (name,) = chunk_names(lives, A)
    assert bytes(stored_chunks(lives)[name]) == b"before, and after"
    stored_chunks(lives)[name][8] = 0
    damaged = bytes(stored_chunks(lives)[name])
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == b"before, and after"
    assert bytes(stored_chunks(lives)[name]) == damaged
    assert len(chunk_names(lives, A)) == 2
    container = await lives.restart(container)
    evict_all(container)
    assert await read_all(container, A) == b"before, and after"


async def test_a_write_that_was_committed_although_it_failed_is_found_by_its_length(lives: Incarnations) -> None:
    """SS-174: the reply to the whole write is lost, its commit included: the writer checks the length and resumes."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"first")
    storage = container.storage.of(container.segment(A))
    write = storage.write

    async def lost(*arguments: object, **named: object) -> int:
        await write(*arguments, **named)  # type: ignore[arg-type]  # Passed on as they came.
        storage.write = write  # type: ignore[method-assign]  # Once.
        raise OutcomeUnknownError("no reply")

    storage.write = lost  # type: ignore[method-assign]  # The lost reply.
    with pytest.raises(OutcomeUnknownError):
        await container.flush()
    assert container.segment(A).storage_length == 0
    await append(container, A, b", second")
    await container.flush()
    assert container.segment(A).storage_length == 13
    evict_all(container)
    assert await read_all(container, A) == b"first, second"
    assert sum(len(stored_chunks(lives)[name]) for name in chunk_names(lives, A)) == 13


async def test_bytes_that_are_nowhere_are_the_damage_of_their_segment_alone(lives: Incarnations) -> None:
    """The log was cut although storage did not have all of a segment: the others serve, at each start."""
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B):
        await container.create(name)
        await append(container, name, b"flushed")
    await container.flush()
    await append(container, A, b", and not")
    container.checkpoints.write()
    await container.pipeline.barrier()
    address = container.checkpoints.marks[-1].address
    assert address is not None
    await container.log.truncate(address)
    for _ in range(2):
        container = await lives.restart(container)
        assert (container.status, lives.failures) == (ContainerStatus.RUNNING, [])
        assert list(container.storage.damages) == [A]
        with pytest.raises(CorruptionError, match="neither the log nor long-term storage has bytes 7 to 16") as raised:
            await container.reader.read(container.segment(A), 7, 10)
        assert (raised.value.path, raised.value.offset) == (A, 7)
        await append(container, A, b"more")
        await append(container, B, b".")
        with pytest.raises(CorruptionError, match="neither the log"):
            await container.flush()
        assert container.segment(A).storage_length == 7
        assert container.segment(B).storage_length == container.segment(B).length
    evict_all(container)
    for name in (A, B):
        found = await container.reader.read(container.segment(name), 0, 7)
        assert found.joined() == b"flushed"
    # It can be got rid of.
    await container.delete(A)
    await container.flush()
    assert A not in container.state.metadata.by_name
    assert chunk_names(lives, A) == []


async def test_a_start_looks_up_unflushed_segments_several_at_a_time(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, each with a scan into storage, made a start as long as there were segments."""
    container = await lives.start(recovery_lookups_max=4)
    await pause_writer(container)
    names = [f"s/t/{number}.#epoch.0" for number in range(20)]
    for name in names:
        await container.create(name)
        await append(container, name, b"stored")
    await container.flush()
    for name in names:
        await append(container, name, b", and not")
    under_way: set[str] = set()
    most = 0
    original = ChunkedStorage.info

    async def info(self: ChunkedStorage, segment: str) -> StoredSegment | None:
        nonlocal most
        under_way.add(segment)
        most = max(most, len(under_way))
        await asyncio.sleep(0.001)
        found = await original(self, segment)
        under_way.remove(segment)
        return found

    monkeypatch.setattr(ChunkedStorage, "info", info)
    container = await lives.restart(container)
    assert most == 4
    assert all(container.segment(name).storage_length == 6 for name in names)
    for name in names:
        assert await read_all(container, name) == b"stored, and not"


async def test_a_rollover_size_below_the_floor_is_raised_to_it(lives: Incarnations) -> None:
    """64 bytes made a file, with two syncs, of each 64 bytes. The wish itself is kept as it is."""
    container = await lives.start(rollover_bytes_min=1000)
    await pause_writer(container)
    for name, rollover_bytes in ((A, 64), (B, 1500), (C, 0)):
        await container.create(name, rollover_bytes=rollover_bytes)
        for _ in range(3):
            await append(container, name, bytes(1000))
        await container.flush()
        assert container.segment(name).rollover_bytes == rollover_bytes
    lengths = {name: [len(stored_chunks(lives)[chunk]) for chunk in chunk_names(lives, name)] for name in (A, B, C)}
    assert lengths == {A: [1000] * 3, B: [1500] * 2, C: [3000]}
    assert ContainerSettings().rollover_bytes_min == 1024 * 1024


@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_chunk_that_was_cut_or_removed_stops_the_flush_and_the_reads_of_its_segment_alone(
    lives: Incarnations, is_gone: bool
) -> None:
    """SS-176: nothing is written over the damage, the log keeps what storage lacks, all else serves, nothing disabled.

    The error names chunk and byte, and once the chunk is back the flush resumes without intervention.
    """
    container = await lives.start(writer_interval_s=0.005, writer_retry_s=0.01, flush_age_s=0.0)
    await container.create(A)
    await container.create(B)
    await append(container, A, bytes(1000))
    await until(lambda: container.segment(A).storage_length == 1000)
    (name,) = chunk_names(lives, A)
    whole = bytes(stored_chunks(lives)[name])
    if is_gone:
        del stored_chunks(lives)[name]
    else:
        del stored_chunks(lives)[name][600:]
    await append(container, A, b"more")
    await until(lambda: container.writer.failed_job_count > 2)
    await append(container, B, b"other")
    await until(lambda: container.segment(B).storage_length == 5)
    assert (container.status, lives.failures) == (ContainerStatus.RUNNING, [])
    assert container.segment(A).storage_length == 1000
    assert list(container.storage.damages) == [name]
    evict_all(container)
    with pytest.raises(CorruptionError) as raised:
        await container.reader.read(container.segment(A), 0, 10)
    assert (raised.value.path, raised.value.offset) == (name, 0 if is_gone else 600)
    assert bytes(stored_chunks(lives).get(name, b"")) == (b"" if is_gone else bytes(600))
    # The other segment is read from storage, and what was not flushed from memory.
    assert (await container.reader.read(container.segment(B), 0, 10)).joined() == b"other"
    assert (await container.reader.read(container.segment(A), 1000, 10)).joined() == b"more"
    # Neither does a later life mind, and what was acknowledged is there when the chunk is.
    stored_chunks(lives)[name] = bytearray(whole)
    await until(lambda: container.segment(A).storage_length == 1004)
    container = await lives.restart(container)
    evict_all(container)
    assert await read_all(container, A) == bytes(1000) + b"more"


@pytest.mark.parametrize("is_found_at_start", [False, True])
async def test_a_container_stops_if_storage_is_longer_than_the_log_permits(
    lives: Incarnations, is_found_at_start: bool
) -> None:
    """SS-177: its metadata says so; found by the storage writer, or by the next start. Nothing is changed."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"stored")
    await container.flush()
    segment = container.segment(A)
    if is_found_at_start:
        await append(container, A, b"12")
    await container.storage.of(segment).write(A, 6, [b"from nowhere"])
    if not is_found_at_start:
        segment.is_storage_open = False
        await append(container, A, b"12")
        with pytest.raises(CorruptionError):
            await container.flush()
        assert container.status is ContainerStatus.FAILED
        await lives.stop(container)
    else:
        await lives.crash(container)
        with pytest.raises(CorruptionError):
            await lives.start()
    chunks = {name: bytes(data) for name, data in stored_chunks(lives).items()}
    assert b"storedfrom nowhere" in chunks.values()
    # Not disabled: after the storage is repaired, no further step is needed.
    with pytest.raises(CorruptionError, match="more than the log has recorded"):
        await lives.start()
    assert {name: bytes(data) for name, data in stored_chunks(lives).items()} == chunks
    lives.live.clear()


async def test_an_error_that_is_not_corruption_leaves_the_log_enabled(lives: Incarnations) -> None:
    """SS-189: storage says that another incarnation owns it: the container stops at once; the next one runs."""
    container = await lives.start(flush_age_s=0.0)
    await container.create(A)
    await append(container, A, b"x")
    owner = container.storage._user

    async def lost(segment: str) -> None:
        raise StorageNotPrimaryError(segment, owner_epoch=9, epoch=1)

    owner.open = lost  # type: ignore[method-assign]  # As storage answers a zombie.
    container.writer._wake.set()
    await turns(20)
    assert container.status is ContainerStatus.FAILED
    assert isinstance(lives.failures[0], StorageNotPrimaryError)
    task = container.writer._task
    assert task is not None
    await until(task.done)  # A scan that took long is followed by a pause.
    await lives.stop(container)
    container = await lives.start()
    assert await read_all(container, A) == b"x"


async def test_a_crash_between_a_chunk_write_and_the_truncation_of_the_log_is_recovered_from(
    lives: Incarnations,
) -> None:
    """SS-178: storage has it, the log has it still: it is counted once, and not written again."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"twice known")
    await container.writer.flush(container.segment(A))
    container = await lives.restart(container)
    await pause_writer(container)
    assert container.segment(A).storage_length == 11
    writes = lives.chunks.calls["write"]
    await container.writer.flush(container.segment(A))
    assert lives.chunks.calls["write"] == writes
    evict_all(container)
    assert await read_all(container, A) == b"twice known"
    assert len(chunk_names(lives, A)) == 1


@pytest.mark.parametrize("moment", ["before seal", "before concat", "after concat", "before forgetting"])
async def test_a_crash_during_a_merge_leaves_one_copy(lives: Incarnations, moment: str) -> None:
    """SS-179: at each step in storage the container dies; the next one finishes, and the bytes are there once."""
    container = await lives.start()
    await pause_writer(container)
    for name, text in ((A, b"aaaa"), (B, b"b")):
        await container.create(name)
        await append(container, name, text)
    await container.writer.flush(container.segment(B))  # Or it would need no storage of its own.
    await append(container, B, b"b")
    await container.merges.merge(A, B)
    await append(container, A, b"end")
    storage = container.storage.of(container.segment(A))
    flusher = container.writer._flusher
    reached = asyncio.Event()

    async def die(*_: object) -> None:
        reached.set()
        await asyncio.Event().wait()

    concat = storage.concat

    async def die_after(target: str, offset: int, source: str) -> None:
        await concat(target, offset, source)
        await die()

    match moment:
        case "before seal":
            storage.seal = die  # type: ignore[method-assign, assignment]  # The crash.
        case "before concat":
            storage.concat = die  # type: ignore[method-assign, assignment]  # The crash.
        case "after concat":
            storage.concat = die_after  # type: ignore[method-assign, assignment]  # The crash.
        case _:
            flusher._forget = die  # type: ignore[method-assign, assignment]  # The crash.
    flushing = asyncio.ensure_future(container.flush())
    await asyncio.wait_for(reached.wait(), 60)
    container = await lives.restart(container)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    await pause_writer(container)
    assert await read_all(container, A) == b"aaaabbend"
    await container.flush()
    evict_all(container)
    assert await read_all(container, A) == b"aaaabbend"
    assert not container.state.gone
    assert not container.state.metadata.merges
    assert await container.storage.of(container.segment(A)).info(B) is None
    live = [chunk.name for chunk in await container.storage.layout(container.segment(A))]
    assert sum(len(stored_chunks(lives)[name]) for name in live) == 9


async def test_a_merge_waits_for_its_source_and_others_do_not_wait_for_it(lives: Incarnations) -> None:
    """SS-180: the source cannot be flushed for a while; the target's merge waits, another segment is flushed."""
    chunks = StuckFor(lives.chunks, B)
    chunks.gate.set()
    container = await over(lives, chunks, flush_age_s=0.0, flush_concurrency=2, flush_concurrency_small=2)
    for name in (A, B, C):
        await container.create(name)
        await append(container, name, name.encode())
    await container.writer.flush(container.segment(B))  # Or it would need no storage of its own.
    chunks.gate.clear()
    for name in (A, B, C):
        await append(container, name, b"!")
    await container.merges.merge(A, B)
    await append(container, A, b"behind")
    await until(lambda: container.segment(C).storage_length == len(C) + 1)
    target = container.segment(A)
    assert target.storage_length == len(A) + 1
    assert container.state.gone
    await append(container, C, b"more")
    container.writer._wake.set()
    await until(lambda: container.segment(C).storage_length == len(C) + 5)
    assert target.storage_length == len(A) + 1
    chunks.gate.set()
    await container.flush()
    assert target.storage_length == target.length
    evict_all(container)
    assert await read_all(container, A) == f"{A}!{B}!behind".encode()


async def test_deleting_a_target_frees_the_sources_of_its_pending_merges_in_storage(lives: Incarnations) -> None:
    """SS-181: they had bytes in storage, and the merge had not reached storage."""
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B, C):
        await container.create(name)
        await append(container, name, bytes(100))
    await container.flush()
    assert all(chunk_names(lives, name) for name in (A, B, C))
    await container.merges.merge(A, B)
    await container.merges.merge(A, C)
    await container.delete(A)
    await container.flush()
    assert not [name for name in stored_chunks(lives) if name.startswith("s/")]
    assert not container.state.gone


async def test_a_truncation_ahead_of_storage_is_completed_by_the_flush(lives: Incarnations) -> None:
    """SS-182: storage begins where the segment does and never gets what lies before that; later flushes continue."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, bytes(1000))
    await container.flush()
    lives.chunks.hold("write")
    await append(container, A, b"x" * 1000)
    await container.truncate(A, 1500)
    flushing = asyncio.ensure_future(container.flush())
    await turns(60)
    assert not flushing.done()
    assert await read_all(container, A) == b"x" * 500
    container_a = container.segment(A)
    assert (container_a.durable_start_offset, container_a.storage_length) == (1500, 1500)
    assert not chunk_names(lives, A)
    lives.chunks.release("write")
    await flushing
    stored = await container.storage.of(container_a).info(A)
    assert stored is not None
    assert (stored.start_offset, stored.length) == (1500, 2000)
    await container.truncate(A, 2000)
    await container.flush()
    assert not chunk_names(lives, A)
    await append(container, A, b"on")
    await container.flush()
    container = await lives.restart(container)
    evict_all(container)
    assert await read_all(container, A) == b"on"
    assert (await container.info(A)).start_offset == 2000


async def test_a_seal_reaches_storage_after_the_appends_before_it(lives: Incarnations) -> None:
    """SS-183: the storage writer is woken by the seal; storage has all bytes when it is sealed."""
    container = await lives.start()
    await container.create(A)
    storage = container.storage.of(container.segment(A))
    lengths: list[int] = []
    seal = storage.seal

    async def noted(name: str) -> None:
        stored = await storage.info(name)
        assert stored is not None
        lengths.append(stored.length)
        await seal(name)

    storage.seal = noted  # type: ignore[method-assign, assignment]  # To inspect.
    for _ in range(3):
        await append(container, A, bytes(500))
    await container.seal(A)
    await until(lambda: container.segment(A).storage_sealed)
    assert lengths == [1500]
    stored = await storage.info(A)
    assert stored is not None
    assert stored.is_sealed


async def test_sealing_an_empty_segment_writes_nothing_to_storage(lives: Incarnations) -> None:
    """SS-184: no chunk, no record; it counts as sealed in storage, also in the next life."""
    container = await lives.start()
    await container.create(A)
    await container.seal(A)
    await until(lambda: container.segment(A).storage_sealed)
    assert not container.state.unflushed
    assert not stored_chunks(lives)
    container = await lives.restart(container)
    await container.flush()
    assert container.segment(A).storage_sealed
    with pytest.raises(SegmentSealedError):
        await append(container, A, b"x")
    assert not chunk_names(lives, A)


async def test_segments_deleted_before_their_flush_never_reach_storage(lives: Incarnations) -> None:
    """SS-185: appended, sealed, truncated and deleted between two scans of the storage writer."""
    container = await lives.start()
    await container.flush()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, bytes(1000))
    await container.seal(A)
    await container.truncate(A, 300)
    await container.delete(A)
    writes = lives.chunks.calls["write"]
    container.writer._scan()
    await turns(50)
    assert not chunk_names(lives, A)
    assert lives.chunks.calls["write"] == writes
    assert not container.state.gone
    assert not container.state.unflushed


@pytest.mark.parametrize("stuck_count", [1, 6])
async def test_segments_whose_storage_hangs_delay_no_other(lives: Incarnations, stuck_count: int) -> None:
    """SS-188: the others are flushed, also when more are stuck than flushes may run at once.

    And the log is not cut beyond the first operation that is not in storage.
    """
    stuck = [f"s/stuck/{number}.#epoch.0" for number in range(stuck_count)]
    chunks = StuckFor(lives.chunks, *stuck)
    container = await over(
        lives,
        chunks,
        flush_age_s=0.0,
        flush_concurrency=4,
        flush_concurrency_small=4,
        flush_slow_s=0.02,
        writer_interval_s=0.005,
    )
    for name in (*stuck, A):
        await container.create(name)
    for name in stuck:
        await append(container, name, b"stuck")
    first = min(container.segment(name).pending[0].sequence_number for name in stuck)
    for turn in range(5):
        await append(container, A, b"flows")
        await until(lambda: container.segment(A).storage_length == container.segment(A).length)
        container.checkpoints.write()
        await container.pipeline.barrier()
        container.checkpoints.truncate_log()
        assert container.segment(A).storage_length == 5 * (turn + 1)
    assert all(container.segment(name).storage_length == 0 for name in stuck)
    assert len(container.checkpoints.marks) == 5
    assert all(mark.sequence_number > first for mark in container.checkpoints.marks)
    container = await lives.restart(container)
    assert [await read_all(container, name) for name in stuck] == [b"stuck"] * stuck_count
    assert await read_all(container, A) == b"flows" * 5


async def test_a_segment_gets_on_while_the_one_it_merges_does(lives: Incarnations) -> None:
    """Its own length in storage is paused as long as a large source is brought there."""
    container = await lives.start(flush_slow_s=0.0)
    await pause_writer(container)
    writer = container.writer
    for name in (A, B):
        await container.create(name)
    await append(container, B, b"merged")
    await container.seal(B)
    target, source = container.segment(A), container.segment(B)
    await container.merges.merge(A, B)
    task = asyncio.current_task()
    assert task is not None
    writer._jobs[target.id] = _Job(task, target, 0.0, 0.0, 0)
    writer._note_stuck()
    assert target.is_stuck
    await writer._flusher._flush(source, is_for_merge=True)
    assert (source.storage_length, target.storage_length) == (6, 0)
    writer._note_stuck()
    assert not target.is_stuck
    del writer._jobs[target.id]  # type: ignore[unreachable]


@pytest.mark.parametrize("is_asked_for_all", [False, True])
async def test_a_flush_on_request_ends_a_segments_being_stuck(lives: Incarnations, is_asked_for_all: bool) -> None:
    """So it falls under no quota any more, and need not wait until its flush would be tried again."""
    chunks = RefusedFor(lives.chunks, A)
    container = await over(lives, chunks, flush_age_s=0.0, writer_retry_s=1000.0)
    await pause_writer(container)
    writer = container.writer
    await container.create(A)
    await append(container, A, b"late")
    writer._scan()
    await until(lambda: container.segment(A).is_stuck)
    assert list(writer._retry_at_s) == [container.segment(A).id]
    chunks.gate.set()
    await (writer.flush_all() if is_asked_for_all else writer.flush(container.segment(A)))
    assert not container.segment(A).is_stuck
    assert not writer._retry_at_s


async def test_no_state_remains_of_a_segment_merged_during_a_failed_flush(lives: Incarnations) -> None:
    """It is never tried again under its own id."""
    chunks = RefusedFor(lives.chunks, B)
    container = await over(lives, chunks, flush_age_s=0.0, writer_retry_s=1000.0)
    await pause_writer(container)
    writer = container.writer
    for name in (A, B):
        await container.create(name)
    await append(container, B, b"merged")
    writer._scan()
    await until(lambda: bool(writer._retry_at_s))
    chunks.gate.set()
    await container.seal(B)
    await container.merges.merge(A, B)
    await container.flush()
    writer._scan()
    assert not writer._retry_at_s


async def test_stuck_flushes_are_bounded(lives: Incarnations) -> None:
    """Beyond `flush_slow_max` they count again, and others wait; storage that works again gets all."""
    stuck = [f"s/stuck/{number}.#epoch.0" for number in range(8)]
    chunks = StuckFor(lives.chunks, *stuck)
    container = await over(
        lives,
        chunks,
        flush_age_s=0.0,
        flush_concurrency=2,
        flush_concurrency_small=2,
        flush_slow_s=0.0,
        flush_slow_max=3,
        writer_interval_s=0.005,
    )
    for name in (*stuck, A):
        await container.create(name)
        await append(container, name, b"x")
    for _ in range(10):
        container.writer._scan()
        await turns(20)
    assert len(container.writer._jobs) == 5
    chunks.gate.set()
    await until(lambda: not container.state.unflushed)
    assert all(container.segment(name).storage_length == 1 for name in (*stuck, A))


async def test_one_segment_that_fails_does_not_slow_the_others_down(lives: Incarnations) -> None:
    """Its retries wait `writer_retry_s`, theirs do not; a failure of many is one line in the log at a time."""

    class FailsFor(StuckFor):
        async def _pass(self, name: str) -> None:
            if name.startswith(self.segments):
                raise StorageError("this one never works")

    container = await over(
        lives, FailsFor(lives.chunks, B), flush_age_s=0.0, writer_interval_s=0.005, writer_retry_s=3600.0
    )
    for name in (A, B):
        await container.create(name)
        await append(container, name, b"x")
    for length in range(1, 5):
        await until(partial(lambda length: container.segment(A).storage_length == length, length))
        await append(container, A, b"x")
    assert container.writer.failed_job_count == 1
    assert container.status is ContainerStatus.RUNNING


async def test_an_operation_about_a_forgotten_segment_does_not_stop_the_writer(lives: Incarnations) -> None:
    """SS-190: the log still has appends of a segment that is deleted and freed; after a replay nothing waits for it."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await append(container, A, b"gone")
    await container.flush()
    await container.delete(A)
    await container.flush()
    assert not container.state.gone
    container = await lives.restart(container)
    await container.create(B)
    await append(container, B, b"here")
    await container.flush()
    container.checkpoints.write()
    await container.pipeline.barrier()
    container.checkpoints.truncate_log()
    await turns()
    assert not container.state.unflushed
    assert len(lives.frames()) == 1
    assert container.status is ContainerStatus.RUNNING


async def test_a_forced_flush_brings_everything_to_storage_while_appends_continue(lives: Incarnations) -> None:
    """SS-191, as far as the flush goes: what was durable at the call is in storage after it, whatever came since."""
    container = await lives.start()
    await pause_writer(container)
    for name in (A, B, C):
        await container.create(name)
    written = dict.fromkeys((A, B, C), 0)
    is_over = False

    async def keep_writing() -> None:
        while not is_over:
            for name in written:
                await append(container, name, bytes([written[name] % 256]) * 700)
                written[name] += 1

    writing = asyncio.ensure_future(keep_writing())
    await until(lambda: written[C] >= 5)
    before = {name: container.segment(name).durable_length for name in written}
    await container.flush()
    stored = {name: await container.storage.of(container.segment(name)).info(name) for name in written}
    assert all(info is not None and info.length >= before[name] for name, info in stored.items())
    is_over = True
    await writing
    await container.flush()
    assert not [segment for segment in container.state.unflushed.values() if not segment.is_system]
    evict_all(container)
    for name, count in written.items():
        assert await read_all(container, name) == b"".join(bytes([n % 256]) * 700 for n in range(count))


async def test_an_idle_segment_is_flushed_again_from_where_storage_ends(lives: Incarnations) -> None:
    """SS-192: nothing is kept for a flushed segment but its lengths; the next append continues from there."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    for turn in range(3):
        await append(container, A, b"%d" % turn * 100)
        await container.flush()
        segment = container.segment(A)
        assert A not in [unflushed.name for unflushed in container.state.unflushed.values()]
        assert not segment.pending
        assert segment.storage_length == 100 * (turn + 1)
        stored = await container.storage.of(segment).info(A)
        assert stored is not None
        assert stored.length == segment.storage_length
    assert not container.writer._jobs
    assert not container.writer._retry_at_s
    container = await lives.restart(container)
    await append(container, A, b"end")
    await container.flush()
    assert container.segment(A).storage_length == 303
    evict_all(container)
    assert await read_all(container, A) == b"0" * 100 + b"1" * 100 + b"2" * 100 + b"end"


async def test_under_pressure_the_largest_are_flushed_and_the_others_left_alone(lives: Incarnations) -> None:
    """Flushing all, each with the little it has, costs a sync and a commit for each; a few large ones give the room."""
    chunks = StuckFor(lives.chunks)
    container = await over(lives, chunks, flush_pressure_percent=50, flush_pressure_segments_max=3)
    await pause_writer(container)
    limit = lives.cache_settings.target_bytes // 2
    names = [f"s/t/{number}.#epoch.0" for number in range(40)]
    for number, name in enumerate(names):
        await container.create(name)
        await append(container, name, bytes(1000 + 100 * number))
    container.writer._scan()
    await turns(50)
    assert not [name for name, _, _ in chunks.writes if name.startswith("s/t/")]  # There is room, nothing is due.
    for name in names:
        await append(container, name, bytes(limit // len(names)))
    assert lives.cache.lacking_bytes > limit
    container.writer._wake.set()
    while container.writer._wake.is_set():  # As its loop does, which is paused.
        container.writer._wake.clear()
        container.writer._scan()
        await turns(200)
    written = [name for name, _, _ in chunks.writes if name.startswith("s/t/")]
    # Three at first, more only as long as too much waits; the largest.
    assert {name.rpartition(".E")[0] for name in written[:3]} == set(names[-3:])
    assert lives.cache.lacking_bytes <= limit
    assert len(written) < 20


async def test_pages_that_can_go_put_no_pressure_on_segments(lives: Incarnations) -> None:
    """The cache is full of bytes that storage has: they are evicted, and no segment is flushed early."""
    chunks = StuckFor(lives.chunks)
    container = await over(lives, chunks)
    await pause_writer(container)
    for name in (A, B):
        await container.create(name)
    for _ in range(40):
        await append(container, A, bytes(20_000))
        await container.writer.flush(container.segment(A))
    await append(container, B, b"little")
    chunks.writes.clear()
    lives.cache.count(lives.cache_settings.target_bytes)
    container.writer._scan()
    await turns(50)
    lives.cache.discount(lives.cache_settings.target_bytes)
    assert not [name for name, _, _ in chunks.writes if name.startswith(B)]


async def test_a_stopped_container_leaves_nothing_in_the_count_of_the_cache(lives: Incarnations) -> None:
    """The cache outlives its containers. A stopped container's backlog must not put pressure on the others."""
    container = await lives.start()
    await container.create(A)
    await append(container, A, bytes(1000))
    assert lives.cache.lacking_bytes >= 1000
    await lives.stop(container)
    assert lives.cache.lacking_bytes == 0


@pytest.mark.parametrize("length", [100, 3000])
async def test_more_segments_are_flushed_at_once_if_all_have_little(lives: Incarnations, length: int) -> None:
    """Bounded by bytes: small flushes share commits and syncs of names, large ones do not pile up."""
    names = [f"s/t/{number}.#epoch.0" for number in range(30)]
    chunks = StuckFor(lives.chunks, "s/t/")
    container = await over(
        lives, chunks, flush_age_s=0.0, flush_bytes=5000, flush_concurrency=2, flush_concurrency_small=12
    )
    await pause_writer(container)
    for name in names:
        await container.create(name)
        await append(container, name, bytes(length))
    container.writer._scan()
    await turns()
    assert len(container.writer._jobs) == (12 if length == 100 else 2)
    chunks.gate.set()
    while container.state.unflushed:
        container.writer._scan()
        await turns()
    assert all(container.segment(name).storage_length == length for name in names)
