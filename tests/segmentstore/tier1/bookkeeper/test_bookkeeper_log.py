"""Failure cases of the log in BookKeeper, one by one, in virtual time: docs/bookkeeper-log.md."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from penstock.model.errors import (
    CorruptionError,
    LogClosedError,
    LogFencedError,
    LogIdentityError,
    StorageError,
)
from penstock.model.errors.ledgers import LedgerError, LedgerUnavailableError, ledger_error
from penstock.runtime.disk import LocalDisk
from penstock.runtime.ledgers import LedgerEntry
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.bookkeeper_log import BookKeeperLog
from penstock.segmentstore.tier1.bookkeeper.entry_format import FrameEntry
from penstock.segmentstore.tier1.bookkeeper.factory import BookKeeperLogFactory
from penstock.segmentstore.tier1.bookkeeper.log_record import LogRecord
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.durable_log import LogAddress
from penstock_simulation.mutations.bookkeeper_logs import FORGOTTEN_FENCE, REPEATED_ENTRY
from penstock_simulation.simulated.bookies import Bookie, BookieSettings, SimulatedBookies
from penstock_simulation.simulated.ledgers import SimulatedLedgers, SimulatedWriter
from penstock_simulation.simulated.simulation import Simulation
from penstock_simulation.simulated.zookeeper import SimulatedZooKeeper, ZooKeeperSettings
from penstock_simulation.simulated.zookeeper_client import SimulatedCoordination
from support.inline_work import InlineWork

SETTINGS = BookKeeperSettings(truncate_interval_s=0.0, request_timeout_s=5.0)
QUICK = BookieSettings(latency_s_min=0.001, latency_s_max=0.002)


class World:
    """Bookies, a coordination service, and processes with logs in them."""

    def __init__(self, bookie_count: int = 4, settings: BookieSettings = QUICK) -> None:
        self.cluster: SimulatedBookies = SimulatedBookies(random.Random(1), bookie_count, settings)
        self.zookeeper: SimulatedZooKeeper = SimulatedZooKeeper(random.Random(2), ZooKeeperSettings(server_count=1))
        self.runtime: Runtime = Runtime(
            disk=LocalDisk(), work=InlineWork(), rng=random.Random(1), wall_clock_ms=lambda: 0
        )
        self.clients: list[SimulatedLedgers] = []
        self.factories: list[BookKeeperLogFactory] = []

    def process(self, settings: BookKeeperSettings = SETTINGS, cluster_id: str = "a") -> BookKeeperLogFactory:
        """Begin a process; its client is the last of `clients`."""
        number = len(self.clients)
        self.clients.append(SimulatedLedgers(self.cluster, random.Random(number)))
        service = SimulatedCoordination(self.zookeeper, f"host {number}", random.Random(number))
        self.factories.append(
            BookKeeperLogFactory(
                self.clients[-1], service, self.runtime, settings, cluster_id=cluster_id, container_count=3
            )
        )
        return self.factories[-1]

    async def opened(self, settings: BookKeeperSettings = SETTINGS, container_id: int = 0) -> BookKeeperLog:
        """Open the log in a process of its own."""
        log = self.process(settings).create(container_id)
        await log.open()
        return log

    async def record(self) -> LogRecord:
        """Return the record of container 0."""
        stored = await self.factories[-1].process.records.read(0)
        assert stored is not None
        return stored.record

    async def bookies_of_last_ledger(self) -> list[Bookie]:
        """Return the bookies of the ledger that is written."""
        metadata = self.cluster.ledgers[(await self.record()).ledgers[-1].ledger_id]
        return [self.cluster.bookies[name] for name in metadata.ensembles[-1][1]]


def run(scenario: Callable[[World], Awaitable[None]], *, bookies: int = 4, settings: BookieSettings = QUICK) -> None:
    """Run a scenario in virtual time."""

    async def play() -> None:
        world = World(bookies, settings)
        await scenario(world)
        for bookie in world.cluster.bookies.values():
            bookie.is_up = True
        for factory in world.factories:
            await factory.close()

    with Simulation(1) as simulation:
        simulation.run(play)


async def append(log: BookKeeperLog, *texts: str) -> list[LogAddress]:
    """Append frames at once, and wait for all."""
    futures = [log.append([text.encode()], len(text)) for text in texts]
    return list(await asyncio.gather(*futures))


async def texts(log: BookKeeperLog) -> list[str]:
    """Return the frames that an open has found."""
    return [frame.data.decode() async for frame in log.frames()]


@pytest.mark.parametrize("code", [-6, -12, -11, -104, -105, -8, -23, -21, -9, -18])
def test_after_a_failed_ledger_the_log_continues_in_another_one(code: int) -> None:
    """What the bookies have is acknowledged and not stored again; the order stays."""

    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1", "2")
        world.clients[0].fail_next.append(code)
        addresses = await append(log, "3", "4", "5")
        assert addresses == sorted(addresses)
        assert log.problem == ""
        await append(log, "6")
        assert len((await world.record()).ledgers) == 2
        after = await world.opened()
        assert await texts(after) == ["1", "2", "3", "4", "5", "6"]

    run(scenario)


async def _lose_an_answer_and_crash(world: World) -> list[str]:
    """Lose the answer to "3" while the next ledger is prepared, and crash; return what an open reads.

    The metadata are away, so that the writer cannot close its ledger before "3". Recovery finds "3".
    """
    log = await world.opened(replace(SETTINGS, ledger_bytes=22))
    await append(log, "1", "2")
    await asyncio.sleep(1)
    assert len((await world.record()).ledgers) == 2
    world.clients[0].fail_next.append(-11)
    world.clients[0].is_metadata_cut = True
    appending = asyncio.create_task(append(log, "3"))
    await asyncio.sleep(QUICK.request_timeout_s + 1)
    world.clients[0].is_metadata_cut = False
    await appending
    # No later change of the record has the end of the first ledger.
    assert (await world.record()).ledgers[0].last_entry is None
    world.clients[0].is_dead = True
    return await texts(await world.opened())


def test_an_entry_whose_answer_was_lost_is_not_stored_again_in_a_prepared_ledger() -> None:
    async def scenario(world: World) -> None:
        assert await _lose_an_answer_and_crash(world) == ["1", "2", "3"]

    async def broken(world: World) -> None:
        with REPEATED_ENTRY.apply():
            assert await _lose_an_answer_and_crash(world) == ["1", "2", "3", "3"]

    run(scenario)
    run(broken)


@pytest.mark.parametrize("code", [-19, -102, -14, -15, -999])
def test_an_error_that_is_not_repaired_ends_the_log(code: int) -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        world.clients[0].fail_next.append(code)
        with pytest.raises(LedgerError, match=f"code {code}"):
            await append(log, "2")
        with pytest.raises(LogClosedError):
            log.append([b"3"], 1)
        after = await world.opened()
        assert (await texts(after))[0] == "1"

    run(scenario)


def test_a_ledger_that_auto_recovery_has_fenced_ends_the_log_and_is_claimed_again() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        await world.clients[0].open(ledger_id, is_fencing=True)
        with pytest.raises(LogFencedError):
            await append(log, "2")
        await log.close()
        again = world.factories[0].create(0)
        await again.open()
        assert not again.may_predecessor_answer  # The same process has given it up.
        assert await texts(again) == ["1"]
        await append(again, "3")

    run(scenario)


def test_an_append_without_an_answer_is_given_up_and_sent_again() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        world.clients[0].writers[-1].stuck_from = 1
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await append(log, "2", "3")
        assert 14 < loop.time() - began_s < 25
        assert await texts(await world.opened()) == ["1", "2", "3"]

    run(scenario)


def test_without_bookies_appends_wait_and_the_log_continues_when_they_are_back() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        for name in world.cluster.bookies:
            world.cluster.kill(name)
        waiting = log.append([b"2"], 1)
        await asyncio.sleep(120)
        assert not waiting.done()
        assert "BookKeeper" in log.problem
        await log.confirm_ownership()  # The record shows it, as long as there is no ledger.
        world.zookeeper.cut("host 0")
        with pytest.raises(StorageError):
            await log.confirm_ownership()
        world.zookeeper.mend("host 0")
        for name in world.cluster.bookies:
            world.cluster.start(name)
        await waiting
        assert log.problem == ""
        assert await texts(await world.opened()) == ["1", "2"]

    run(scenario)


@pytest.mark.parametrize("is_permitted", [True, False])
def test_with_two_bookies_left_smaller_ledgers_are_used_where_that_is_permitted(is_permitted: bool) -> None:
    """Two of four: acknowledged still means two bookies. With `ensemble_min` 3 the appends wait."""

    async def scenario(world: World) -> None:
        log = await world.opened(SETTINGS if is_permitted else replace(SETTINGS, ensemble_min=3))
        await append(log, "1")
        for bookie in (await world.bookies_of_last_ledger())[:2]:
            world.cluster.kill(bookie.name)
        await asyncio.sleep(QUICK.session_s)  # They are not registered any more.
        waiting = log.append([b"2"], 1)
        await asyncio.sleep(40)
        assert waiting.done() == is_permitted
        if is_permitted:
            writer = world.clients[0].writers[-1]
            assert (writer.quorum.ensemble, writer.quorum.ack) == (2, 2)
        for name in world.cluster.bookies:
            world.cluster.start(name)
        await waiting
        await asyncio.sleep(20)
        await append(log, "3")
        assert world.clients[0].writers[-1].quorum.ensemble == 3  # It grows again.
        assert await texts(await world.opened()) == ["1", "2", "3"]

    run(scenario)


def test_ledgers_that_take_nothing_follow_each_other_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the client has no memory for entries. Without a pause there would be thousands of ledgers."""
    refused_until_s = 0.0
    send = SimulatedWriter.append

    def refuse(self: SimulatedWriter, entry: LedgerEntry) -> None:
        if asyncio.get_running_loop().time() < refused_until_s:
            raise ledger_error(-105, "no memory")
        send(self, entry)

    async def scenario(world: World) -> None:
        nonlocal refused_until_s
        log = await world.opened()
        await append(log, "1")
        monkeypatch.setattr(SimulatedWriter, "append", refuse)
        before = len(world.cluster.ledgers)
        refused_until_s = asyncio.get_running_loop().time() + 30
        await append(log, "2", "3")
        assert len(world.clients[0].writers) - before <= 30 / SETTINGS.retry_s + 1
        assert await texts(await world.opened()) == ["1", "2", "3"]

    run(scenario)


