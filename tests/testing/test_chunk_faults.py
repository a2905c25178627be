"""`FaultyChunkStorage`: each fault does what it says and no more."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

import pytest

from penstock.model.errors import BadChunkOffsetError, ChunkError, InvalidArgumentError, NoSuchChunkError
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.memory import MemoryChunkStorage
from penstock_simulation.chunk_faults import (
    ChunkFault,
    ChunkFaults,
    ChunkReplyLostError,
    ChunkThrottledError,
    FaultyChunkStorage,
)
from penstock_simulation.simulated.simulation import Simulation


def storage(faults: ChunkFaults | None = None, seed: int = 1) -> FaultyChunkStorage:
    return FaultyChunkStorage(MemoryChunkStorage(), random.Random(seed), faults)


CALLS: dict[str, Callable[[FaultyChunkStorage], Awaitable[object]]] = {
    "create": lambda chunks: chunks.create("new"),
    "create_with_content": lambda chunks: chunks.create_with_content("new", [b"x"]),
    "write": lambda chunks: chunks.write("a", 3, [b"x"]),
    "read": lambda chunks: chunks.read("a", 0, 3),
    "info": lambda chunks: chunks.info("a"),
    "exists": lambda chunks: chunks.exists("a"),
    "delete": lambda chunks: chunks.delete("a"),
    "concat": lambda chunks: chunks.concat("a", 3, [("b", 1)]),
    "list": lambda chunks: chunks.list(),
}


async def filled() -> FaultyChunkStorage:
    chunks = storage()
    await chunks.create_with_content("a", [b"abc"])
    await chunks.create_with_content("b", [b"b"])
    return chunks


async def state(chunks: FaultyChunkStorage) -> list[tuple[str, bytes]]:
    return [(info.name, await chunks.inner.read(info.name, 0, 99)) for info in await chunks.inner.list()]


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("fault", "error"),
    [(ChunkFault.THROTTLE, ChunkThrottledError), (ChunkFault.ERROR_BEFORE, ChunkError)],
)
async def test_refusal_before_the_effect_changes_nothing(call: str, fault: ChunkFault, error: type[Exception]) -> None:
    chunks = await filled()
    before = await state(chunks)
    chunks.inject(call, fault)
    with pytest.raises(error):
        await CALLS[call](chunks)
    assert await state(chunks) == before
    assert chunks.fault_counts == {fault: 1}
    await CALLS[call](chunks)


@pytest.mark.parametrize("call", CALLS)
async def test_lost_reply_has_the_whole_effect(call: str) -> None:
    chunks, twin = await filled(), await filled()
    chunks.inject(call, ChunkFault.ERROR_AFTER)
    with pytest.raises(ChunkReplyLostError):
        await CALLS[call](chunks)
    await CALLS[call](twin)
    assert await state(chunks) == await state(twin)


async def test_partial_write_leaves_a_true_prefix() -> None:
    """At least a byte, never all; the next write at the old offset gets an error."""
    chunks = await filled()
    chunks.inject("write", ChunkFault.PARTIAL_WRITE)
    with pytest.raises(ChunkReplyLostError):
        await chunks.write("a", 3, [b"0123", b"456789"])
    content = await chunks.inner.read("a", 0, 99)
    assert b"abc" < content < b"abc0123456789"
    assert b"abc0123456789".startswith(content)
    with pytest.raises(BadChunkOffsetError):
        await chunks.write("a", 3, [b"x"])
    chunks.inject("create_with_content", ChunkFault.PARTIAL_WRITE)
    with pytest.raises(ChunkReplyLostError):
        await chunks.create_with_content("c", [b"0123456789"])
    assert b"0123456789".startswith(await chunks.inner.read("c", 0, 99))


def test_stale_list_is_as_of_an_earlier_time() -> None:
    """Chunks made since are not there, deleted ones still are, grown ones are short; other calls see the present."""

    async def scenario() -> None:
        chunks = await filled()
        chunks.faults = ChunkFaults(staleness_s_max=0.0)
        await asyncio.sleep(0.02)
        await chunks.create_with_content("c", [b"new"])
        await chunks.delete("b")
        await chunks.write("a", 3, [b"def"])
        current = [ChunkInfo("a", 6), ChunkInfo("c", 3)]
        assert await chunks.list() == current
        chunks.inject("list", ChunkFault.STALE_LIST)
        assert await chunks.list() == current  # Stale by nothing.

        class Longest(random.Random):
            def uniform(self, a: float, b: float) -> float:
                return b

        stale = FaultyChunkStorage(chunks.inner, Longest(), ChunkFaults(stale_list_rate=1, staleness_s_max=0.01))
        stale._history = chunks._history
        assert await stale.list() == [ChunkInfo("a", 3), ChunkInfo("b", 1)]
        assert await stale.list("c") == []
        assert await stale.exists("c")
        with pytest.raises(NoSuchChunkError):
            await stale.info("b")
        await stale.concat("a", 6, [("c", 3)])
        assert [info.name for info in await stale.list()] == ["a", "b"]
        await asyncio.sleep(0.02)
        assert await stale.list() == [ChunkInfo("a", 9)]

    with Simulation(1) as simulation:
        simulation.run(scenario)


async def test_latency_and_bandwidth_take_loop_time() -> None:
    loop = asyncio.get_running_loop()
    chunks = await filled()
    chunks.faults = ChunkFaults(latency_s_min=0.01, latency_s_max=0.02)
    began = loop.time()
    await chunks.exists("a")
    assert loop.time() - began >= 0.01
    chunks.faults = ChunkFaults(bytes_per_s_max=1000)
    began = loop.time()
    await asyncio.gather(*(chunks.read("a", 0, 10) for _ in range(3)))
    assert loop.time() - began >= 0.03
    chunks.faults = ChunkFaults(slow_s=0.01)
    chunks.inject("exists", ChunkFault.LATENCY)
    began = loop.time()
    await chunks.exists("a")
    assert loop.time() - began >= 0.01
    assert chunks.fault_counts == {ChunkFault.LATENCY: 1}


async def test_one_seed_gives_one_history() -> None:
    """Two runs with the same seed fail at the same calls and leave the same chunks; another seed differs."""
    faults = ChunkFaults(
        throttle_rate=0.1, error_before_rate=0.1, error_after_rate=0.1, partial_write_rate=0.2, stale_list_rate=0.3
    )

    async def run(seed: int) -> tuple[list[str], list[tuple[str, bytes]]]:
        chunks = storage(faults, seed)
        outcomes = []
        for number in range(60):
            try:
                await chunks.create_with_content(f"c{number}", [bytes(10)])
                outcomes.append("")
            except ChunkError as error:
                outcomes.append(str(error))
        return outcomes, await state(chunks)

    first, second, other = await run(1), await run(1), await run(2)
    assert first == second != other
    assert 10 < sum(map(bool, first[0])) < 50


async def test_capabilities_and_closing_are_those_of_the_inner_storage() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage(supports_append=False, supports_concat=False), random.Random(1))
    assert (chunks.supports_append, chunks.supports_concat) == (False, False)
    await chunks.close()


@pytest.mark.parametrize(
    "changes",
    [{"throttle_rate": 1.1}, {"error_after_rate": -0.1}, {"latency_s_min": 1.0}, {"bytes_per_s_max": 0.0}],
)
def test_impossible_faults_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(InvalidArgumentError):
        ChunkFaults(**changes)  # type: ignore[arg-type]
