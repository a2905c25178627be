"""A streaming query as a subscriber: what retention by consumption keeps for it, and from when on not any more.

A producer writes throughout each test.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from penstock.server.standalone_process import StandaloneProcess
from support.live_writer import LiveWriter

pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")

from penstock.model.names import split_scoped_name
from penstock.model.stream_cuts import StreamCut
from penstock.spark.offsets import QueryPosition
from spark.test_spark_several import Query, new_streams  # noqa: F401

if TYPE_CHECKING:
    from penstock.client.sync import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def group_of(query: Query) -> str:
    return f"{query.reader._options.subscriber}-{json.loads(query.at)['subscriber']}"


def groups(client: Client) -> list[str]:
    return [f"spark-tests/{name}" for name in client.reader_groups("spark-tests")]


def acknowledged(client: Client, query: Query) -> dict[str, StreamCut]:
    with client.reader_group(group_of(query)) as group:
        return dict(group.describe().acknowledged or {})  # type: ignore[arg-type]


def commit(query: Query, at: str | None = None) -> None:
    query.reader.commit(json.loads(at or query.at))


def cuts(query: Query, at: str | None = None) -> dict[str, StreamCut]:
    """Return where a query is, or was, in its streams."""
    place = QueryPosition.of(json.loads(at or query.at), query.reader._options.only)
    return {name: StreamCut(*split_scoped_name(name), dict(cut)) for name, cut in place.cuts.items()}


def test_a_query_retains_uncommitted_events(
    store: StandaloneProcess, client: Client, new_stream: Callable[..., str], live: Callable[..., LiveWriter]
) -> None:
    """From its first micro-batch on; Spark commits a batch with the next one."""
    stream = new_stream(2)
    writer = live(stream)
    begin = client.head(stream)
    query = Query(store, stream, subscriber="billing")
    assert group_of(query) not in groups(client)
    query.step()
    at = query.at
    assert group_of(query) in groups(client)
    writer.wait_for(5)
    query.step()
    assert acknowledged(client, query).get(stream, begin) == begin
    commit(query, at)
    assert acknowledged(client, query) == cuts(query, at)
    # Another run continues under the same name, a query with another checkpoint has another one.
    later = Query(store, stream, at=query.at, subscriber="billing")
    writer.wait_for(5)
    later.step()
    commit(later)
    assert group_of(later) == group_of(query)
    assert acknowledged(client, later) == cuts(later) != cuts(query)
    other = Query(store, stream, subscriber="spark-tests/billing")
    other.step()
    assert group_of(other) != group_of(query)
    assert acknowledged(client, other).get(stream, begin) == begin
    # An earlier cut that comes late takes nothing back.
    commit(later, at)
    assert acknowledged(client, later) == cuts(later)


def test_a_query_subscribes_to_streams_as_they_come_and_go(
    store: StandaloneProcess,
    client: Client,
    new_streams: Callable[..., list[str]],  # noqa: F811
    live: Callable[..., LiveWriter],
    caplog: pytest.LogCaptureFixture,
) -> None:
    scope, *_ = new_streams()
    query = Query(store, f"{scope}/*", subscriber="billing", failOnDataLoss="false")
    assert query.plan() == query.at
    _, first = new_streams("a")
    one = live(first)
    query.step()
    commit(query)
    _, second = new_streams("b")
    other = live(second)
    head = client.head(second)
    query.step()
    assert acknowledged(client, query).get(second, head) == head
    commit(query)
    assert acknowledged(client, query) == cuts(query)
    assert set(cuts(query)) == {first, second}
    one.stop()
    client.seal_stream(first)
    client.delete_stream(first)
    other.wait_for(5)
    query.step()
    commit(query)
    assert acknowledged(client, query) == cuts(query)
    assert set(cuts(query)) == {second}
    # An administrator removed it: the query continues, with a log line.
    client.delete_reader_group(group_of(query))
    other.wait_for(5)
    assert query.step().total() >= 5
    with caplog.at_level(logging.WARNING, logger="penstock.spark"):
        commit(query)
    assert f"the position of subscriber {group_of(query)} could not be published yet" in caplog.text


def test_a_query_that_is_no_subscriber_makes_no_group(
    store: StandaloneProcess,
    client: Client,
    new_streams: Callable[..., list[str]],  # noqa: F811
    live: Callable[..., LiveWriter],
) -> None:
    scope, stream = new_streams("a")
    writer = live(stream)
    query = Query(store, stream)
    query.step()
    commit(query)
    assert list(client.reader_groups(scope)) == []
    assert "subscriber" not in query.at
    # It becomes one with its next batch that has something.
    later = Query(store, stream, at=query.at, subscriber="billing")
    writer.wait_for(5)
    later.step()
    commit(later)
    assert acknowledged(client, later) == cuts(later)
