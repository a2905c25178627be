"""The log of changes: each change of a scope, stream, group or table is one line at INFO."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import grpc.aio
import pytest

from penstock.controller.change_log import cut_text, names_text
from penstock.controller.metadata.scope_records import GroupCut, KeyValueTableConfig, ReaderGroupConfig
from penstock.model.policies import Retention, Scaling, StreamConfig
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from support.in_process_cluster import InProcessCluster

if TYPE_CHECKING:
    from controller.conftest import Wire


def lines(caplog: Any) -> list[str]:
    found = [record.getMessage() for record in caplog.records if record.name == "penstock.controller.change_log"]
    caplog.clear()
    return found


async def test_each_change_of_a_stream_is_logged_when_it_has_ended(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    service = await cluster.start()
    with caplog.at_level(logging.INFO):
        caplog.clear()  # Of the start, if an earlier test has set the level of this process.
        await service.create_scope("shop")
        assert lines(caplog) == ["created scope shop"]
        config = StreamConfig(Scaling.fixed(2), Retention.by_size(100), ("red",))
        await service.create_stream("shop", "orders", config)
        identity = await service.queries.identity("shop", "orders")
        assert lines(caplog) == [
            f"created stream shop/orders, identity {identity}: 2 segments; keeps 100 bytes; tags red"
        ]
        await service.update_stream("shop", "orders", StreamConfig(Scaling.by_event_rate(9, min_segments=2)))
        assert lines(caplog) == ["updated stream shop/orders: 2 segments or more, 9 events/s each"]
        await service.scale_stream("shop", "orders", [0], [(0.0, 0.25), (0.25, 0.5)])
        await service.idle()
        new = [segment.id for segment in await service.current_segments("shop", "orders") if segment.creation_epoch]
        assert lines(caplog) == [f"scaled stream shop/orders to epoch 1: segments {new[0]}, {new[1]} replace 0"]
        await service.truncate_stream("shop", "orders", {new[0]: 0, new[1]: 0, 1: 0})
        assert lines(caplog) == [f"truncated stream shop/orders, it begins at 1: 0, {new[0]}: 0, {new[1]}: 0"]
        await service.seal_stream("shop", "orders")
        assert lines(caplog) == ["sealed stream shop/orders"]
        await service.delete_stream("shop", "orders")
        assert lines(caplog) == [f"deleted stream shop/orders, identity {identity}"]
        await service.delete_scope("shop")
        assert lines(caplog) == ["deleted scope shop"]


async def test_each_change_of_a_group_and_a_table_is_logged(
    cluster: InProcessCluster, caplog: pytest.LogCaptureFixture
) -> None:
    service = await cluster.start()
    await service.create_scope("shop")
    await service.create_stream("shop", "orders", StreamConfig())
    config = ReaderGroupConfig((GroupCut("shop", "orders", {}),))
    with caplog.at_level(logging.INFO):
        made = await service.reader_groups.create("shop", "audit", config)
        assert lines(caplog)[-1] == f"created reader group shop/audit, identity {made.id}, of shop/orders"
        await service.reader_groups.update("shop", "audit", config, made.id, 0)
        assert lines(caplog) == ["updated reader group shop/audit, generation 1, of shop/orders"]
        await service.reader_groups.delete("shop", "audit")
        assert lines(caplog)[-1] == f"deleted reader group shop/audit, identity {made.id}"
        await service.key_value_tables.create("shop", "stock", KeyValueTableConfig(2, 8))
        await service.key_value_tables.delete("shop", "stock")
        assert lines(caplog) == [
            "created key-value table shop/stock: 2 partitions",
            "deleted key-value table shop/stock",
        ]


async def test_a_refusal_that_is_the_clients_mistake_is_no_warning(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    await wire.service.create_scope("shop")
    await wire.service.create_stream("shop", "orders", StreamConfig())
    with caplog.at_level(logging.INFO):
        info = pb.StreamInfo(scope="shop", stream="orders")
        request = pb.ScaleRequest(streamInfo=info, sealedSegments=[7])
        assert (await wire.stub.scale(request)).status != pb.ScaleResponse.STARTED  # type: ignore[misc]
        cut = pb.StreamCut(streamInfo=info, cut={7: 0})
        assert (await wire.stub.truncateStream(cut)).status == pb.UpdateStreamStatus.FAILURE  # type: ignore[misc]
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_each_connection_of_a_client_is_logged_once_with_its_program(
    wire: Wire, caplog: pytest.LogCaptureFixture
) -> None:
    options = [("grpc.primary_user_agent", "someone/1.2"), ("grpc.use_local_subchannel_pool", 1)]
    with caplog.at_level(logging.INFO):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{wire.server.port}", options=options) as channel:
            for _ in range(3):
                await ControllerServiceStub(channel).checkScopeExists(pb.ScopeInfo(scope="shop"))  # type: ignore[misc]
    (line,) = [record.getMessage() for record in caplog.records if "connects" in record.getMessage()]
    assert "program someone/1.2 grpc" in line


@pytest.mark.parametrize(("count", "text"), [(2, "0, 1"), (10, "0, 1, 2, 3, 4, 5, 6, 7 and 2 more")])
def test_a_line_names_a_few_of_many(count: int, text: str) -> None:
    assert names_text(range(count)) == text
    assert cut_text(dict.fromkeys(range(count), 5)).startswith("0: 5, 1: 5")
