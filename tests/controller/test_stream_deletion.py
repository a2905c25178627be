"""Deleting a stream: nothing of it stays, and nothing goes of the next stream of its name, or of one that is in use.

Shows S-090 and S-091.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from penstock.controller.metadata import layout
from penstock.controller.metadata.pending_work import DeleteStream, PendingWork, Subject, SubjectKind
from penstock.controller.metadata.records import StreamState
from penstock.controller.metadata.scope_records import GroupCut, ReaderGroupConfig
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaim
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings, WatermarkSettings
from penstock.controller.watermarks.writer_marks import all_marks
from penstock.model.errors import (
    MetadataConflictError,
    NoSuchStreamError,
    StreamExistsError,
    StreamNotSealedError,
)
from penstock.model.policies import GroupRetention, Scaling, StreamConfig
from support.crash_script import AllBuckets
from support.in_process_cluster import InProcessCluster
from support.two_controllers import SETTINGS, announced

#: Writers that are behind are awaited for longer than a test takes.
CONFIG = StreamConfig(Scaling.fixed(2), tags=("red",), timestamp_aggregation_timeout_ms=3_600_000)
STREAM = Subject(SubjectKind.STREAM, "scope", "stream")
#: The id of a stream that is made by hand.
LIFE = "00000000-0000-4000-8000-000000000001"


async def tagged(service: ControllerService) -> list[str]:
    """Return the streams with the tag, in the order of pages."""
    names: list[str]
    names, page = [], await service.list_streams_by_tag("scope", "red", "")
    while page.names:
        names += page.names
        page = await service.list_streams_by_tag("scope", "red", page.token)
    return names


async def announce_deletion(service: ControllerService, life: str) -> None:
    """Have a deletion of the stream's `life` finished, as one that an earlier controller had begun."""
    await service._context.begin(STREAM, DeleteStream(), life)
    await service._runner.settle(STREAM)
    assert [subject async for subject in service._context.claims.pending()] == []


@pytest.mark.parametrize("is_sealed", [False, True], ids=["in use", "sealed"])
async def test_a_deletion_of_an_earlier_life_leaves_the_stream_alone(
    service: ControllerService, cluster: InProcessCluster, is_sealed: bool
) -> None:
    """S-090: no segment and no row is deleted, also if the deletion would be possible; once sealed, it is deleted."""
    await service.create_stream("scope", "stream", CONFIG)
    earlier = await service._catalog.stream_id("scope", "stream")
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    await service.create_stream("scope", "stream", CONFIG)
    life = await service._catalog.stream_id("scope", "stream")
    assert life != earlier
    await cluster.store.append("scope/stream/2.#epoch.0", b"of the second life")
    if is_sealed:
        await service.seal_stream("scope", "stream")

    def kept() -> tuple[dict[str, tuple[bytes, bool]], dict[str, Any]]:
        rows = {name: table for name, table in cluster.store.tables.items() if name != layout.PENDING_WORK}
        segments = {name: (bytes(found.data), found.is_sealed) for name, found in cluster.store.segments.items()}
        return copy.deepcopy((segments, rows))

    before = kept()
    await announce_deletion(service, earlier)  # type: ignore[arg-type]
    assert kept() == before
    assert await service.stream_exists("scope", "stream")
    await service.seal_stream("scope", "stream")
    await announce_deletion(service, life)  # type: ignore[arg-type]
    assert not await service.stream_exists("scope", "stream")
    assert not cluster.store.segments


async def test_a_deletion_leaves_nothing_of_the_stream(cluster: InProcessCluster) -> None:
    """S-091: marks and their segment, its place among the streams with marks, tags, subscribers; another stream's stay.

    No table names it any more but the one that keeps its last segment number; the next stream of its name has nothing.
    """
    settings = ControllerSettings(watermarks=WatermarkSettings(interval_s=1e9))
    service = await cluster.start(settings)
    service._watermarks._cycle._buckets = AllBuckets()
    await service.create_scope("scope")
    for stream in ("gone", "kept"):
        await service.create_stream("scope", stream, CONFIG)
        await service.writer_marks.note("scope", stream, "writer", 5, {0: 1, 1: 1})
    streams = tuple(GroupCut("scope", stream) for stream in ("gone", "kept"))
    wanted = ReaderGroupConfig(streams, retention=GroupRetention.MANUAL)
    await service.reader_groups.create("scope", "group", wanted)
    await service._watermarks.cycle()

    async def found(stream: str) -> dict[str, Any]:
        """Return everything that there is of a stream beside its own segments and records."""
        (marks,) = [one for name, one in cluster.store.segments.items() if name.startswith(f"scope/_MARK{stream}/")]
        return {
            "watermarks": len(marks.data) > 0,
            "writers": sorted(await service.queries.on_stream("scope", stream, all_marks)),
            "listed": stream in [each.stream async for each in service._context.marked.all()],
            "tagged": stream in await tagged(service),
            "subscribers": await service.reader_groups.subscribers("scope", stream),
        }

    everything = {
        "watermarks": True, "writers": ["writer"], "listed": True, "tagged": True, "subscribers": ("scope/group",)
    }  # fmt: skip
    assert await found("gone") == await found("kept") == everything
    await service.seal_stream("scope", "gone")
    await service.delete_stream("scope", "gone")
    await service._watermarks.cycle()
    await service.idle()
    assert not [name for name in cluster.store.segments if "gone" in name]
    assert not [name for name in cluster.store.tables if "gone" in name]
    naming = {name for name, table in cluster.store.tables.items() if any(b"gone" in key for key in table.entries)}
    assert naming == {layout.DELETED_STREAMS}
    assert await found("kept") == everything
    with pytest.raises(NoSuchStreamError):
        await service.reader_groups.subscribers("scope", "gone")
    assert await tagged(service) == ["kept"]
    await service.create_stream("scope", "gone", StreamConfig(Scaling.fixed(2)))
    assert await found("gone") == {
        "watermarks": False, "writers": [], "listed": False, "tagged": False, "subscribers": ()
    }  # fmt: skip


