"""The lag of queries for Prometheus: its text, and the endpoint that serves it."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from penstock.model.errors import InvalidArgumentError
from penstock.spark.lag import QueryLag, SegmentLag
from penstock.spark.lag_metrics import LagCollector, LagEndpoint, lag_metrics

TIME = "2026-11-22T10:00:00.000Z"
#: The first segment of the second epoch.
NEXT = 1 << 32


def scraped(endpoint: LagEndpoint, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{endpoint.port}{path}", timeout=30) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def test_lags_are_scraped_as_gauges() -> None:
    """What is not known has no line; labels are what users called their queries, quotes and all."""
    known = QueryLag("one", "billing", 3, TIME, (SegmentLag(0, "retail/orders", 0, 90, 9, 1.5),), True)
    unknown = SegmentLag(0, "retail/orders", 0, None, None, None), SegmentLag(1, "retail/orders", NEXT, 70, None, 0.0)
    sealed = QueryLag("two", 'a "b"\\\n', 3, TIME, unknown, False)
    with LagEndpoint(lambda: [known, sealed]) as endpoint:
        text = scraped(endpoint, "/metrics?x=1")
        with pytest.raises(urllib.error.HTTPError, match="404"):
            scraped(endpoint, "/")
    one = 'name="billing",query="one",segment="0",source="0",stream="retail/orders"'
    two = 'name="a \\"b\\"\\\\\\n",query="two"'
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("penstock_query_lag_") and "two" not in line] == [
        f"penstock_query_lag_bytes{{{one}}} 90.0", f"penstock_query_lag_events{{{one}}} 9.0",
        f"penstock_query_lag_seconds{{{one}}} 1.5",
        'penstock_query_lag_is_whole{name="billing",query="one"} 1.0',
        'penstock_query_lag_batch{name="billing",query="one"} 3.0',
    ]  # fmt: skip
    of_next = f'{two},segment="{NEXT}",source="1",stream="retail/orders"'
    assert [line for line in lines if "two" in line] == [
        f"penstock_query_lag_bytes{{{of_next}}} 70.0", f"penstock_query_lag_seconds{{{of_next}}} 0.0",
        f"penstock_query_lag_is_whole{{{two}}} 0.0", f"penstock_query_lag_batch{{{two}}} 3.0",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("# TYPE")] == [
        f"# TYPE penstock_query_lag_{name} gauge" for name in ("bytes", "events", "seconds", "is_whole", "batch")
    ]
    assert lag_metrics([]) == ""


def test_a_program_adds_lags_to_its_own_registry() -> None:
    """Each scrape has the present lags, beside the program's metrics; none are asked for before a scrape."""
    registry = CollectorRegistry()
    Gauge("own", "A metric of the program.", registry=registry).set(5)
    lags: list[QueryLag] = []
    asked: list[int] = []

    def latest() -> list[QueryLag]:
        asked.append(len(lags))
        return lags

    registry.register(LagCollector(latest))
    assert asked == []
    labels = {"query": "one", "name": ""}
    assert registry.get_sample_value("penstock_query_lag_batch", labels) is None
    lags.append(QueryLag("one", None, 4, TIME, (SegmentLag(0, "retail/orders", NEXT, 90, None, None),), True))
    assert registry.get_sample_value("penstock_query_lag_batch", labels) == 4
    of_segment = labels | {"source": "0", "stream": "retail/orders", "segment": str(NEXT)}
    assert registry.get_sample_value("penstock_query_lag_bytes", of_segment) == 90
    assert registry.get_sample_value("penstock_query_lag_events", of_segment) is None
    assert registry.get_sample_value("own") == 5


def test_a_silent_client_does_not_block_metrics_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a client that leaves before the answer; a port in use is an error; after `close` the port is closed."""
    monkeypatch.setattr("penstock.spark.lag_metrics._Handler.timeout", 0.2)
    with LagEndpoint(list) as endpoint:
        place = ("127.0.0.1", endpoint.port)
        with socket.create_connection(place), socket.create_connection(place) as gone:
            gone.sendall(b"GET /metr")
            gone.close()
            assert scraped(endpoint) == ""
        with pytest.raises(InvalidArgumentError, match=f"metrics cannot be served at 127.0.0.1:{endpoint.port}"):
            LagEndpoint(list, port=endpoint.port)
    endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(place)


def test_a_client_that_sends_single_bytes_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes within the time for a step; all of them together may take no longer than that."""
    monkeypatch.setattr("penstock.spark.lag_metrics._Handler.timeout", 0.4)
    is_over = threading.Event()
    with LagEndpoint(list) as endpoint, socket.create_connection(("127.0.0.1", endpoint.port)) as slow:

        def trickle() -> None:
            try:
                while not is_over.wait(0.05):
                    slow.sendall(b"G")
            except OSError:
                pass  # Given up.

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        try:
            assert scraped(endpoint) == ""
        finally:
            is_over.set()
            thread.join()
