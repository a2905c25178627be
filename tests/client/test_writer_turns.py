"""A writer's work in one turn of the event loop is bounded, and work split into turns stays in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.client.writing import event_writer
from penstock.client.writing.append_window import Block
from penstock.client.writing.event_runs import parts_of
from penstock.model.errors import OutcomeUnknownError
from penstock.model.events import split_events
from penstock.model.policies import Scaling
from penstock.model.segments import Buffer

if TYPE_CHECKING:
    from client.conftest import Cluster

STREAM = "retail/orders"


class Turns:
    """Counts turns of the loop."""

    def __init__(self) -> None:
        self.number = 0
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        self.number += 1
        self._loop.call_soon(self._next)


async def stored_by_segment(cluster: Cluster) -> dict[int, list[bytes]]:
    found = {}
    for number in cluster.controller.all["retail", "orders"].ranges:
        name = f"{STREAM}/{number & 0xFFFFFFFF}.#epoch.{number >> 32}"
        info = await cluster.store.segments.segment_info(name)
        data = await cluster.store.segments.read(name, 0, max(info.length, 1)) if info.length else None
        found[number] = split_events(data.joined())[0] if data else []
    return found


async def all_stored(cluster: Cluster) -> dict[str, list[int]]:
    """Numbers of the events of each key, in the order that a reader meets them: epoch by epoch."""
    by_key: dict[str, list[int]] = {}
    found = await stored_by_segment(cluster)
    for number in sorted(found, key=lambda each: (each >> 32, each)):
        for event in found[number]:
            key, count = event.decode().split()
            by_key.setdefault(key, []).append(int(count))
    return by_key


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Events that are moved to successors, by turn of the loop. Needs `turns` set on it."""
    counts: Counter[int] = Counter()
    counts.begun = asyncio.Event()
    cut = Block.cut

    def counted(self: Block, bytes_max: int, event_count_max: int) -> tuple[Sequence[Buffer], list[str | None]]:
        counts.begun.set()
        events, keys = cut(self, bytes_max, event_count_max)
        counts[counts.turns.number] += len(events)
        return events, keys

    monkeypatch.setattr(Block, "cut", counted)
    return counts


async def test_a_sealed_segments_events_move_to_its_successors_some_in_each_turn(
    cluster: Cluster, moved: Counter[int]
) -> None:
    """However many wait: each turn moves so many at most, order per key holds, and each ack is settled."""
    async with cluster.client(spread_turn_event_count_max=50) as client:
        await client.create_stream(STREAM)
        moved.turns = Turns()
        async with client.event_writer(STREAM) as writer:
            cluster.store.gate.clear()
            acks = [await writer.write(b"k%d %d" % (n % 7, n), f"k{n % 7}") for n in range(5000)]
            await writer.write_many([b"- %d" % n for n in range(500)])
            await cluster.controller.scale(STREAM, [0], [(0.0, 0.3), (0.3, 0.7), (0.7, 1.0)])
            cluster.store.gate.set()
            await writer.flush()
            assert all(ack.is_done and ack.error is None for ack in acks)
    assert moved.total() >= 5000
    assert max(moved.values()) <= 50
    by_key = await all_stored(cluster)
    assert {key: numbers for key, numbers in by_key.items() if key != "-"} == {
        f"k{key}": list(range(key, 5000, 7)) for key in range(7)
    }
    assert sorted(by_key["-"]) == list(range(500))


async def test_what_is_written_meanwhile_is_stored_after_what_moves(cluster: Cluster, moved: Counter[int]) -> None:
    """A write waits until all has moved; one that does not wait, as of other threads, goes behind what is there."""
    async with cluster.client(spread_turn_event_count_max=10) as client:
        await client.create_stream(STREAM)
        moved.turns = Turns()
        async with client.event_writer(STREAM) as writer:
            cluster.store.gate.clear()
            for number in range(1000):
                await writer.write(b"k %d" % number, "k")
            await cluster.controller.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
            cluster.store.gate.set()
            await moved.begun.wait()
            assert moved.total() < 500
            assert event_writer.is_full(writer)
            for number in range(1000, 1050):
                writer._put(b"k %d" % number, "k")
                await asyncio.sleep(0)
            assert moved.total() < 1000
            waiting = asyncio.create_task(writer.write(b"k 1050", "k"))
            await asyncio.sleep(0)
            assert not waiting.done()
            await asyncio.wait_for(await waiting, 60)
            assert not event_writer.is_full(writer)
    assert (await all_stored(cluster))["k"] == list(range(1051))


async def test_segments_that_are_sealed_one_after_the_other_while_events_move_keep_the_order(
    cluster: Cluster, moved: Counter[int]
) -> None:
    """Its successor is sealed as well, and two are merged into one, before all has moved."""
    async with cluster.client(spread_turn_event_count_max=20) as client:
        await client.create_stream(STREAM, scaling=Scaling.fixed(2))
        moved.turns = Turns()
        async with client.event_writer(STREAM) as writer:
            cluster.store.gate.clear()
            for number in range(3000):
                key = number % 11
                await writer.write(b"k%d %d" % (key, number), f"k{key}")
            (merged,) = await cluster.controller.scale(STREAM, [0, 1], [(0.0, 1.0)])
            cluster.store.gate.set()
            await moved.begun.wait()
            split = await cluster.controller.scale(STREAM, [merged], [(0.0, 0.5), (0.5, 1.0)])
            await cluster.controller.scale(STREAM, split, [(0.0, 0.9), (0.9, 1.0)])
            for number in range(3000, 3300):
                key = number % 11
                await writer.write(b"k%d %d" % (key, number), f"k{key}")
            await writer.flush()
    assert await all_stored(cluster) == {f"k{key}": list(range(key, 3300, 11)) for key in range(11)}


