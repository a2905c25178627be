"""What a container refuses, and that a refusal harms nothing else. SS-n: docs/spec/segment-store.md."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from penstock.model.errors import BadEventNumberError, BadOffsetError, InvalidArgumentError
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.pipeline import completer
from support.containers import Incarnations, append, read_all

A, B = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
W = b"w" * 16


@pytest.fixture
async def lives() -> AsyncIterator[Incarnations]:
    made = Incarnations()
    yield made
    await made.close()


async def test_a_wrong_event_number_is_reported_before_a_wrong_offset(lives: Incarnations) -> None:
    """SS-42: a writer that reconnects must learn about its event number first; either alone is reported as itself."""
    container = await lives.start()
    segment = await container.create(A)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    container.acceptor.append(
        segment, AppendRequest(b"12345", writer_id=W, event_number=7, first_event_number=7), completer(future)
    )
    await future

    def add(stored: int, offset: int) -> None:
        container.acceptor.append(
            segment,
            AppendRequest(b"x", writer_id=W, event_number=8, first_event_number=8, expected_offset=offset),
            lambda _: None,
            stored_event_number=stored,
        )

    with pytest.raises(BadEventNumberError):
        add(6, 4)
    with pytest.raises(BadEventNumberError):
        add(6, 5)
    with pytest.raises(BadOffsetError):
        add(7, 4)
    add(7, 5)
    await container.pipeline.barrier()
    assert await read_all(container, A) == b"12345x"
    assert await container.get_attribute(A, W) == 8


async def test_a_truncated_source_cannot_be_merged(lives: Incarnations) -> None:
    """SS-45: not even when the truncation is still on its way to the log. Neither segment changes by the attempt."""
    container = await lives.start()
    for name in (A, B):
        await container.create(name)
        await append(container, name, b"12345")
    lives.logs.hold_appends(0)
    truncating = asyncio.ensure_future(container.truncate(B, 1))
    await asyncio.sleep(0)
    with pytest.raises(InvalidArgumentError):
        await container.merges.merge(A, B)
    lives.logs.release_appends(0)
    await truncating
    await append(container, B, b"67")
    container = await lives.restart(container)
    assert await read_all(container, A) == b"12345"
    assert await read_all(container, B) == b"234567"
    assert not (await container.info(B)).is_sealed


async def test_an_invalid_operation_among_a_hundred_fails_alone(lives: Incarnations) -> None:
    """SS-47: in one turn of the loop, so in one frame; the other 99 are applied, in order."""
    container = await lives.start()
    segment = await container.create(A)
    frame_count = container.pipeline.frame_count
    futures: list[asyncio.Future[None]] = []
    for number in range(100):
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if number == 50:
            with pytest.raises(BadOffsetError):
                container.acceptor.append(segment, AppendRequest(b"!", expected_offset=1), completer(future))
            continue
        container.acceptor.append(
            segment, AppendRequest(b"%02d" % number, expected_offset=segment.length), completer(future)
        )
        futures.append(future)
    await asyncio.gather(*futures)
    assert len(futures) == 99
    assert container.pipeline.frame_count == frame_count + 1
    expected = b"".join(b"%02d" % number for number in range(100) if number != 50)
    assert await read_all(container, A) == expected
    container = await lives.restart(container)
    assert await read_all(container, A) == expected