async def half_create(service: ControllerService, created_ms: int | None) -> StreamTables:
    """Leave behind a listed stream with its tables, and with its records if `created_ms` is given; announce nothing."""
    catalog = service._catalog
    tables = catalog.tables_of("scope", "stream", await catalog.add_stream("scope", "stream", LIFE))
    await tables.create_tables()
    if created_ms is not None:
        assert await tables.create_records(CONFIG, created_ms, 0)
    return tables


@pytest.mark.parametrize("has_records", [False, True])
async def test_a_half_made_stream_that_another_controller_completes_before_its_deletion_begins_stays(
    cluster: InProcessCluster, has_records: bool
) -> None:
    """The first one finds it half made, and is paused; the second one completes it, and it is written to.

    The deletion is announced after that: it is refused, withdrawn, and not a byte of the stream is gone.
    """
    first, second = await cluster.start(SETTINGS), await cluster.start(SETTINGS)
    await first.create_scope("scope")
    await half_create(first, cluster.clock_ms - 1 if has_records else None)
    claims = first._context.claims
    announce = claims.announce

    async def announce_late(work: PendingWork, **options: bool) -> WorkClaim:
        claims.announce = announce  # type: ignore[method-assign]
        if has_records:
            with pytest.raises(StreamExistsError):
                await second.create_stream("scope", "stream", CONFIG)
        else:
            await second.create_stream("scope", "stream", CONFIG)
        await cluster.store.append("scope/stream/0.#epoch.0", b"of a user")
        return await announce(work, **options)

    claims.announce = announce_late  # type: ignore[method-assign]
    with pytest.raises(StreamNotSealedError):
        await first.delete_stream("scope", "stream")
    assert announced(cluster) == []
    assert bytes(cluster.store.segments["scope/stream/0.#epoch.0"].data) == b"of a user"
    assert await tagged(first) == ["stream"]
    # Nothing of the deletion is left in the way of what follows.
    await first.update_stream("scope", "stream", CONFIG)
    await first.seal_stream("scope", "stream")
    await first.delete_stream("scope", "stream")
    assert not cluster.store.segments


async def test_a_deletion_whose_controller_ends_after_the_announcement_spares_a_stream_in_use(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """Who finishes it finds the stream completed and in use, withdraws the deletion, and gives nothing up."""
    await service.create_stream("scope", "stream", CONFIG)
    await cluster.store.append("scope/stream/0.#epoch.0", b"of a user")
    await announce_deletion(service, await service._catalog.stream_id("scope", "stream"))  # type: ignore[arg-type]
    assert bytes(cluster.store.segments["scope/stream/0.#epoch.0"].data) == b"of a user"
    assert await service.given_up_work() == []
    await service.seal_stream("scope", "stream")
    await service.delete_stream("scope", "stream")
    assert not cluster.store.segments


async def test_an_overtaken_creation_cannot_complete_a_stream_in_deletion(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """It has read the state before the deletion; after that its write would bring half a stream into use."""
    tables = await half_create(service, cluster.clock_ms)
    read = await tables.state()
    confirm = service._context.claims.confirm

    async def confirm_late(claim: WorkClaim) -> None:
        await confirm(claim)
        with pytest.raises(MetadataConflictError):
            await tables.set_state(StreamState.ACTIVE, of=read)

    service._context.claims.confirm = confirm_late  # type: ignore[method-assign]
    await service.delete_stream("scope", "stream")
    assert not await service.stream_exists("scope", "stream")
    assert not [name for name in cluster.store.tables if "/scope/stream/" in name]