async def test_a_writer_closed_during_writes_settles_every_ack(cluster: Cluster, moved: Counter[int]) -> None:
    """And counts each event once: those that have moved are not those that have not."""
    async with cluster.client(spread_turn_event_count_max=10) as client:
        await client.create_stream(STREAM)
        moved.turns = Turns()
        writer = await client.event_writer(STREAM)
        cluster.store.gate.clear()
        acks = [await writer.write(b"k%d %d" % (number % 5, number), f"k{number % 5}") for number in range(1000)]
        await cluster.controller.scale(STREAM, [0], [(0.0, 0.5), (0.5, 1.0)])
        cluster.store.gate.set()
        await moved.begun.wait()
        cluster.store.gate.clear()
        assert writer.unacknowledged_event_count == 1000
        with pytest.raises(OutcomeUnknownError):
            await writer.close(0.05)
        assert all(ack.is_done for ack in acks)
        assert writer.unacknowledged_bytes == 0
        cluster.store.gate.set()


# Cutting what is written at once.


def test_arrow_arrays_are_cut_by_bytes_as_well_as_by_count() -> None:
    """A part is framed as a whole, in one turn."""
    sizes = [10, 10, 5_000_000, 10, 10, 10, 3_000_000, 3_000_000, *[100] * 20_000]
    array = pa.array([b"x" * size for size in sizes])
    parts = list(parts_of(array, None, 4_000_000))
    assert parts[0][0] == 0
    assert [size for _, part, _ in parts for size in map(len, part.to_pylist())] == sizes
    assert all(len(part) == 1 or part.nbytes <= 4_000_000 for _, part, _ in parts)
    assert max(len(part) for _, part, _ in parts) == 4096


def test_keys_of_an_arrow_array_are_made_part_by_part() -> None:
    keys = pa.array([f"k{number % 3}" for number in range(20_000)])
    events = [b"e"] * 20_000
    parts = list(parts_of(events, keys, 4_000_000))
    assert [key for _, _, part in parts for key in part] == keys.to_pylist()
    assert [len(part) for _, _, part in parts] == [4096, 4096, 4096, 4096, 3616]


async def test_write_many_takes_so_many_bytes_in_a_turn(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of buffers that have to be copied: one by one, as there is room."""
    counts: Counter[int] = Counter()
    put = event_writer.EventWriter._put

    async with cluster.client(write_turn_bytes_max=100_000, max_unacknowledged_bytes=1_000_000) as client:
        await client.create_stream(STREAM)
        turns = Turns()

        def counted(self: event_writer.EventWriter, event: bytes, *arguments: Any) -> Any:
            counts[turns.number] += len(event)
            return put(self, event, *arguments)

        monkeypatch.setattr(event_writer.EventWriter, "_put", counted)
        async with client.event_writer(STREAM) as writer:
            await writer.write_many([bytearray(10_000) for _ in range(500)])
            await writer.write_many([memoryview(bytes(10_000)) for _ in range(20)], [f"k{n}" for n in range(20)])
    assert counts.total() == 5_200_000
    assert max(counts.values()) <= 110_000


async def test_writes_of_a_few_after_one_another_take_no_longer_turns_than_one_of_many(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that awaits nothing else, in one call or thousands, lets other tasks run."""
    counts: Counter[int] = Counter()
    put = event_writer.EventWriter._put_run
    async with cluster.client() as client:
        await client.create_stream(STREAM)
        turns = Turns()

        def counted(self: event_writer.EventWriter, events: Sequence[bytes], key: str | None) -> None:
            counts[turns.number] += len(events)
            return put(self, events, key)

        monkeypatch.setattr(event_writer.EventWriter, "_put_run", counted)
        async with client.event_writer(STREAM) as writer:
            for _ in range(3000):
                await writer.write_many([b"event"] * 10)
            await writer.write_many([b"event"] * 30_000)
    assert counts.total() == 60_000
    assert max(counts.values()) < 2 * 4096  # What was left of a turn is not measured against the next part.


async def test_reading_what_is_there_lets_others_have_their_turn_between_chunks(cluster: Cluster) -> None:
    """However much was read ahead: a loop over a reader that never waits is not alone in the program."""
    async with cluster.client(read_bytes=10_000, read_ahead_block_count=1000) as client:
        await client.create_stream(STREAM)
        async with client.event_writer(STREAM) as writer:
            await writer.write_many([b"x" * 92] * 20_000)
        async with client.reader_group("audit", [STREAM]) as group, group.reader() as reader:
            await reader.read(20)
            async with asyncio.timeout(60):
                while reader.read_ahead_bytes < 1_500_000:  # noqa: ASYNC110  # no event to await
                    await asyncio.sleep(0.01)
            turns = Turns()
            seen = Counter([turns.number])
            for _ in range(10_000):
                await reader.read()
                seen[turns.number] += 1
    assert max(seen.values()) <= 200
