"""Two live controllers on one stream, their requests to the store in many orders, each drawn from a seed.

Before and after each request of one, the other one runs for a number of turns that is drawn. In some runs the
membership of one expires during the work; it keeps running, and joins again.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.records import SegmentRecord, StreamState, TransactionStatus
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.transaction_ids import TransactionId
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.controller.transactions.lease_timers import OpenTransaction
from penstock.model.errors import PenstockError
from penstock.model.names import segment_name, transaction_segment_name
from penstock.model.policies import Scaling, StreamConfig
from penstock.model.segments import TableRemoval, TableUpdate
from penstock_simulation.memory_segments import MemorySegments
from support.failing_segments import OneByOne
from support.in_process_cluster import InProcessCluster
from support.mark_segments import without_marks

SETTINGS = ControllerSettings(
    attempts_max=3, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1, transaction_id_range=3
)

SEEDS = range(12)


class Interleaved(OneByOne):
    """Passes calls on to a store; others have turns before and after each."""

    def __init__(self, store: MemorySegments, rng: random.Random) -> None:
        self.store = store
        self.rng = rng

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self.store, name)

        async def forward(
            *arguments: str | list[bytes | str | TableUpdate | TableRemoval], **options: int | bytes
        ) -> Any:
            await self._others()
            try:
                return await call(*arguments, **options)
            finally:
                await self._others()

        return forward

    async def _others(self) -> None:
        for _ in range(self.rng.choice((0, 0, 1, 2, 7))):
            await asyncio.sleep(0)


class User:
    """Asks one controller for changes of the stream, one after the other, and for transactions."""

    def __init__(self, name: str, service: ControllerService, store: MemorySegments, rng: random.Random) -> None:
        self.name, self.service, self.store, self.rng = name, service, store, rng
        self.committed: dict[TransactionId, str] = {}

    async def run(self, changes: int) -> None:
        for number in range(changes):
            work = self.rng.choice((self.update, self.truncate, self.scale, self.commit, self.commit))
            try:
                await work(number)
            except PenstockError:
                continue  # The other one was faster, or this controller is no member for a moment.

    async def update(self, number: int) -> None:
        await self.service.update_stream("s", "t", StreamConfig(Scaling.fixed(2), tags=(f"{self.name}{number}",)))

    async def truncate(self, number: int) -> None:
        current = await self.service.current_segments("s", "t")
        await self.service.truncate_stream("s", "t", {segment.id: 0 for segment in current})

    async def scale(self, number: int) -> None:
        current = await self.service.current_segments("s", "t")
        await self.service.scale_stream(
            "s", "t", [segment.id for segment in current], [(0.0, 0.25), (0.25, 1.0)] if number % 2 else HALVES
        )

    async def commit(self, number: int) -> None:
        transactions = self.service.transactions
        created = await transactions.create("s", "t", 30_000)
        text = f"<{self.name}{number}>"
        for segment in created.epoch.segments:
            name = transaction_segment_name(segment_name("s", "t", segment.id), created.id.high, created.id.low)
            await self.store.append(name, text.encode())
        # From here on it may be committed, whatever becomes of the call.
        self.committed[created.id] = text
        await transactions.commit("s", "t", created.id, writer_id="w", timestamp=1)


HALVES = [(0.0, 0.5), (0.5, 1.0)]


async def play(
    cluster: InProcessCluster, seed: int, *, expires: int
) -> tuple[list[ControllerService], list[User], dict[str, bytes]]:
    """Let two users work at two controllers, and return all that was written, with those who may have written it."""
    store, rng = cluster.store, random.Random(seed)
    services = [cluster.build(SETTINGS, segments=Interleaved(store, random.Random(rng.random()))) for _ in range(2)]  # type: ignore[arg-type]
    for service in services:
        await service.start()
    await services[0].create_scope("s")
    await services[0].create_stream("s", "t", StreamConfig(Scaling.fixed(2)))
    written = {}
    delete = store.delete_segment

    async def keep(segment: str) -> None:
        # What a truncation deletes was written nevertheless.
        if "#transaction" not in segment and segment in store.segments:
            written[segment] = bytes(store.segments[segment].data)
        await delete(segment)

    store.delete_segment = keep  # type: ignore[method-assign]
    named = zip("ab", services, strict=True)
    users = [User(name, service, store, random.Random(rng.random())) for name, service in named]
    running = [asyncio.create_task(user.run(8)) for user in users]
    for _ in range(expires):
        for _ in range(rng.randrange(50, 400)):
            await asyncio.sleep(0)
        cluster.expire(rng.choice(services))
    await asyncio.gather(*running)
    # The controller that expired last has joined again, and has begun to scan for unfinished work.
    for _ in range(2000):
        await asyncio.sleep(0.001)
        if not any(service._context.claims._membership.is_over for service in services):  # type: ignore[union-attr]
            break
    await asyncio.sleep(0.01)
    for _ in range(3):
        for service in services:
            await service.idle()
    written.update({name: bytes(found.data) for name, found in without_marks(store).items()})
    return services, users, written


@pytest.mark.parametrize("expires", [0, 3], ids=["all live", "some are taken for dead"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_two_live_controllers_leave_a_stream_as_one_would(
    cluster: InProcessCluster, seed: int, expires: int
) -> None:
    """Nothing stays announced or half done; what was committed is there once in each range of keys, nothing else is."""
    services, users, written = await play(cluster, seed, expires=expires)
    first, second = services
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]
    tables = await first._catalog.on_stream("s", "t", _itself)
    assert (await tables.state()).record.state is StreamState.ACTIVE
    assert (await tables.transition()).record.is_empty
    assert (await tables.commit_view()).committing.record.is_empty
    current = await second.current_segments("s", "t")
    is_open = {
        name for name, found in without_marks(cluster.store).items() if not found.is_sealed and "#tr" not in name
    }
    assert is_open == {segment_name("s", "t", segment.id) for segment in current}
    everything = b"".join(data for name, data in written.items() if "#transaction" not in name).decode()
    for user in users:
        for transaction, text in user.committed.items():
            status = await first.transactions.status("s", "t", transaction)
            assert status in (TransactionStatus.COMMITTED, TransactionStatus.OPEN), (text, status)
            assert everything.count(text) == (2 if status is TransactionStatus.COMMITTED else 0), (text, status)
    # Not vacuous: there was something to get wrong.
    assert sum(len(user.committed) for user in users) >= 2
    if not expires:
        assert [service.statistics().taken_over_count for service in services] == [0, 0]
    assert first.statistics().given_up_count == second.statistics().given_up_count == 0


async def _itself(tables: StreamTables) -> StreamTables:
    return tables


async def scale_once(service: ControllerService, rng: random.Random) -> None:
    """Split a segment, or join two neighbours when there are many, and wait for the end of it."""
    current = await service.current_segments("s", "t")
    at = rng.randrange(len(current) - 1)
    one, next_one = current[at], current[at + 1]
    if len(current) < 4:
        middle = (one.key_start + one.key_end) / 2
        to_seal, ranges = [one.id], [(one.key_start, middle), (middle, one.key_end)]
    else:
        to_seal, ranges = [one.id, next_one.id], [(one.key_start, next_one.key_end)]
    await service.scale_stream("s", "t", to_seal, ranges)
    await service.idle()


@pytest.mark.parametrize("seed", SEEDS)
async def test_what_follows_a_segment_is_the_same_whenever_it_is_requested(
    cluster: InProcessCluster, seed: int
) -> None:
    """S-020: one controller scales repeatedly; another one is asked for the successors of each segment it knows.

    The answer is empty or the same as later ones, and not empty once the segment is no longer current.
    """
    rng = random.Random(seed)
    first, second = (
        cluster.build(SETTINGS, segments=Interleaved(cluster.store, random.Random(rng.random())))  # type: ignore[arg-type]
        for _ in range(2)
    )
    for service in (first, second):
        await service.start()
    await first.create_scope("s")
    await first.create_stream("s", "t", StreamConfig(Scaling.fixed(2)))

    async def scale() -> None:
        for _ in range(8):
            await scale_once(first, rng)

    scaling = asyncio.create_task(scale())
    known: dict[int, SegmentRecord]
    known, answers = {}, []
    while not scaling.done():
        current = {segment.id: segment for segment in await second.current_segments("s", "t")}
        known |= current  # type: ignore[arg-type]
        for segment in known:
            following = await second.successors("s", "t", segment)
            assert following or segment in current, segment
            answers.append((segment, following))
    await scaling
    for segment, following in answers:
        if following:
            assert following == await first.successors("s", "t", segment)
            # They take over all of its keys, each once.
            ends = [one.segment.key_end for one in following]
            assert [one.segment.key_start for one in following[1:]] == ends[:-1]
            assert following[0].segment.key_start <= known[segment].key_start
            assert known[segment].key_end <= ends[-1]
            assert all(segment in one.predecessors for one in following)
    # Not vacuous: segments of all epochs were asked for, some before their end.
    assert len(await first.epoch_segments("s", "t", 8)) in (3, 4)
    assert len({segment for segment, _ in answers}) > 6
    assert {bool(following) for _, following in answers} == {False, True}


COMMITTED, ABORTED = TransactionStatus.COMMITTED, TransactionStatus.ABORTED
#: What a caller may be told, by how it ends.
ANSWERS = {COMMITTED: (TransactionStatus.COMMITTING, COMMITTED), ABORTED: (TransactionStatus.ABORTING, ABORTED)}


class Deciding:
    """Two controllers that are asked to end the same transactions, each of them in its own way, at the same time."""

    def __init__(self, cluster: InProcessCluster, seed: int) -> None:
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.services = [
            cluster.build(SETTINGS, segments=Interleaved(cluster.store, random.Random(self.rng.random())))  # type: ignore[arg-type]
            for _ in range(2)
        ]

    async def start(self) -> None:
        for service in self.services:
            await service.start()
        await self.services[0].create_scope("s")
        await self.services[0].create_stream("s", "t", StreamConfig(Scaling.fixed(2)))

    async def commit(self, service: ControllerService, transaction: TransactionId) -> TransactionStatus:
        return await service.transactions.commit("s", "t", transaction, writer_id="w", timestamp=-1)

    async def abort(self, service: ControllerService, transaction: TransactionId) -> TransactionStatus:
        return await service.transactions.abort("s", "t", transaction)

    async def expiry(self, service: ControllerService, transaction: TransactionId) -> None:
        """Let the lease end, by the clock of the wall and by the timer of this controller."""
        tables = await service._catalog.on_stream("s", "t", _itself)
        found = await tables.transaction(transaction)
        if found is not None:
            service.transactions.work._expired(OpenTransaction("s", "t", transaction), found.version)

    async def end(self, text: bytes, *ways: str) -> TransactionStatus:
        """Begin a transaction somewhere, and end it in these ways at both controllers; return how it ended."""
        begun_at = self.rng.choice(self.services)
        transaction = (await begun_at.transactions.create("s", "t", 10_000)).id
        for segment in (0, 1):
            name = transaction_segment_name(segment_name("s", "t", segment), transaction.high, transaction.low)
            await self.cluster.store.append(name, text)
        self.cluster.clock_ms += 20_000  # Its lease is over, and no controller has checked yet.
        asked = list(self.services)
        self.rng.shuffle(asked)
        answers = await asyncio.gather(
            *(getattr(self, way)(service, transaction) for way, service in zip(ways, asked, strict=True))
        )
        for _ in range(2):
            for service in self.services:
                await service.idle()
        ends = {await service.transactions.status("s", "t", transaction) for service in self.services}
        assert len(ends) == 1, ends
        (ended,) = ends
        for answer in answers:
            assert answer is None or answer in ANSWERS[ended], (answer, ended)
        for segment in (0, 1):
            data = bytes(self.cluster.store.segments[segment_name("s", "t", segment)].data)
            assert data.count(text) == (ended is COMMITTED)
        return ended


@pytest.mark.parametrize(
    ("ways", "ends"),
    [
        (("commit", "commit"), {COMMITTED}),
        (("commit", "abort"), {COMMITTED, ABORTED}),
        (("commit", "expiry"), {COMMITTED, ABORTED}),
        (("abort", "expiry"), {ABORTED}),
    ],
    ids=lambda value: " and ".join(value) if isinstance(value, tuple) else "",
)
async def test_a_transaction_that_two_controllers_end_at_once_ends_in_one_way(
    fresh: Callable[[], InProcessCluster], ways: tuple[str, str], ends: set[TransactionStatus]
) -> None:
    """One outcome, which both controllers and the replies to their callers report; its events are there once, or not at
    all; nothing of it is left. Over all seeds each way has been the first one.
    """
    seen = set()
    for seed in SEEDS:
        cluster = fresh()
        deciding = Deciding(cluster, seed)
        await deciding.start()
        for number in range(4):
            seen.add(await deciding.end(b"<%d>" % number, *ways))
        assert not [name for name in cluster.store.segments if "#transaction" in name]
        assert not cluster.store.tables[layout.TRANSACTION_INDEX].entries
        assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]
    assert seen == ends
