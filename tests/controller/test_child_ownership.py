"""Reader groups, key-value tables and scopes under several controllers, and under requests that come late.

Each workflow on them is crashed at each write and finished by a controller that is alive beside it; and each write of
their lives to the controller's tables comes again, when they have gone, and when they are there again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import DeleteGroup, Subject, SubjectKind
from penstock.controller.metadata.scope_records import ChildState, GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import NoSuchReaderGroupError, NoSuchScopeError, NoSuchTableError, PenstockError
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from support.controller_faults import BlockedSegments, ScriptedSegments
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(attempts_max=2, retry_delay_ms_first=1, retry_delay_ms_max=2, peer_poll_ms=1)
GROUP = ReaderGroupConfig((GroupCut("s", "a"),), retention=GroupRetention.MANUAL)
OTHER_GROUP = ReaderGroupConfig((GroupCut("s", "b"),), retention=GroupRetention.MANUAL)
TABLE = KeyValueTableConfig(2, 4, 2)
IDS = [f"00000000-0000-4000-8000-00000000000{number}" for number in range(3)]


def announced(cluster: InProcessCluster) -> list[str]:
    return [key.decode() for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


async def until(condition: Callable[[], Any], what: str) -> None:
    for _ in range(60_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"not so after 60 s: {what}")


async def streams(service: ControllerService, scope: str = "s") -> None:
    for stream in ("a", "b"):
        await service.create_stream(scope, stream, StreamConfig(Scaling.fixed(1)))


class _GroupLife:
    """A group lives, changes and dies."""

    async def live(self, service: ControllerService, number: int) -> None:
        await service.reader_groups.create("s", "g", GROUP, IDS[number])
        await service.reader_groups.update("s", "g", OTHER_GROUP, IDS[number], 0)

    async def die(self, service: ControllerService, number: int) -> None:
        await service.reader_groups.delete("s", "g", IDS[number])

    async def check_alive(self, service: ControllerService, number: int) -> None:
        found = await service.reader_groups.get("s", "g")
        assert (found.id, found.generation, found.state) == (IDS[number], 1, ChildState.ACTIVE)
        assert found.config == OTHER_GROUP
        assert await service.reader_groups.subscribers("s", "b") == ("s/g",)
        assert await service.reader_groups.subscribers("s", "a") == ()
        assert len(await service.current_segments("s", "_RGg")) == 1

    async def check_gone(self, service: ControllerService) -> None:
        with pytest.raises(NoSuchReaderGroupError):
            await service.reader_groups.get("s", "g")
        assert (await service.reader_groups.list("s", "")).names == ()
        for stream in ("a", "b"):
            assert await service.reader_groups.subscribers("s", stream) == ()


class _TableLife:
    """A key-value table comes and goes."""

    async def live(self, service: ControllerService, number: int) -> None:
        await service.key_value_tables.create("s", "t", TABLE)

    async def die(self, service: ControllerService, number: int) -> None:
        await service.key_value_tables.delete("s", "t")

    async def check_alive(self, service: ControllerService, number: int) -> None:
        assert await service.key_value_tables.configuration("s", "t") == TABLE
        assert len(await service.key_value_tables.segments("s", "t")) == 2

    async def check_gone(self, service: ControllerService) -> None:
        with pytest.raises(NoSuchTableError):
            await service.key_value_tables.configuration("s", "t")
        assert (await service.key_value_tables.list("s", "")).names == ()


class _ScopeLife:
    """A scope with everything in it lives, and is deleted with all that it holds."""

    async def live(self, service: ControllerService, number: int) -> None:
        await service.create_scope("x")
        await streams(service, "x")
        await service.reader_groups.create("x", "g", ReaderGroupConfig((GroupCut("x", "a"),)))
        await service.key_value_tables.create("x", "t", TABLE)

    async def die(self, service: ControllerService, number: int) -> None:
        await service.delete_scope_recursive("x")

    async def check_alive(self, service: ControllerService, number: int) -> None:
        assert set((await service.list_streams("x", "")).names) >= {"a", "b", "_RGg"}
        assert (await service.reader_groups.list("x", "")).names == ("g",)
        assert (await service.key_value_tables.list("x", "")).names == ("t",)
        assert len(await service.current_segments("x", "a")) == 1

    async def check_gone(self, service: ControllerService) -> None:
        assert not await service.scope_exists("x")


LIVES = pytest.mark.parametrize("life", [_GroupLife(), _TableLife(), _ScopeLife()], ids=["group", "table", "scope"])


@pytest.fixture
async def recorded(cluster: InProcessCluster) -> tuple[ControllerService, ScriptedSegments]:
    """A controller in whose scope there are two streams, and what it writes from then on."""
    segments = ScriptedSegments(cluster.store)
    service = cluster.build(SETTINGS, segments=segments)
    await service.start()
    await service.create_scope("s")
    await streams(service)
    await service.idle()
    segments.writes.clear()
    return service, segments


async def repeat_all(segments: ScriptedSegments, kinds: tuple[str, str] = ("table_put", "table_remove")) -> None:
    """Let each write to the controller's tables come again."""
    count = 0
    for number, (name, arguments, _) in enumerate(list(segments.writes)):
        if name in kinds and arguments[0].startswith("_system/_tables/"):  # type: ignore[attr-defined]
            await segments.repeat(number)
            count += 1
    assert count > 5


