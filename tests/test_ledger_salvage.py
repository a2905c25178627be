"""`salvage_ledger_log` on the logs of a small store in this process, with simulated bookies and ZooKeeper."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.administration.bookkeeper_administration import BookKeeperAdministration
from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.ledger_rebuild import ClusterLogs, RebuildState
from penstock.administration.ledger_salvage import salvage_ledger_log
from penstock.administration.log_administration import LogState
from penstock.administration.log_salvage import Salvaged
from penstock.model.errors import InvalidArgumentError, LogFencedError, PenstockError, StorageError
from penstock.model.routing import container_of
from penstock.runtime.ledgers import LedgerObserver, LedgerQuorum
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.segmentstore.container_settings import ImageSettings
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore, StoredLogRecord
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage
from penstock.server.settings import StandaloneSettings
from penstock_simulation.simulated.bookies import BookieSettings, LedgerState, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers, SimulatedReader, SimulatedWriter
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.small_store import NAMES, settings_of

LOG = BookKeeperSettings(retry_s=0.01, truncate_interval_s=0.0, ensemble_wait_s=0.2)
BOOKIES = BookieSettings(request_timeout_s=0.2, session_s=0.0)
#: Segments of container 0, which gets damaged, and one of container 1.
HERE = [name for name in NAMES if container_of(name, 2) == 0]
THERE = next(name for name in NAMES if container_of(name, 2) == 1)
MARK = b"this event will be damaged"


#: Entries of a ledger by bookie.
Intact = Mapping[str, dict[int, tuple[bytes, int]]]


class EndedError(Exception):
    """The process has ended."""


class Steps:
    """Counts the steps of a process, which ends before a step when none is `left`."""

    def __init__(self, left: int | None) -> None:
        self.left: int | None = left
        #: Called before a step, by its name.
        self.on_step: dict[str, Callable[[], None]] = {}

    def take(self, name: str = "") -> None:
        """Begin a step. Raises `EndedError`."""
        if self.left is not None:
            if not self.left:
                raise EndedError
            self.left -= 1
        if name in self.on_step:
            self.on_step.pop(name)()


class MortalLedgers(SimulatedLedgers):
    """A client whose process may end before and after each change."""

    def __init__(self, cluster: SimulatedBookies, rng: random.Random, steps: Steps) -> None:
        super().__init__(cluster, rng)
        self._steps = steps

    async def create(
        self, quorum: LedgerQuorum, labels: Mapping[str, bytes], observer: LedgerObserver
    ) -> SimulatedWriter:
        """See `SimulatedLedgers.create`."""
        self._steps.take("create")
        made = await super().create(quorum, labels, observer)
        self._steps.take("created")
        return made

    async def open(self, ledger_id: int, *, is_fencing: bool) -> SimulatedReader:
        """See `SimulatedLedgers.open`."""
        if is_fencing:
            self._steps.take("fence")
        return await super().open(ledger_id, is_fencing=is_fencing)

    async def delete(self, ledger_id: int) -> None:
        """See `SimulatedLedgers.delete`."""
        self._steps.take("delete")
        await super().delete(ledger_id)


class MortalRecords(RecordStore):
    """Records of a process that may end before and after each change."""

    def __init__(self, service: SimulatedCoordination, cluster_id: str, steps: Steps) -> None:
        super().__init__(service, cluster_id, LOG.retry_s)
        self._steps = steps

    async def change(self, before: StoredLogRecord | None, record: LogRecord) -> StoredLogRecord:
        """See `RecordStore.change`."""
        self._steps.take("change")
        changed = await super().change(before, record)
        self._steps.take("changed")
        return changed


class World:
    """Bookies, ZooKeeper, and settings of stores whose logs are there."""

    def __init__(self, tmp_path: Path, log: BookKeeperSettings = LOG) -> None:
        self.log: BookKeeperSettings = log
        settings = replace(settings_of(tmp_path), bookkeeper=log)
        container = replace(settings.segment_store.container, ownership_lease_s=2.0, images=ImageSettings(interval_s=0))
        self.settings: StandaloneSettings = replace(
            settings, segment_store=replace(settings.segment_store, container=container)
        )
        self.bookies = SimulatedBookies(random.Random(1), 4, BOOKIES)
        self.zookeeper = SimulatedZooKeeper(random.Random(2), ZooKeeperSettings(server_count=1))
        self.cluster_id = ""

    def service(self) -> SimulatedCoordination:
        """Return a client of ZooKeeper."""
        return SimulatedCoordination(self.zookeeper, "host", random.Random(4))

    @asynccontextmanager
    async def store(self) -> AsyncIterator[SegmentStore]:
        """Run a store."""
        runtime = real_runtime(2)
        directory = DataDirectory(self.settings.data_dir, runtime)
        self.cluster_id = directory.open(2).cluster_id
        store = SegmentStore(
            logs=BookKeeperLogFactory(
                SimulatedLedgers(self.bookies, random.Random(3)), self.service(), runtime, self.log,
                cluster_id=self.cluster_id, container_count=2,
            ),
            chunks=open_long_term_storage(self.settings, directory, runtime),
            cluster_id=self.cluster_id,
            runtime=runtime,
            settings=self.settings.segment_store,
        )  # fmt: skip
        try:
            await store.start()
            yield store
        finally:
            await store.stop()
            directory.close()
            await runtime.work.close()

    async def fill(self) -> None:
        """Write segments of both containers; each append is an entry of its own."""
        async with self.store() as store:
            for name in (*HERE, THERE):
                await store.create_segment(name)
                await store.append(name, b"before")
            await store.append(HERE[0], MARK)
            await store.append(HERE[0], b"after")
            await store.append(HERE[1], b" and more")

    @asynccontextmanager
    async def administration(self, steps: Steps) -> AsyncIterator[tuple[BookKeeperAdministration, Runtime]]:
        """Open the logs for administration."""
        runtime = real_runtime(2)
        ledgers = MortalLedgers(self.bookies, random.Random(5), steps)
        records = MortalRecords(self.service(), self.cluster_id, steps)
        try:
            yield BookKeeperAdministration(ClusterLogs(ledgers, records, self.settings.bookkeeper, runtime, 2)), runtime
        finally:
            await records.close()
            await ledgers.close()
            await runtime.work.close()

    async def salvage(
        self, *, is_dry_run: bool = False, is_without_absent: bool = False, steps: Steps | None = None
    ) -> Salvaged:
        """Salvage the log of container 0."""
        async with self.administration(steps or Steps(None)) as (logs, runtime):
            return await salvage_ledger_log(
                logs, self.settings, runtime, 0, enable_command="penstock cluster log enable 0",
                is_dry_run=is_dry_run, is_without_absent=is_without_absent,
            )  # fmt: skip

    async def record(self) -> LogRecord:
        """Return the record of container 0."""
        async with self.administration(Steps(None)) as (logs, _):
            return (await logs.demand(0)).record

    async def lose_record(self) -> None:
        """Delete the record of container 0."""
        session = await self.service().open_session()
        await session.delete(record_path(0))
        await session.close()

    async def rebuild(self) -> None:
        """Make the records again that are lost."""
        async with self.administration(Steps(None)) as (logs, _):
            assert (await logs.rebuild(is_dry_run=False))[0].state is RebuildState.REBUILT

    async def reopen(self) -> None:
        """Have the ledgers of container 0 be as after the crash of their store: open, with no recorded end."""
        async with self.administration(Steps(None)) as (logs, _):
            stored = await logs.demand(0)
            ledgers = tuple(replace(each, last_entry=None) for each in stored.record.ledgers)
            record = replace(stored.record, ledgers=ledgers, is_released=False, nonce=bytes(16))
            await logs.logs.records.change(stored, record)
        for each in ledgers:
            seen = self.bookies.ledgers[each.ledger_id]
            self.bookies.ledgers[each.ledger_id] = replace(seen, state=LedgerState.OPEN, last_entry=-1)

    def entries(self, mark: bytes = MARK) -> list[tuple[str, int, int]]:
        """Return bookie, ledger and number of the entries that have `mark`."""
        return [
            (bookie.name, ledger, entry)
            for bookie in self.bookies.bookies.values()
            for ledger, entries in bookie.entries.items()
            for entry, (data, _) in entries.items()
            if mark in data
        ]

    def damage(self) -> int:
        """Flip a bit of the mark on all bookies; return the number of the ledger."""
        for name, ledger, entry in self.entries():
            entries = self.bookies.bookies[name].entries[ledger]
            data, lac = entries[entry]
            at = data.find(MARK)
            entries[entry] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], lac
        return ledger

    def state(self) -> object:
        """Return all that bookies and ZooKeeper have of ledgers, for comparison."""
        stored = {bookie.name: dict(bookie.entries) for bookie in self.bookies.bookies.values()}
        fenced = {bookie.name: set(bookie.fenced) for bookie in self.bookies.bookies.values()}
        return stored, fenced, dict(self.bookies.ledgers)


async def read(store: SegmentStore, name: str) -> bytes:
    """Return the bytes of a segment."""
    info = await store.segment_info(name)
    return (await store.read(name, 0, info.length)).joined() if info.length else b""


async def check_salvaged(world: World, *, cycles: int = 2) -> None:
    """Check what a store serves of the new log, twice, and that it continues."""
    for cycle in range(cycles):
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + b"!" * cycle
            assert await read(store, HERE[1]) == b"before and more"
            assert await read(store, THERE) == b"before"
            await store.append(HERE[0], b"!")


async def test_a_damaged_entry_is_lost_and_all_else_is_in_the_new_log(tmp_path: Path) -> None:
    """A dry run changes and fences nothing; the damaged ledgers stay, also in a sweep; a second run finds nothing."""
    world = World(tmp_path)
    await world.fill()
    ledger = world.damage()
    state, before = world.state(), await world.record()
    told = await world.salvage(is_dry_run=True)
    assert (world.state(), await world.record()) == (state, before)
    done = await world.salvage()
    assert done.report is not None
    assert told.report is not None
    (loss,) = done.report.segments.values()
    assert (loss.name, loss.start, loss.end) == (HERE[0], 6, 6 + len(MARK) + 5)
    assert told.report.segments == done.report.segments
    assert [(lost.file, lost.end - lost.start, lost.unit) for lost in done.report.lost] == [
        (f"ledger {ledger} of BookKeeper", 1, "entries")
    ]
    assert f"{ledger}" in done.damaged_path
    after = await world.record()
    assert after.is_enabled
    assert after.epoch > before.epoch + 65000
    with pytest.raises(InvalidArgumentError, match="is not damaged"):
        await world.salvage()
    await check_salvaged(world)
    async with world.administration(Steps(None)) as (logs, _):
        await logs.sweep(is_dry_run=False)
        assert [each.state for each in await logs.reports()] == [LogState.ENABLED] * 2
    assert ledger in world.bookies.ledgers
    await check_reads(world)


async def check_reads(world: World) -> None:
    """Check that the log has what `check_salvaged` has left in it."""
    async with world.store() as store:
        assert await read(store, HERE[0]) == b"before!!"


async def test_entries_that_no_bookie_has_are_lost(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill()
    for name, ledger, entry in world.entries():
        del world.bookies.bookies[name].entries[ledger][entry]
    done = await world.salvage()
    assert done.report is not None
    (lost,) = done.report.lost
    assert lost.end - lost.start == 1
    await check_salvaged(world)


async def test_a_missing_ledger_is_lost_and_the_next_ones_are_read(tmp_path: Path) -> None:
    """It has the appends of the second of three stores."""
    world = World(tmp_path)
    await world.fill()
    for data in (MARK, b"of the third store"):
        async with world.store() as store:
            await store.append(HERE[1] if data != MARK else HERE[0], b"." + data)
    ledger = max(ledger for _, ledger, _ in world.entries(b"." + MARK))
    world.bookies.ledgers.pop(ledger)
    done = await world.salvage()
    assert done.report is not None
    assert [(lost.file, lost.problem) for lost in done.report.lost] == [
        (f"ledger {ledger} of BookKeeper", "the ledger is missing")
    ]
    async with world.store() as store:
        assert await read(store, HERE[0]) == b"before" + MARK + b"after"
        assert await read(store, HERE[1]) == b"before and more.of the third store"


@pytest.mark.parametrize(
    "is_open", [pytest.param(False, id="closed"), pytest.param(True, id="open", marks=pytest.mark.nightly)]
)
async def test_what_absent_bookies_have_is_lost_only_on_request(tmp_path: Path, is_open: bool) -> None:
    """Two of the three bookies of a ledger are away, and the third has not one of its entries.

    An open ledger cannot be fenced then: its owner is waited for.
    """
    world = World(tmp_path, replace(LOG, deletion_delay_s=8.0))
    await world.fill()
    if is_open:
        await world.reopen()
    found = world.entries()
    _, ledger, entry = found[0]
    first, second, third = world.bookies.ledgers[ledger].bookies_of(entry)
    del world.bookies.bookies[third].entries[ledger][entry]
    world.bookies.kill(first)
    world.bookies.kill(second)
    state, before = world.state(), await world.record()
    with pytest.raises(StorageError, match=r"are back|answer"):
        await world.salvage()
    if not is_open:
        assert (world.state(), await world.record()) == (state, before)
    assert (await world.record()).ledgers == before.ledgers
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    await world.salvage(is_without_absent=True)
    assert not is_open or loop.time() - began_s >= world.log.deletion_delay_s
    await check_salvaged(world)


async def test_an_owner_that_still_runs_is_fenced_and_what_it_acknowledged_is_kept(tmp_path: Path) -> None:
    """Its log was damaged after it was read. The other container of its process continues."""
    world = World(tmp_path)
    await world.fill()
    async with world.store() as store:
        await store.append(HERE[0], MARK)
        world.damage()
        await store.append(HERE[1], b"!")
        await world.salvage()
        with pytest.raises(PenstockError):
            await store.append(HERE[1], b"?")
        await store.append(THERE, b"!")
    async with world.store() as store:
        assert await read(store, HERE[1]) == b"before and more!"
        assert await read(store, THERE) == b"before!"


async def test_a_record_that_is_changed_meanwhile_ends_the_salvage_and_the_log_stays(tmp_path: Path) -> None:
    """Another run begins while the new log is written, and ends it."""
    world = World(tmp_path)
    await world.fill()
    world.damage()
    first, second = Steps(None), Steps(None)
    others: list[asyncio.Task[Salvaged]] = []

    def begin() -> None:
        others.append(asyncio.get_running_loop().create_task(world.salvage(steps=second)))

    first.on_step["fence"] = begin
    await asyncio.gather(world.salvage(steps=first), return_exceptions=True)
    results = await asyncio.gather(*others, return_exceptions=True)
    outcomes = [each for each in results if isinstance(each, Salvaged | LogFencedError | InvalidArgumentError)]
    assert len(outcomes) == 1
    await check_salvaged(world)


async def test_a_log_without_a_whole_checkpoint_is_left_as_it_is(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.fill()
    for ledger in (await world.record()).ledgers:
        for bookie in world.bookies.bookies.values():
            bookie.entries.pop(ledger.ledger_id, None)
    state, before = world.state(), await world.record()
    with pytest.raises(LogNotSalvageableError, match="start them and run `penstock cluster log enable 0`"):
        await world.salvage()
    assert (world.state(), await world.record()) == (state, before)


async def ended_salvages(tmp_path: Path) -> AsyncIterator[tuple[World, LogRecord, Callable[[], None]]]:
    """Yield worlds with a salvage that has ended before the first change, the next one, and so on.

    With the record as it was before, and a function that undoes the damage.
    """
    for count in itertools.count():
        world = World(tmp_path / str(count))
        await world.fill()
        intact = {name: world.bookies.bookies[name].entries[ledger] for name, ledger, _ in world.entries()}
        intact = {name: dict(entries) for name, entries in intact.items()}
        ledger = world.damage()
        before, steps = await world.record(), Steps(count)

        def undo(world: World = world, ledger: int = ledger, intact: Intact = intact) -> None:
            for name, entries in intact.items():
                world.bookies.bookies[name].entries[ledger] = entries

        try:
            await world.salvage(steps=steps)
        except EndedError:
            pass
        yield world, before, undo
        if steps.left:
            return


@pytest.mark.nightly
async def test_a_salvage_that_ends_at_any_step_leaves_the_damaged_log_or_the_new_one(tmp_path: Path) -> None:
    """The process ends before and after each change; a sweep follows. The next run completes what is left."""
    outcomes: list[bool] = []
    async for world, before, _ in ended_salvages(tmp_path):
        left = await world.record()
        async with world.administration(Steps(None)) as (logs, _):
            await logs.sweep(is_dry_run=False)
        outcomes.append(left.begins > 0)
        if left.begins:
            with pytest.raises(InvalidArgumentError, match="is not damaged"):
                await world.salvage()
        else:
            assert left.ledgers[: len(before.ledgers)] == before.ledgers
            assert all(each.last_entry == -1 for each in left.ledgers[len(before.ledgers) :])
            await world.salvage()
        await check_salvaged(world)
    assert outcomes == sorted(outcomes)
    assert outcomes.count(False) > 5


@pytest.mark.nightly
async def test_after_a_salvage_that_ended_at_any_step_the_damage_may_be_undone_and_the_record_lost(
    tmp_path: Path,
) -> None:
    """Bookies are back with the intact entries. A record that is made again names the old log, or the new one."""
    outcomes: list[bool] = []
    async for world, _, undo in ended_salvages(tmp_path):
        undo()
        await world.lose_record()
        await world.rebuild()
        is_new = (await world.record()).begins > 0
        outcomes.append(is_new)
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + (b"" if is_new else MARK + b"after")
            assert await read(store, HERE[1]) == b"before and more"
            await store.append(HERE[0], b"!")
        await world.lose_record()
        await world.rebuild()
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + (b"" if is_new else MARK + b"after") + b"!"
    assert outcomes == sorted(outcomes)
    assert {True, False} == set(outcomes)


@pytest.mark.nightly
async def test_after_a_salvage_that_ended_at_any_step_the_old_log_is_enabled_if_the_damage_is_undone(
    tmp_path: Path,
) -> None:
    async for world, _, undo in ended_salvages(tmp_path):
        undo()
        record = await world.record()
        if not record.is_enabled:
            async with world.administration(Steps(None)) as (logs, _):
                await logs.enable(0)
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + (b"" if record.begins else MARK + b"after")
            await store.append(HERE[0], b"!")
        async with world.store() as store:
            assert (await read(store, HERE[0]))[-1:] == b"!"


async def test_a_lost_record_of_a_salvaged_log_names_the_new_ledgers_only(tmp_path: Path) -> None:
    """Also after stores have continued in it, and when the ledgers of the salvage are forgotten."""
    world = World(tmp_path)
    await world.fill()
    damaged = world.damage()
    await world.salvage()
    for cycle in range(2):
        await world.lose_record()
        await world.rebuild()
        record = await world.record()
        assert damaged not in [each.ledger_id for each in record.ledgers]
        assert record.begins
        async with world.store() as store:
            assert await read(store, HERE[0]) == b"before" + b"!" * cycle
            await store.append(HERE[0], b"!")
    assert (await world.record()).begins == record.begins


def test_formats_of_logs_that_were_not_salvaged_are_as_before() -> None:
    """Earlier versions read them, and what they wrote is read."""
    record = LogRecord(0, "ab" * 16, bytes(16))
    assert b"begins" not in record.encode()
    assert LogRecord.decode(record.encode(), "r", 0, "").begins == 0
    salvaged = replace(record, begins=3)
    assert LogRecord.decode(salvaged.encode(), "r", 0, "") == salvaged
    labels = LedgerLabels("ab" * 16, 0, 1, 1)
    assert set(labels.encode()) == {"application", "cluster", "container", "ordinal", "epoch"}
    for each in (labels, replace(labels, begins=3), replace(labels, begins=3, is_draft=True)):
        assert LedgerLabels.decode(each.encode()) == each
