"""What a controller's start waits for, and what it does not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import SealStream, Subject, SubjectKind
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.model.errors import ContainerOfflineError
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock_simulation.memory_segments import MemorySegments
from support.controller_faults import ScriptedSegments

if TYPE_CHECKING:
    from conftest import Cluster  # type: ignore[attr-defined]


class CountingSegments(ScriptedSegments):
    """Counts the requests that reach the store."""

    @property
    def count(self) -> int:
        return self.calls


class _TagTablesAway(MemorySegments):
    """A store whose container with the tag tables is offline, when told so."""

    is_away = False

    async def create_table(self, segment: str, *, key_length: int = 0, rollover_bytes: int = 0) -> None:
        if self.is_away and "streamTagsInScope" in segment:
            raise ContainerOfflineError(2, "its log is disabled")
        await super().create_table(segment, key_length=key_length, rollover_bytes=rollover_bytes)


async def test_a_start_does_not_wait_for_tables_that_only_a_scope_needs(cluster: Cluster) -> None:
    """A second start must serve while the container with some tables of the system's scope is away.

    The tables' names carry the scope's random id, so they may be in any container; the start once retried them for
    more than a minute before it served a client.
    """
    store = cluster.store = _TagTablesAway()
    await (await cluster.start()).stop()
    store.is_away = True
    async with asyncio.timeout(60):
        service = await cluster.start()
        assert await service.scope_exists("_system")
    store.is_away = False
    await service.create_scope("shop")
    await service.create_stream("shop", "orders", StreamConfig(scaling=Scaling.fixed(1)))


async def test_policies_that_are_not_enforced_are_named_in_the_log(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A stored policy that does nothing must not look as if it did; a fixed stream without retention is silent."""
    service = await cluster.start(ControllerSettings(retention=RetentionSettings(is_enabled=False)))
    await service.create_scope("shop")
    await service.create_stream("shop", "plain", StreamConfig(scaling=Scaling.fixed(1)))
    assert "not enforced" not in caplog.text
    await service.create_stream("shop", "a", StreamConfig(Scaling.by_event_rate(10), Retention.by_time(days=1)))
    assert "shop/a: its scaling policy is stored, but not enforced by this server" in caplog.text
    assert "shop/a: its retention policy is stored, but not enforced by this server" in caplog.text


async def test_open_work_does_not_delay_a_start(cluster: Cluster) -> None:
    """10 000 pieces of work are announced by a controller that is gone: a start asks for no more than without them.

    It is counted in requests to the store, not in time. Calls are served before the work is done, which then ends.
    """
    first = await cluster.start()
    await first.stop()
    plain = CountingSegments(cluster.store)
    second = cluster.build(segments=plain)
    await second.start()
    requests_of_a_start = plain.count
    await second.idle()
    count = 10_000
    for number in range(count):
        subject = Subject(SubjectKind.STREAM, "shop", f"gone{number}")
        await second._records.put(layout.PENDING_WORK, subject.key, second._context.work(subject, SealStream(), "life"))
    await second.stop()

    counted = CountingSegments(cluster.store)
    third = cluster.build(segments=counted)
    await third.start()
    assert counted.count == requests_of_a_start
    assert not third.statistics().taken_over_count
    await third.create_scope("shop")
    await third.create_stream("shop", "orders", StreamConfig(scaling=Scaling.fixed(1)))
    assert third.statistics().taken_over_count < count
    await third.idle()
    assert third.statistics().taken_over_count == count
    assert not [key for key in cluster.store.tables[layout.PENDING_WORK].entries if b"/" in key]


async def test_the_search_for_open_work_outlasts_an_outage(cluster: Cluster) -> None:
    """The announcements cannot be listed for longer than a request is repeated: what they announce is done later."""
    settings = ControllerSettings(attempts_max=1, retry_delay_ms_first=1, retry_delay_ms_max=1)
    first = await cluster.start()
    await first.create_scope("shop")
    await first.create_stream("shop", "orders", StreamConfig(scaling=Scaling.fixed(1)))
    subject = Subject(SubjectKind.STREAM, "shop", "orders")
    stream_id = await first._catalog.stream_id("shop", "orders")
    assert stream_id is not None
    await first._context.begin(subject, SealStream(), stream_id)
    await first.stop()
    segments = ScriptedSegments(cluster.store)
    second = cluster.build(settings, segments=segments)
    segments.rule = lambda name, arguments: ContainerOfflineError(0) if name == "table_entries" else None
    await second.start()
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert second.statistics().failed_attempt_count > 1
    segments.rule = lambda name, arguments: None
    await second.idle()
    assert await second.current_segments("shop", "orders") == ()


@pytest.mark.parametrize("broken", [layout.PENDING_WORK, layout.TRANSACTION_INDEX], ids=["work", "transactions"])
async def test_a_failing_search_does_not_delay_the_other_search(cluster: Cluster, broken: str) -> None:
    """S-216: one of the two lists of a dead controller's work cannot be read, for longer than any attempt.

    The work of the other list is taken over meanwhile, and the rest as soon as the list can be read.
    """
    settings = ControllerSettings(attempts_max=1, retry_delay_ms_first=1, retry_delay_ms_max=1)
    first = await cluster.start()
    await first.create_scope("shop")
    for stream in ("orders", "sales"):
        await first.create_stream("shop", stream, StreamConfig(scaling=Scaling.fixed(1)))
    await first.transactions.create("shop", "sales", 10_000)
    stream_id = await first._catalog.stream_id("shop", "orders")
    assert stream_id is not None
    await first._context.begin(Subject(SubjectKind.STREAM, "shop", "orders"), SealStream(), stream_id)
    await first.stop()
    segments = ScriptedSegments(cluster.store)
    second = cluster.build(settings, segments=segments)
    segments.rule = lambda name, arguments: (
        ContainerOfflineError(0) if name == "table_entries" and arguments[0] == broken else None
    )
    await second.start()

    async def found() -> tuple[bool, int]:
        return await second.current_segments("shop", "orders") == (), second.transactions.open_count

    wanted = (False, 1) if broken == layout.PENDING_WORK else (True, 0)
    for _ in range(5000):
        if await found() == wanted and second.statistics().failed_attempt_count >= 5:
            break
        await asyncio.sleep(0.001)
    assert await found() == wanted
    assert second.statistics().failed_attempt_count >= 5
    segments.rule = lambda name, arguments: None
    await second.idle()
    assert await found() == (True, 1)
