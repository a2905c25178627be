"""`ObjectLogAdministration` over the simulated bucket: states, changes beside a running owner, and the sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.administration.log_administration import LogState
from penstock.administration.object_log_administration import ObjectLogAdministration
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LogDamagedError,
    LogDisabledError,
    LogFencedError,
    StorageUnreachableError,
)
from penstock.segmentstore.tier1.object_log.journal_format import (
    SectionFrames,
    encode_data,
    journal_key,
)
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import LogClusterIdentity, claim_identity
from penstock.server.settings import StandaloneSettings
from segmentstore.tier1.object_log.test_object_log import QUICK, SETTINGS, World, append, contents, opened, play

LOST = bytes(range(16))


async def administration(world: World) -> ObjectLogAdministration:
    """Return an administration of the world's logs, with a client of its own, the last one."""
    client = world.process().process.bucket.objects
    bucket = LogBucket(client, SETTINGS, prefix="log", attempts_max=2)
    await claim_identity(bucket, world.runtime, "", 3)
    return ObjectLogAdministration(bucket, LogClusterIdentity("", 3), StandaloneSettings(), world.runtime)


def put_lost_slot(world: World, slot: int) -> None:
    """Put a slot of a journal that no record names, as a killed process leaves it."""
    content = encode_data(LOST, slot, bytes(16), [SectionFrames(0, 1, [[b"lost"]])])
    world.put(LOST, slot, content)


def test_a_running_owners_log_is_listed_and_disabled_at_once_and_enabled_again() -> None:
    """The other containers of its process continue in another journal, with all acknowledged data."""

    async def scenario(world: World) -> None:
        factory = world.process()
        logs = [await opened(factory, number) for number in range(2)]
        for log in logs:
            await append(log, b"before")
        admin = await administration(world)
        reports = await admin.reports()
        assert [each.state for each in reports] == [LogState.ENABLED, LogState.ENABLED, LogState.MISSING]
        assert [each.epoch for each in reports] == [1, 1, 0]
        assert reports[0].file_count == 2
        assert reports[0].length_bytes == sum(world.slots())
        assert reports[0].path == "s3://simulated/log/r/0"

        await admin.disable(0)
        assert (await admin.reports())[0].state is LogState.DISABLED
        with pytest.raises(LogFencedError):
            await append(logs[0], b"after")
        await append(logs[1], b"after")
        with pytest.raises(LogDisabledError, match="by an administrator"):
            await opened(world.process(), 0)
        with pytest.raises(InvalidArgumentError, match="is disabled"):
            await admin.disable(0)

        await admin.enable(0)
        assert await contents(await opened(world.process(), 0)) == [b"before"]
        assert await contents(await opened(world.process(), 1)) == [b"before", b"after"]
        with pytest.raises(InvalidArgumentError, match="is not disabled"):
            await admin.enable(0)
        for change in (admin.enable, admin.disable):
            with pytest.raises(InvalidArgumentError, match="does not exist"):
                await change(2)
            with pytest.raises(InvalidArgumentError, match="does not exist"):
                await change(77)

    play(scenario)


def test_a_damaged_log_stays_disabled_and_a_damaged_record_is_listed() -> None:
    async def scenario(world: World) -> None:
        log = await opened(world.process())
        await append(log, b"frame")
        admin = await administration(world)
        await admin.disable(0)
        key = next(key for key in world.bucket.contents if key.startswith("log/j/"))
        content = world.bucket.contents[key][0]
        world.bucket.replace(key, content[:-1] + b"!", "")
        with pytest.raises(LogDamagedError, match="Put the object back"):
            await admin.enable(0)
        assert (await admin.reports())[0].state is LogState.DISABLED
        world.bucket.replace(key, content, "")
        await admin.enable(0)

        content = world.bucket.contents["log/r/0"][0]
        world.bucket.replace("log/r/0", content.replace(b'"epoch": 1', b'"epoch": 2'), "")
        report = (await admin.reports())[0]
        assert report.state is LogState.DAMAGED
        assert "checksum" in report.problem
        with pytest.raises(CorruptionError):
            await admin.sweep(is_dry_run=False)

    play(scenario)


def test_a_sweep_deletes_what_no_record_names_after_it_has_sealed_the_journal() -> None:
    """A dry run changes nothing. What is not of a log stays, and so do all seals."""

    async def scenario(world: World) -> None:
        factory = world.process()
        log = await opened(factory)
        await append(log, b"kept")
        for slot in (3, 4):
            put_lost_slot(world, slot)
        world.bucket.replace("log/notes.txt", b"someone's", "")
        admin = await administration(world)
        before = dict(world.bucket.contents)
        dry = await admin.sweep(is_dry_run=True)
        assert world.bucket.contents == before
        assert (dry.object_count, dry.kept_count, dry.seal_count) == (2, 1, 0)
        assert [each.journal for each in dry.unnamed] == [LOST.hex()]
        assert dry.foreign == ["log/notes.txt"]

        swept = await admin.sweep(is_dry_run=False)
        assert swept.unnamed == dry.unnamed
        assert journal_key("log", LOST, 5) in world.bucket.contents
        assert before.items() - world.bucket.contents.items() == {
            (key, before[key]) for key in (journal_key("log", LOST, 3), journal_key("log", LOST, 4))
        }
        assert (await admin.sweep(is_dry_run=False)).object_count == 0
        await append(log, b"and on")
        assert await contents(await opened(world.process())) == [b"kept", b"and on"]

    play(scenario)


def test_a_sweep_keeps_slots_that_a_record_includes_and_deletes_those_of_a_sealed_journal_beside_them() -> None:
    """A killed owner had not deleted the slots of its truncation; its journal is sealed by the next owner."""

    async def scenario(world: World) -> None:
        log = await opened(world.process())
        addresses = [await append(log, b"%d" % number) for number in range(4)]
        await log.truncate(addresses[1])
        successor = await opened(world.process())
        await append(successor, b"4")
        admin = await administration(world)
        swept = await admin.sweep(is_dry_run=False)
        assert swept.object_count == 1  # The slot of the truncated address is read again, for its later frames.
        assert swept.seal_count == 1
        assert await contents(await opened(world.process())) == [b"2", b"3", b"4"]

    play(scenario)


def test_a_process_whose_empty_journal_is_swept_and_sealed_continues_in_another() -> None:
    """It has opened no log yet, so no record names its journal."""

    async def scenario(world: World) -> None:
        factory = world.process()
        factory.process.writer.journal = LOST
        factory.process.writer.next_slot = factory.process.writer.settled = 2
        put_lost_slot(world, 1)
        admin = await administration(world)
        assert (await admin.sweep(is_dry_run=False)).object_count == 1
        log = await opened(factory)
        await append(log, b"first")
        assert factory.process.writer.use.roll_count == 1
        assert await contents(await opened(world.process())) == [b"first"]

    play(scenario)


def test_commands_give_up_a_bucket_that_does_not_answer() -> None:
    async def scenario(world: World) -> None:
        admin = await administration(world)
        world.clients[-1].faults = replace(QUICK, is_reachable=False)
        with pytest.raises(StorageUnreachableError):
            await admin.disable(0)

    play(scenario)