@LIVES
async def test_late_duplicates_change_nothing_of_the_next_life(
    cluster: InProcessCluster, recorded: tuple[ControllerService, ScriptedSegments], life: Any
) -> None:
    """It lives, dies, and lives again; then every write of both lives comes again: it is as it was."""
    service, segments = recorded
    await life.live(service, 0)
    await life.die(service, 0)
    await life.live(service, 1)
    await service.idle()
    await repeat_all(segments)
    assert announced(cluster) == []
    second = await cluster.start(SETTINGS)
    await second.idle()
    await life.check_alive(second, 1)
    await life.die(second, 1)
    await life.check_gone(second)


@LIVES
async def test_late_duplicates_of_a_life_that_is_over_are_in_the_way_of_no_other(
    cluster: InProcessCluster, recorded: tuple[ControllerService, ScriptedSegments], life: Any
) -> None:
    """Writes of a life are repeated after its end: the next creation makes a complete object of the new life.

    The request that made its record finds none. It leaves only results of finished work. Before, the next creation of
    the group returned them as the group, without a stream for its readers, and a table of this name could not be
    created.
    """
    service, segments = recorded
    await life.live(service, 0)
    await life.die(service, 0)
    await life.check_gone(service)
    await repeat_all(segments)
    assert announced(cluster) == []
    second = await cluster.start(SETTINGS)
    await second.idle()
    await life.live(second, 1)
    await life.check_alive(second, 1)
    await life.die(second, 1)
    await life.check_gone(second)
    assert announced(cluster) == []


@LIVES
async def test_what_late_duplicates_leave_of_a_life_that_is_over_can_be_deleted(
    cluster: InProcessCluster, recorded: tuple[ControllerService, ScriptedSegments], life: Any
) -> None:
    """The same, and it is deleted instead."""
    service, segments = recorded
    await life.live(service, 0)
    await life.die(service, 0)
    await repeat_all(segments)
    try:
        await life.die(service, 0)
    except (NoSuchReaderGroupError, NoSuchTableError, NoSuchScopeError):
        pass
    await life.check_gone(service)
    assert announced(cluster) == []


@pytest.fixture
async def pair(
    cluster: InProcessCluster,
) -> AsyncIterator[tuple[ControllerService, ControllerService, BlockedSegments]]:
    """Two controllers that are alive, the first over a store that a test can hold up."""
    held = BlockedSegments(cluster.store, lambda segment: True)
    first = cluster.build(SETTINGS, segments=held)
    await first.start()
    await first.create_scope("s")
    await streams(first)
    second = await cluster.start(SETTINGS)
    await first.idle()
    await second.idle()
    yield first, second, held
    held.release()


async def _make_group(service: ControllerService) -> None:
    await service.reader_groups.create("s", "g", GROUP, IDS[0])


async def _drop_group(service: ControllerService) -> None:
    await service.reader_groups.delete("s", "g", IDS[0])


async def _make_table(service: ControllerService) -> None:
    await service.key_value_tables.create("s", "t", TABLE)


async def _drop_table(service: ControllerService) -> None:
    await service.key_value_tables.delete("s", "t")


async def _drop_scope(service: ControllerService) -> None:
    await service.delete_scope_recursive("s")


WORK = pytest.mark.parametrize(
    ("before", "work", "held_call", "key"),
    [
        (None, _make_group, "create_segment", "group/s/g"),
        (_make_group, _drop_group, "delete_segment", "group/s/g"),
        (None, _make_table, "create_table", "table/s/t"),
        (_make_table, _drop_table, "delete_table", "table/s/t"),
        (_make_table, _drop_scope, "delete_segment", "scope/s/"),
    ],
    ids=["create group", "delete group", "create table", "delete table", "delete scope"],
)