def test_a_ledger_that_has_lost_a_bookie_is_left_before_auto_recovery_fences_it() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        lost = (await world.bookies_of_last_ledger())[0].name
        world.cluster.kill(lost)
        await append(log, "2")  # Two of three have it.
        await asyncio.sleep(29)
        assert world.cluster.without_bookies(0) == []
        await append(log, "3")
        assert lost not in world.clients[0].writers[-1].bookies
        assert await texts(await world.opened()) == ["1", "2", "3"]

    run(scenario)


def test_a_missing_ledger_is_damage_and_nothing_is_deleted() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        await log.close()
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        lost = world.cluster.ledgers.pop(ledger_id)
        log = await world.opened()
        with pytest.raises(CorruptionError, match=f"ledger {ledger_id}"):
            await texts(log)
        assert ledger_id in [each.ledger_id for each in (await world.record()).ledgers]
        world.cluster.ledgers[ledger_id] = lost
        assert await texts(await world.opened()) == ["1"]

    run(scenario)


def test_a_missing_ledger_that_was_empty_is_skipped() -> None:
    """A predecessor's empty ledger stays in the record for a time; it is not read."""

    async def scenario(world: World) -> None:
        await world.opened()
        log = await world.opened()
        empty = (await world.record()).ledgers[0]
        assert empty.last_entry == -1
        del world.cluster.ledgers[empty.ledger_id]
        await append(log, "1")
        assert await texts(await world.opened()) == ["1"]

    run(scenario)


