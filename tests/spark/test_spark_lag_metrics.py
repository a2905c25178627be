"""The lag of queries for Prometheus: its text, and the endpoint that serves it."""

from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.spark.lag import QueryLag, SegmentLag
from penstock.spark.lag_metrics import LagEndpoint, lag_metrics

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
    one = 'query="one",name="billing",source="0",stream="retail/orders",segment="0"'
    two = 'query="two",name="a \\"b\\"\\\\\\n"'
    lines = text.splitlines()
    assert [line for line in lines if line.startswith("penstock_query_lag_") and "two" not in line] == [
        f"penstock_query_lag_bytes{{{one}}} 90", f"penstock_query_lag_events{{{one}}} 9",
        f"penstock_query_lag_seconds{{{one}}} 1.5",
        'penstock_query_lag_is_whole{query="one",name="billing"} 1',
        'penstock_query_lag_batch{query="one",name="billing"} 3',
    ]  # fmt: skip
    of_next = f'{two},source="1",stream="retail/orders",segment="{NEXT}"'
    assert [line for line in lines if "two" in line] == [
        f"penstock_query_lag_bytes{{{of_next}}} 70", f"penstock_query_lag_seconds{{{of_next}}} 0.0",
        f"penstock_query_lag_is_whole{{{two}}} 0", f"penstock_query_lag_batch{{{two}}} 3",
    ]  # fmt: skip
    assert [line for line in lines if line.startswith("# TYPE")] == [
        f"# TYPE penstock_query_lag_{name} gauge" for name in ("bytes", "events", "seconds", "is_whole", "batch")
    ]
    assert lag_metrics([]) == ""


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
