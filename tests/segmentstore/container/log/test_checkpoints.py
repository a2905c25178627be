"""When checkpoints are written, and where the log is truncated. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from penstock.model.errors import LogFencedError
from penstock.model.sizes import MIB
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import ContainerStatus
from penstock.segmentstore.container.log.frames import RecordReader
from penstock.segmentstore.container.log.operations import Checkpoint, decode_operation
from penstock.segmentstore.container_settings import ContainerSettings
from penstock.segmentstore.tier1.durable_log import LogAddress
from support.containers import QUIET, Incarnations, append, pause_writer, turns

A, B = "s/t/0.#epoch.0", "s/t/1.#epoch.0"


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


def checkpoint_count(lives: Incarnations) -> int:
    """Return how many checkpoints are in the log."""
    reader = RecordReader()
    records = [record for frame in lives.frames() for record in reader.feed(frame)]
    return sum(isinstance(decode_operation(record)[1], Checkpoint) for record in records)


def test_the_thresholds_are_those_of_the_reference_or_smaller() -> None:
    """300 frames; and fewer bytes than 256 MiB, which is what a restart would have to read."""
    assert ContainerSettings().checkpoint_frames == 300
    assert ContainerSettings().checkpoint_log_bytes <= 256 * MIB


async def test_an_idle_container_writes_a_checkpoint_if_its_log_is_long_to_open(
    lives: Incarnations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one, until the log is truncated there; none while data are unflushed, or if nothing was logged since."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    checkpoints = container.checkpoints
    checkpoints.write()
    await container.pipeline.barrier()
    checkpoints.marks.clear()
    monkeypatch.setattr(type(container.log), "is_long_to_open", property(lambda self: True))
    before = checkpoint_count(lives)
    checkpoints.write_if_due(is_idle=True)
    await append(container, A, b"a small event")
    checkpoints.write_if_due()
    await container.pipeline.barrier()
    assert checkpoint_count(lives) == before
    for _ in range(3):
        checkpoints.write_if_due(is_idle=True)
        await append(container, A, b"a small event")
    assert checkpoint_count(lives) == before + 1
    checkpoints.marks.clear()
    checkpoints.write_if_due(is_idle=True)
    await container.pipeline.barrier()
    assert checkpoint_count(lives) == before + 2


async def test_a_checkpoint_is_due_after_300_frames(lives: Incarnations) -> None:
    """SS-64: 299 frames since the last: none; one more: one. Then it takes 300 again."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    for _ in range(3):
        container.checkpoints.write()
        await container.pipeline.barrier()
        before = checkpoint_count(lives)
        start = container.pipeline.frame_count
        while container.pipeline.frame_count < start + 299:
            await append(container, A, b"a small event")
        await turns()
        assert checkpoint_count(lives) == before
        await append(container, A, b"a small event")
        await turns()
        assert container.pipeline.frame_count == start + 301
        assert checkpoint_count(lives) == before + 1


async def test_no_checkpoint_that_is_long_compared_to_the_log_after_it(lives: Incarnations) -> None:
    """A checkpoint of a thousand segments costs as much log as thousands of single appends: it waits for those."""
    container = await lives.start(checkpoint_share_percent_max=10)
    await pause_writer(container)
    await asyncio.gather(*(container.create(f"s/t/{number}.#epoch.0") for number in range(1000)))
    before = container.pipeline.logged_bytes
    container.checkpoints.write()
    length = container.pipeline.logged_bytes - before
    await container.pipeline.barrier()
    count = checkpoint_count(lives)
    segment = container.segment(A)
    start, frames = container.pipeline.logged_bytes, container.pipeline.frame_count
    while container.pipeline.logged_bytes - start < 10 * length - 4000:
        await append(container, A, bytes(1000))
        assert not container.checkpoints.is_pending
    assert container.pipeline.frame_count - frames > 300
    assert checkpoint_count(lives) == count
    for _ in range(6):
        await append(container, A, bytes(1000))
    await container.pipeline.barrier()
    assert checkpoint_count(lives) == count + 1
    assert segment.length


async def test_bytes_cause_a_checkpoint_during_a_burst() -> None:
    """A burst of appends in one turn of the loop gets one checkpoint at its end, not one at each append."""
    lives = Incarnations(replace(QUIET, checkpoint_log_bytes=100_000))
    container = await lives.start()
    segment = await container.create(A)
    before = checkpoint_count(lives)
    for _ in range(50):
        container.acceptor.append(segment, AppendRequest(bytes(10_000)), lambda _: None)
    await container.pipeline.barrier()
    await container.pipeline.barrier()
    assert checkpoint_count(lives) == before + 1
    await lives.close()


async def test_the_log_is_truncated_by_one_job_at_a_time_to_the_newest_mark(lives: Incarnations) -> None:
    """While a truncation is under way others are not begun beside it; the last one wanted follows."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    calls: list[LogAddress] = []
    gate = asyncio.Event()
    truncate = container.log.truncate

    async def held(address: LogAddress) -> None:
        calls.append(address)
        await gate.wait()
        await truncate(address)

    container.log.truncate = held  # type: ignore[method-assign]  # To hold it up.
    await container.flush()
    newest: list[LogAddress | None] = []
    for _ in range(4):
        await append(container, A, b"x")
        await container.flush()
        container.checkpoints.write()
        await container.pipeline.barrier()
        newest.append(container.checkpoints.marks[-1].address)
        container.checkpoints.truncate_log()
        await turns()
    assert calls == newest[:1]
    gate.set()
    await turns()
    assert calls == [newest[0], newest[-1]]
    assert isinstance(decode_operation(RecordReader().feed(lives.frames()[0])[0])[1], Checkpoint)


async def test_a_container_that_cannot_cut_its_log_because_it_lost_it_ends(lives: Incarnations) -> None:
    """Some containers learn that they were fenced only when they truncate the log."""
    container = await lives.start()
    await pause_writer(container)
    await container.create(A)
    await container.flush()
    container.checkpoints.write()
    await container.pipeline.barrier()
    await lives.start()
    container.checkpoints.truncate_log()
    await turns()
    assert container.status is ContainerStatus.FAILED
    assert isinstance(lives.failures[0], LogFencedError)