def test_an_entry_is_lost_only_if_all_of_its_bookies_say_so() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1", "2")
        bookies = await world.bookies_of_last_ledger()
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        await log.close()
        kept = [bookie.entries[ledger_id].pop(0) for bookie in bookies[:2]]
        world.cluster.kill(bookies[2].name)
        with pytest.raises(LedgerError) as failure:
            await texts(await world.opened())
        assert not isinstance(failure.value, CorruptionError)
        world.cluster.start(bookies[2].name)
        assert await texts(await world.opened()) == ["1", "2"]
        bookies[2].entries[ledger_id].pop(0)
        with pytest.raises(CorruptionError, match="entry from 0"):
            await texts(await world.opened())
        bookies[0].entries[ledger_id][0] = kept[0]
        assert await texts(await world.opened()) == ["1", "2"]

    run(scenario)


def test_a_damaged_entry_is_read_from_another_bookie_and_is_damage_if_none_has_it() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        bookies = await world.bookies_of_last_ledger()
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        await log.close()
        bookies[0].damaged.add((ledger_id, 0))
        assert await texts(await world.opened()) == ["1"]
        bookies[1].damaged.add((ledger_id, 0))
        world.cluster.kill(bookies[2].name)
        await asyncio.sleep(QUICK.session_s)
        with pytest.raises(StorageError, match=bookies[2].name) as failure:
            await texts(await world.opened())
        assert not isinstance(failure.value, CorruptionError)
        world.cluster.start(bookies[2].name)
        bookies[2].damaged.add((ledger_id, 0))
        with pytest.raises(CorruptionError, match="damaged"):
            await texts(await world.opened())

    run(scenario)