@WORK
async def test_work_on_children_of_a_live_peer_is_left_to_it(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    before: Callable[..., Awaitable[Any]] | None,
    work: Callable[..., Awaitable[Any]],
    held_call: str,
    key: str,
) -> None:
    """One stalls in the middle; another one starts, sweeps, and gets the same request: it does none of the work."""
    first, second, held = pair
    if before is not None:
        await before(first)
    held.is_blocked, held.call_name = True, held_call
    working = asyncio.create_task(work(first))  # type: ignore[arg-type]
    await until(lambda: key in announced(cluster), "it is announced")
    third = await cluster.start(SETTINGS)
    await third.idle()
    same: list[asyncio.Task[object]] = [asyncio.create_task(work(service)) for service in (second, third)]  # type: ignore[arg-type]
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not working.done()
    assert second.statistics().taken_over_count == third.statistics().taken_over_count == 0
    held.release()
    await working
    for end in await asyncio.gather(*same, return_exceptions=True):
        assert end is None or isinstance(end, PenstockError), end
    for service in (first, second, third):
        await service.idle()
    assert announced(cluster) == []


@WORK
async def test_work_on_children_of_who_is_gone_is_finished_by_who_is_there(
    pair: tuple[ControllerService, ControllerService, BlockedSegments],
    cluster: InProcessCluster,
    before: Callable[..., Awaitable[Any]] | None,
    work: Callable[..., Awaitable[Any]],
    held_call: str,
    key: str,
) -> None:
    """No controller starts and no call comes: the survivor learns of the end, and finishes the work."""
    first, second, held = pair
    if before is not None:
        await before(first)
    held.is_blocked, held.call_name = True, held_call
    working = asyncio.create_task(work(first))  # type: ignore[arg-type]
    await until(lambda: key in announced(cluster), "it is announced")
    for _ in range(20):
        await asyncio.sleep(0.001)
    await first.stop()
    with pytest.raises(PenstockError):
        await working
    await until(lambda: not announced(cluster), "the survivor has finished it")
    await second.idle()
    assert second.statistics().taken_over_count >= 1
    if work is _make_group:
        assert (await second.reader_groups.get("s", "g")).state is ChildState.ACTIVE
        assert len(await second.current_segments("s", "_RGg")) == 1
    elif work is _make_table:
        assert len(await second.key_value_tables.segments("s", "t")) == 2
    elif work is _drop_scope:
        assert not await second.scope_exists("s")
    else:
        with pytest.raises((NoSuchReaderGroupError, NoSuchTableError)):
            await (second.reader_groups.get("s", "g") if "group" in key else second.key_value_tables.segments("s", "t"))


async def test_work_of_which_a_peer_has_a_part_continues_when_that_is_done(
    pair: tuple[ControllerService, ControllerService, BlockedSegments], cluster: InProcessCluster
) -> None:
    """A group is deleted while another controller is stalled in a change of its stream: the rest is done afterwards.

    Before, the rest was left to the other controller: it was done only at the next call, or when this one ended.
    """
    first, second, held = pair
    await _make_group(first)
    held.is_blocked, held.call_name = True, "update_policy"
    changing = asyncio.create_task(
        first.update_stream("s", "_RGg", StreamConfig(Scaling.by_event_rate(9, min_segments=1)))
    )
    await until(lambda: "stream/s/_RGg" in announced(cluster), "the change of the stream is announced")
    # As a call that was past its wait when the change began.
    await second.reader_groups.get("s", "g")
    found = await second._context.groups.get("s", "g")

    subject = Subject(SubjectKind.GROUP, "s", "g")
    await second._context.begin(subject, DeleteGroup(), IDS[0])
    await second._context.groups.put(
        "s",
        "g",
        type(found.record)(IDS[0], ChildState.DELETING, found.record.created_ms, GROUP),  # type: ignore[union-attr]
        found.version,  # type: ignore[union-attr]
    )
    second._runner.finish_what_is_left(subject)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert "group/s/g" in announced(cluster)
    held.release()
    await changing
    await until(lambda: not announced(cluster), "the group is deleted")
    await second.idle()
    with pytest.raises(NoSuchReaderGroupError):
        await second.reader_groups.get("s", "g")
