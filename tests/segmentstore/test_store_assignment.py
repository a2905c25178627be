"""Two `SegmentStore`s over the same tiers: containers move with the assignment, and a store that missed it is shut out.

SS-n: docs/spec/segment-store.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace

import pytest

from penstock.model.errors import ContainerNotFoundError, OutcomeUnknownError
from penstock.model.routing import container_of
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.durable_log import DurableLog, InspectFrame
from penstock.segmentstore.tier1.memory_log import MemoryLogFactory
from support.containers import QUIET, SMALL_CACHE, FaultyChunks, memory_runtime, until

SETTINGS = SegmentStoreSettings(
    container_count=4,
    restart_delay_s=3600.0,
    assignment_interval_s=3600.0,
    start_stall_timeout_s=3600.0,
    cache=SMALL_CACHE,
    container=QUIET,
)
A = "s/t/0.#epoch.0"
HOME = container_of(A, 4)


class Pair:
    """Stores `a` and `b`, and what is assigned to each."""

    def __init__(self) -> None:
        self.runtime = memory_runtime()
        self.logs = MemoryLogFactory(self.runtime)
        self.chunks = FaultyChunks()
        self.assignment: dict[str, Collection[int] | None] = {"a": range(4), "b": ()}
        self.a, self.b = self._store("a"), self._store("b")

    def _store(self, name: str) -> SegmentStore:
        async def assigned() -> Collection[int] | None:
            return self.assignment[name]

        return SegmentStore(
            logs=self.logs, chunks=self.chunks, runtime=self.runtime, settings=SETTINGS, assignment=assigned
        )

    def epoch(self) -> int:
        """Return the epoch of the log of `A`'s container."""
        return self.logs._get(HOME).epoch


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Store a runs everything and has a segment of 5 bytes."""
    made = Pair()
    await made.a.start()
    await made.b.start()
    await until(lambda: made.a.is_ready)
    await made.a.create_segment(A)
    await made.a.append(A, b"first")
    yield made
    await made.a.stop()
    await made.b.stop()
    await made.runtime.work.close()


async def test_a_container_moves_with_what_was_acknowledged(pair: Pair) -> None:
    """There and back: the store that gives it away stops it in order and answers that it is not there."""
    others = [container_id for container_id in range(4) if container_id != HOME]
    epochs = [pair.epoch()]
    for giver, taker, names in ((pair.a, pair.b, "ab"), (pair.b, pair.a, "ba")):
        pair.assignment[names[0]] = others if giver is pair.a else ()
        await giver.refresh_assignment()
        with pytest.raises(ContainerNotFoundError):
            await giver.segment_info(A)
        await until(lambda giver=giver: HOME not in giver.held)  # type: ignore[misc]
        pair.assignment[names[1]] = [HOME] if taker is pair.b else range(4)
        await taker.refresh_assignment()
        await until(lambda taker=taker: taker.is_ready)  # type: ignore[misc]
        assert (await taker.read(A, 0, 100)).joined() == b"first"
        epochs.append(pair.epoch())
        assert not giver.failures
    assert epochs == sorted(set(epochs))


async def test_a_store_that_missed_its_loss_is_shut_out_and_takes_the_container_again(pair: Pair) -> None:
    """SS-9, SS-11: the new owner opens the log while the old one, cut off from the assignment, continues.

    The old one's next append is not acknowledged and its container ends. No acknowledged byte is lost. When the
    container is given back, the old owner shuts the new one out in the same way.
    """
    epochs = [pair.epoch()]
    contents = b"first"
    old, new = pair.a, pair.b
    for name in ("b", "a"):
        pair.assignment[name] = [HOME]
        new.set_assignment([HOME])
        await until(lambda new=new: new.is_ready)  # type: ignore[misc]
        epochs.append(pair.epoch())
        assert (await new.read(A, 0, 100)).joined() == contents
        with pytest.raises(OutcomeUnknownError):
            await old.append(A, b"from a zombie")
        with pytest.raises(ContainerNotFoundError):
            await old.append(A, b"and again")
        assert HOME in old.failures
        data = b" then " + name.encode()
        await new.append(A, data)
        contents += data
        assert (await new.read(A, 0, 100)).joined() == contents
        old.set_assignment([])
        await until(lambda old=old: not old.held)  # type: ignore[misc]
        old, new = new, old
    assert epochs == sorted(set(epochs))


async def test_requests_that_wait_when_a_container_is_given_away_end(pair: Pair) -> None:
    """SS-16: a read parked at the tail, and an append in a log that is slow; neither hangs."""
    waiting = asyncio.ensure_future(pair.a.read(A, 5, 100, wait=True))
    pair.logs.hold_appends(HOME)
    appending = asyncio.ensure_future(pair.a.append(A, b"slow"))
    await asyncio.sleep(0)
    pair.a.set_assignment([])
    await asyncio.sleep(0)
    with pytest.raises(ContainerNotFoundError):
        await pair.a.append(A, b"late")
    pair.logs.release_appends(HOME)
    done, pending = await asyncio.wait((waiting, appending), timeout=5)
    assert not pending
    assert len(done) == 2
    for task in done:
        task.exception()
    await until(lambda: not pair.a.held)


async def test_without_an_assignment_nothing_runs_until_there_is_one(pair: Pair) -> None:
    """SS-4: in a whole store."""
    pair.assignment["a"] = None
    await pair.a.refresh_assignment()
    assert pair.a.is_ready
    assert (await pair.a.segment_info(A)).length == 5
    await pair.b.stop()
    pair.assignment["b"] = None
    pair.b = pair._store("b")
    await pair.b.start()
    assert pair.b.containers == []
    assert pair.b.is_ready


async def test_fixed_containers_need_no_assignment(pair: Pair) -> None:
    """To ask again changes nothing then."""
    settings = replace(SETTINGS, container_count=2)
    store = SegmentStore(
        logs=MemoryLogFactory(pair.runtime), chunks=FaultyChunks(), runtime=pair.runtime, settings=settings,
        container_ids=[1],
    )  # fmt: skip
    await store.start()
    await store.refresh_assignment()
    assert [container.id for container in store.containers] == [1]
    await store.stop()


async def test_a_container_that_is_given_away_while_its_log_is_opened_is_not_claimed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a store whose claim takes long shuts the rightful owner out. Given back, the container starts."""
    epoch = pair.epoch()
    is_free = asyncio.Event()
    is_opening = asyncio.Event()
    create = pair.logs.create

    def create_slow(container_id: int) -> DurableLog:
        log = create(container_id)
        original = log.open

        async def open_late(inspect: InspectFrame | None = None) -> None:
            is_opening.set()
            await is_free.wait()
            await original(inspect)

        monkeypatch.setattr(log, "open", open_late)
        return log

    monkeypatch.setattr(pair.logs, "create", create_slow)
    pair.b.set_assignment([HOME])
    await is_opening.wait()
    pair.b.set_assignment([])
    await until(lambda: not pair.b.held)
    is_free.set()
    assert pair.epoch() == epoch
    await pair.a.append(A, b" more")
    assert not pair.b.failures
    pair.b.set_assignment([HOME])
    await until(lambda: pair.b.is_ready)
    assert (await pair.b.read(A, 0, 100)).joined() == b"first more"