def test_a_frame_whose_checksum_does_not_match_is_damage() -> None:
    """BookKeeper's digest holds, and the frame is not what was appended."""

    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        for bookie in await world.bookies_of_last_ledger():
            entry, lac = bookie.entries[ledger_id][0]
            bookie.entries[ledger_id][0] = (entry[:-1] + b"2", lac)
        with pytest.raises(CorruptionError, match="checksum"):
            await texts(await world.opened())

    run(scenario)


def test_with_too_few_bookies_of_the_last_ledger_the_start_fails_and_is_tried_again() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        bookies = await world.bookies_of_last_ledger()
        for bookie in bookies[:2]:
            world.cluster.kill(bookie.name)
        with pytest.raises(LedgerUnavailableError):
            await world.opened()
        for bookie in bookies[:2]:
            world.cluster.start(bookie.name)
        assert await texts(await world.opened()) == ["1"]

    run(scenario)


def test_a_change_of_the_record_whose_answer_is_lost_is_found_by_its_nonce() -> None:
    """Not taken for a fence: with one ledger for each open."""

    async def scenario(world: World) -> None:
        world.zookeeper = SimulatedZooKeeper(random.Random(3), ZooKeeperSettings(server_count=1, lost_reply_rate=0.5))
        for number in range(5):
            log = await world.opened()
            assert log.epoch == number + 1
            await append(log, str(number))
        assert await texts(await world.opened()) == ["0", "1", "2", "3", "4"]
        assert len((await world.record()).ledgers) == 6

    run(scenario)


def test_without_the_coordination_service_appends_continue_up_to_the_limit_of_a_ledger() -> None:
    async def scenario(world: World) -> None:
        settings = replace(SETTINGS, ledger_bytes=1000, ledger_bytes_limit=3000)
        log = await world.opened(settings)
        await append(log, "x" * 100)
        world.zookeeper.cut("host 0")
        await append(log, *["y" * 100] * 20)
        assert len(world.clients[0].writers) == 2  # The next one is created, and not recorded yet.
        futures = [log.append([b"z" * 100], 100) for _ in range(20)]
        await asyncio.sleep(60)
        assert 0 < sum(future.done() for future in futures) < 20
        assert "full" in log.problem
        world.zookeeper.mend("host 0")
        await asyncio.gather(*futures)
        assert len(await texts(await world.opened())) == 41

    run(scenario)


