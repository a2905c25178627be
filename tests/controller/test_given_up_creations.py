"""A creation that can never end leaves nothing: the name is free, and the scope can be deleted."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.controller.metadata.pending_work import CreateStream, Subject, SubjectKind
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.metadata.work_claims import WorkClaims
from penstock.controller.service import ControllerService
from penstock.controller.settings import ControllerSettings
from penstock.model.errors import InvalidArgumentError, InvalidNameError, NoSuchStreamError
from penstock.model.policies import Scaling, StreamConfig
from support.controller_faults import ScriptedSegments
from support.in_process_cluster import InProcessCluster

SETTINGS = ControllerSettings(retry_delay_ms_first=1, retry_delay_ms_max=2)
CONFIG = StreamConfig(Scaling.fixed(2), tags=("red",))


class RefusesMarks(ScriptedSegments):
    """Long-term storage that cannot keep the segments of watermarks."""

    async def create_segment(self, segment: str, **options: Any) -> None:
        if "/_MARKlong/" in segment:
            raise InvalidNameError(f"segment name {segment!r} is too long")
        await self.store.create_segment(segment, **options)

    async def create_table(self, segment: str, **options: Any) -> None:
        if "/../" in segment:
            raise InvalidArgumentError(f"{segment!r} cannot be the name of a segment")
        await self.store.create_table(segment, **options)


@pytest.fixture
async def service(cluster: InProcessCluster) -> ControllerService:
    service = cluster.build(SETTINGS, segments=RefusesMarks(cluster.store))
    await service.start()
    await service.create_scope("scope")
    return service


def left_of(cluster: InProcessCluster, stream: str) -> list[Any]:
    tables = [name for name in cluster.store.tables if f"/{stream}/" in name]
    return tables + [name for name in cluster.store.segments if f"/{stream}/" in name]


async def test_a_creation_that_storage_refuses_leaves_nothing(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    with pytest.raises(InvalidNameError, match="too long"):
        await service.create_stream("scope", "long", CONFIG)
    await service.idle()
    assert (await service.list_streams("scope", "")).names == ()
    assert (await service.list_streams_by_tag("scope", "red", "")).names == ()
    assert left_of(cluster, "long") == []
    assert [work.work for work in await service.given_up_work()] == ["create stream of stream scope/long"]
    with pytest.raises(NoSuchStreamError):
        await service.delete_stream("scope", "long")
    await service.delete_scope("scope")


async def test_a_creation_that_another_controller_left_is_given_up_whole(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    """Also one under a name that no table can have, as an earlier release announced it."""
    context = service._context
    for stream in ("long", ".."):
        subject = Subject(SubjectKind.STREAM, "scope", stream)
        await context.begin(subject, CreateStream(CONFIG), context.new_id())
        service._runner.finish_later(subject)
    await service.idle()
    assert (await service.list_streams("scope", "")).names == ()
    assert left_of(cluster, "long") == left_of(cluster, "..") == []
    await service.delete_scope_recursive("scope")
    assert not await service.scope_exists("scope")


async def test_a_stream_of_an_earlier_release_that_was_left_without_tables_can_be_deleted(
    service: ControllerService, cluster: InProcessCluster
) -> None:
    await service._catalog.add_stream("scope", "..", "an-id")
    await service.delete_scope_recursive("scope")
    assert not await service.scope_exists("scope")


async def test_what_cannot_even_be_given_up_does_not_block_its_subject(
    service: ControllerService, cluster: InProcessCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement goes nevertheless, and both failures are on record."""

    async def refuses(tables: StreamTables) -> None:
        raise InvalidArgumentError("no")

    monkeypatch.setattr("penstock.controller.metadata.stream_tables.StreamTables.drop_tables", refuses)
    with pytest.raises(InvalidNameError):
        await service.create_stream("scope", "long", CONFIG)
    await service.idle()
    assert [work.work for work in await service.given_up_work()] == [
        "the removal of what create stream of stream scope/long left",
        "create stream of stream scope/long",
    ]
    claims: WorkClaims = service._context.claims
    assert await claims.claim(Subject(SubjectKind.STREAM, "scope", "long")) is None


@pytest.mark.parametrize("stream", ["A" * 251, ".", "..", "_MARKx"])
async def test_a_name_that_cannot_work_is_refused_before_anything_is_announced(
    service: ControllerService, cluster: InProcessCluster, stream: str
) -> None:
    before = sorted(cluster.store.tables)
    with pytest.raises(InvalidNameError):
        await service.create_stream("scope", stream, CONFIG)
    assert sorted(cluster.store.tables) == before
    assert await service.given_up_work() == []


@pytest.mark.parametrize("scope", [".", "..", "penstock-storage.orders"])
async def test_a_scope_of_a_reserved_name_is_refused(service: ControllerService, scope: str) -> None:
    with pytest.raises(InvalidNameError):
        await service.create_scope(scope)
    assert not await service.scope_exists(scope)