def test_ledgers_follow_each_other_and_a_truncation_deletes_the_old_ones() -> None:
    async def scenario(world: World) -> None:
        settings = replace(SETTINGS, ledger_bytes=1000, deletion_delay_s=60.0)
        log = await world.opened(settings)
        addresses: list[LogAddress] = []
        for number in range(50):
            addresses += await append(log, f"{number:0100}")
        before = {each.ledger_id for each in (await world.record()).ledgers}
        assert len(before) > 4
        await log.truncate(addresses[25])
        await asyncio.sleep(1)
        after = {each.ledger_id for each in (await world.record()).ledgers}
        assert len(after) < len(before)
        assert set(world.cluster.ledgers) == after
        following = await world.opened(settings)
        assert await texts(following) == [f"{number:0100}" for number in range(26, 50)]

    run(scenario)


@pytest.mark.parametrize("is_planted", [False, True])
def test_an_owner_that_was_suspended_acknowledges_nothing_in_a_ledger_whose_fence_is_forgotten(
    is_planted: bool,
) -> None:
    """Its successor has truncated and deleted the ledger, and bookies take entries of it again.

    An owner that does not check its record acknowledges.
    """

    async def scenario(world: World) -> None:
        log = await world.opened()
        address = (await append(log, "1"))[0]
        successor = await world.opened()
        await append(successor, "2")
        await asyncio.sleep(SETTINGS.deletion_delay_s)
        await successor.truncate(address)
        await asyncio.sleep(1)
        assert len(world.cluster.ledgers) == 1
        if is_planted:
            with FORGOTTEN_FENCE.apply():
                await append(log, "3")
            return
        with pytest.raises(LogFencedError):
            await append(log, "3")
        # Its entry was confirmed by bookies, and not acknowledged.
        assert any(entries for bookie in world.cluster.bookies.values() for entries in bookie.entries.values())

    run(scenario)


def test_a_ledger_of_an_earlier_incarnation_is_not_deleted_before_its_owner_must_have_noticed() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        address = (await append(log, "1"))[0]
        successor = await world.opened()
        await successor.truncate(address)
        await asyncio.sleep(SETTINGS.deletion_delay_s / 2)
        assert len(world.cluster.ledgers) == 2
        with pytest.raises(LogFencedError):
            await append(log, "2")
        await asyncio.sleep(SETTINGS.deletion_delay_s / 2)
        await successor.truncate((await append(successor, "3"))[0])
        await asyncio.sleep(1)
        assert len(world.cluster.ledgers) == 1

    run(scenario)


def test_a_ledger_of_another_container_or_cluster_is_refused() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        await log.close()
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        made = world.cluster.ledgers[ledger_id]
        world.cluster.ledgers[ledger_id] = replace(made, labels={**made.labels, "container": b"2"})
        with pytest.raises(CorruptionError, match="not a ledger of this log"):
            await texts(await world.opened())
        world.cluster.ledgers[ledger_id] = replace(made, labels={**made.labels, "cluster": b"b"})
        with pytest.raises(LogIdentityError):
            await texts(await world.opened())
        other = world.process(cluster_id="b").create(0)
        with pytest.raises(LogIdentityError):
            await other.open()

    run(scenario)


def test_bytes_in_flight_are_bounded_for_the_process_and_a_log_that_waits_does_not_hold_up_another() -> None:
    async def scenario(world: World) -> None:
        factory = world.process(replace(SETTINGS, in_flight_bytes_max=4000))
        first, second = factory.create(0), factory.create(1)
        await first.open()
        await second.open()
        world.clients[0].writers[0].stuck_from = 0
        futures = [first.append([bytes(500)], 500) for _ in range(20)]
        await asyncio.sleep(1)
        assert 0 < factory.process.budget.used_bytes <= 2000
        for _ in range(20):
            await append(second, "x" * 500)
        assert factory.process.budget.used_bytes <= 4000
        await asyncio.gather(*futures)
        assert factory.process.budget.used_bytes == 0

    run(scenario)


def test_a_truncation_waits_only_for_a_bounded_time_for_the_coordination_service() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        address = (await append(log, "1", "2"))[0]
        world.zookeeper.cut("host 0")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await log.truncate(address)
        assert loop.time() - began_s <= SETTINGS.change_wait_s + 1
        await append(log, "3")
        world.zookeeper.mend("host 0")
        await asyncio.sleep(20)
        assert await texts(await world.opened()) == ["2", "3"]

    run(scenario)


def test_an_idle_log_confirms_its_ownership_by_a_beat_that_is_no_frame() -> None:
    async def scenario(world: World) -> None:
        log = await world.opened()
        before_s = log.ownership_confirmed_s
        await asyncio.sleep(5)
        await log.confirm_ownership()
        assert log.ownership_confirmed_s >= before_s + 5
        address = (await append(log, "1"))[0]
        assert address & 0xFFFFFFFF == 1  # Entry 0 is the beat.
        assert await texts(await world.opened()) == ["1"]

    run(scenario)


def test_a_log_in_which_an_append_is_always_in_flight_confirms_its_ownership() -> None:
    """Appends share readings of the clock. One that is older than the append confirms less, a later one too much."""

    async def scenario(world: World) -> None:
        log = await world.opened()
        loop = asyncio.get_running_loop()
        began_s, sent = loop.time(), [log.append([b"1"], 1)]
        while loop.time() < began_s + 5:
            await asyncio.sleep(0.001)
            assert not sent[-1].done()
            sent.append(log.append([b"2"], 1))
            assert log.ownership_confirmed_s <= loop.time() - 0.004
        assert log.ownership_confirmed_s > began_s + 4.9
        await asyncio.gather(*sent)

    run(scenario, settings=BookieSettings(latency_s_min=0.002, latency_s_max=0.002))


def test_an_opened_log_of_a_dead_process_is_taken_over_with_all_that_it_had_stored() -> None:
    """An entry that only one bookie has is found by recovery, or is not; both are right, and stay so."""

    async def scenario(world: World) -> None:
        log = await world.opened()
        await append(log, "1")
        ledger_id = (await world.record()).ledgers[-1].ledger_id
        bookies = await world.bookies_of_last_ledger()
        entry = b"".join(FrameEntry([b"2"], 1).parts())
        bookies[0].entries[ledger_id][1] = (entry, 0)
        found = await texts(await world.opened())
        assert found in (["1"], ["1", "2"])
        bookies[1].entries[ledger_id].setdefault(1, (entry, 0))
        assert await texts(await world.opened()) == found
        log.fail(ledger_error(0, "the process is dead"))

    run(scenario)


def test_a_process_without_open_logs_checks_its_bookies_and_not_the_coordination_service() -> None:
    """Without the coordination service appends would continue, so its absence is no problem of the log."""

    async def scenario(world: World) -> None:
        factory = world.process()
        await factory.check()  # Nothing is known yet.
        await factory.start()
        await asyncio.sleep(5)
        await factory.check()
        world.cluster.is_metadata_away = True
        world.zookeeper.cut("host 0")
        await asyncio.sleep(60)
        async with asyncio.timeout(1):
            await factory.check()
        world.clients[0].cut.update(list(world.cluster.bookies)[:3])
        with pytest.raises(LedgerError, match="1 of 4 bookies are reached, and 2 are needed"):
            await factory.check()
        world.clients[0].cut.clear()
        await factory.check()
        world.zookeeper.mend("host 0")
        world.cluster.is_metadata_away = False

    run(scenario)
