"""Reading through the store's client: resumed after passing faults, never past them in silence.

The client is a stand-in that serves one segment and fails on demand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType

import pytest

from penstock.model.errors import (
    ConnectionLostError,
    ContainerNotFoundError,
    InvalidArgumentError,
    NoSuchSegmentError,
    OutcomeUnknownError,
    PenstockError,
    SegmentTruncatedError,
)
from penstock.model.events import frame_events
from penstock.model.stream_cuts import StreamCut
from penstock.spark import store
from penstock.spark.options import StoreSettings
from penstock.spark.store import StoredStream

DATA = frame_events([b"x" * 12] * 10)
SETTINGS = StoreSettings(retry_count_max=2, retry_interval_s=0.0)


class StandInReader:
    def __init__(self, client: StandInClient, start: int, end: int) -> None:
        self._client, self._blocks = client, self._read(start, end)

    def __enter__(self) -> StandInReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.closed_count += 1

    def read(self, timeout_s: float) -> bytes:
        assert timeout_s <= SETTINGS.outage_s_max
        return next(self._blocks, b"")

    def _read(self, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, min(end, len(DATA)), 30):
            if self._client.faults and at >= self._client.faults[0][0]:
                raise self._client.faults.pop(0)[1]
            yield DATA[at : min(at + 30, end)]


class StandInClient:
    """Serves `DATA` as every segment; raises each fault once, at the first block from its offset on."""

    def __init__(self, faults: Sequence[tuple[int, Exception]] = ()) -> None:
        self.faults = list(faults)
        self.starts: list[int] = []
        self.closed_count = 0
        self.is_closed = False

    def segment_reader(self, segment: str, start: int, end: int) -> StandInReader:
        assert segment == "a/b/3.#epoch.1"
        self.starts.append(start)
        return StandInReader(self, start, end)

    def head(self, stream: str) -> StreamCut:
        return StreamCut("a", "b", {5: 0, 2: 7})

    def tail(self, stream: str, *, whole_transactions: bool) -> StreamCut:
        assert whole_transactions
        return StreamCut("a", "b", {5: 70, 2: 77})

    def close(self) -> None:
        self.is_closed = True


SEGMENT = (1 << 32) | 3


class Clock:
    """Time that continues in pauses only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(store.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(store.time, "sleep", self.sleep)

    def sleep(self, pause_s: float) -> None:
        self.now_s += pause_s


@pytest.fixture
def stream() -> StoredStream:
    return StoredStream(SETTINGS, "a", "b")


def serve(monkeypatch: pytest.MonkeyPatch, *faults: tuple[int, Exception]) -> StandInClient:
    client = StandInClient(faults)
    monkeypatch.setattr(store, "client_of", lambda settings: client)
    return client


def test_a_range_is_read_whole(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    client = serve(monkeypatch)
    assert b"".join(stream.read(SEGMENT, 20, 180)) == DATA[20:180]
    assert (client.starts, client.closed_count) == ([20], 1)
    assert list(stream.read(SEGMENT, 20, 20)) == []


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        ("earliest", {2: 7, 5: 0}),
        ("head", {2: 7, 5: 0}),
        ("latest", {2: 77, 5: 70}),
        ("Tail", {2: 77, 5: 70}),
        (None, {2: 7, 5: 0}),
        ("unbounded", {2: 77, 5: 70}),
        ('{"cut":{"2":8}}', {2: 8}),
        (StreamCut("a", "b", {2: 9}).to_text(), {2: 9}),
    ],
)
def test_both_spellings_of_a_place_in_a_stream_are_read(
    monkeypatch: pytest.MonkeyPatch, stream: StoredStream, text: str | None, cut: dict[int, int]
) -> None:
    """Of its ends, as a reader group's start reads them; and of a cut, as the client and older checkpoints wrote it."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    from penstock.spark.source import _resolve

    serve(monkeypatch)
    assert _resolve(stream, text, "earliest", "latest") == cut


def test_a_place_in_a_stream_may_be_a_time(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    """Of which the store makes a cut, a little early for a start and a little late for an end."""
    pytest.importorskip("pyspark", reason="needs pyspark: pip install 'penstock[spark]'")
    from penstock.spark.source import _resolve

    asked: list[tuple[str, bool]] = []

    def at_time(self: StoredStream, time: str, *, is_end: bool) -> dict[int, int]:
        asked.append((time, is_end))
        return {2: 5}

    monkeypatch.setattr(StoredStream, "at_time", at_time)
    for is_end in (False, True):
        assert _resolve(stream, "2026-11-22T10:30:00Z", "earliest", "latest", is_end=is_end) == {2: 5}
    assert asked == [("2026-11-22T10:30:00Z", False), ("2026-11-22T10:30:00Z", True)]


def test_passing_faults_are_sat_out_without_a_gap(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    """Five faults with progress in between, though only two in a row are allowed."""
    faults = [(at, ConnectionLostError("gone")) for at in (0, 30, 60, 90, 120)]
    client = serve(monkeypatch, *faults)
    assert b"".join(stream.read(SEGMENT, 0, 200)) == DATA
    assert client.starts == [0, 0, 30, 60, 90, 120]


def test_too_many_faults_in_a_row_end_the_read(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    serve(monkeypatch, *[(30, ContainerNotFoundError(4))] * 3)
    with pytest.raises(ContainerNotFoundError) as caught:
        list(stream.read(SEGMENT, 0, 200))
    assert "gave up reading a/b/3.#epoch.1 at byte 30 after 3 failures (numRetries)" in caught.value.__notes__[0]


def test_faults_without_progress_end_the_read_when_the_time_is_up_however_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No count was given: five failures in a row are sat out, and the sixth comes when the time is over."""
    clock = Clock(monkeypatch)
    serve(monkeypatch, *[(30, ConnectionLostError("gone")) for _ in range(10)])
    stream = StoredStream(StoreSettings(retry_interval_s=2.0, outage_s_max=10.0), "a", "b")
    with pytest.raises(ConnectionLostError) as caught:
        list(stream.read(SEGMENT, 0, 200))
    assert clock.now_s == 10.0
    assert "after 6 failures (readTimeout)" in caught.value.__notes__[0]


def test_a_store_that_hangs_ends_the_read_once_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch, stream: StoredStream
) -> None:
    client = serve(monkeypatch, (60, TimeoutError()))
    with pytest.raises(OutcomeUnknownError, match=r"after byte 60 for 120 s \(readTimeout\)"):
        list(stream.read(SEGMENT, 0, 200))
    assert client.starts == [0]


@pytest.mark.parametrize("error", [SegmentTruncatedError("s", start_offset=90, offset=30), NoSuchSegmentError("s")])
def test_truncated_bytes_are_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, stream: StoredStream, error: PenstockError
) -> None:
    client = serve(monkeypatch, (30, error))
    with pytest.raises(type(error)) as caught:
        list(stream.read(SEGMENT, 0, 200))
    assert "bytes [30, 200) of a/b/3.#epoch.1 are lost" in caught.value.__notes__[0]
    assert len(client.starts) == 1


def test_an_error_that_a_retry_cannot_mend_passes_through(
    monkeypatch: pytest.MonkeyPatch, stream: StoredStream
) -> None:
    client = serve(monkeypatch, (0, PenstockError("no")))
    with pytest.raises(PenstockError, match="no"):
        list(stream.read(SEGMENT, 0, 200))
    assert len(client.starts) == 1


def test_a_segment_that_ends_early_is_an_error(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    serve(monkeypatch)
    with pytest.raises(InvalidArgumentError, match=r"requested bytes \[0, 500\), but the segment ends at 200"):
        list(stream.read(SEGMENT, 0, 500))


def test_boundaries_and_event_ends_come_from_the_bytes(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    serve(monkeypatch)
    assert list(stream.boundaries(SEGMENT, 20, [30, 40, 99])) == [20, 40, 80]
    assert stream.event_end(SEGMENT, 40) == 60


@pytest.mark.parametrize("borders", [[0, 60, 120, 180, 200], [0, 100, 200], [0, 200]])
def test_a_search_for_a_boundary_reads_only_near_its_target(
    monkeypatch: pytest.MonkeyPatch, stream: StoredStream, borders: list[int]
) -> None:
    """Events are 20 bytes, and a walk is at most 50: borders between appends say where it may begin."""
    client = serve(monkeypatch)
    monkeypatch.setattr(store, "WALK_BYTES_MAX", 50)
    monkeypatch.setattr(store, "run_in_client", lambda _, step: next(each for each in borders if each >= step.args[1]))
    for targets in ([199], [20, 45, 130, 150, 199], [10, 200], [90, 95, 100, 105]):
        client.starts.clear()
        assert list(stream.boundaries(SEGMENT, 0, targets)) == [each // 20 * 20 for each in targets]
    client.starts.clear()
    assert list(stream.boundaries(SEGMENT, 20, [199])) == [180]
    # The nearest known boundary, else the start it was given.
    assert client.starts == [{60: 180, 100: 100, 200: 20}[next(each for each in borders if each)]]


def test_cuts_are_plain_and_sorted(monkeypatch: pytest.MonkeyPatch, stream: StoredStream) -> None:
    serve(monkeypatch)
    assert list(stream.head().items()) == [(2, 7), (5, 0)]
    assert stream.name == "a/b"


def test_clients_are_kept_per_process_and_closed_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[StandInClient] = []

    def make(settings: StoreSettings) -> StandInClient:
        made.append(StandInClient())
        return made[-1]

    monkeypatch.setattr(store, "open_client", make)
    monkeypatch.setattr(store, "_clients", type(store._clients)())
    first = store.client_of(StoreSettings("tcp://h:1"))
    assert store.client_of(StoreSettings("tcp://h:1")) is first
    for port in range(2, 2 + store.CLIENT_COUNT_MAX):
        store.client_of(StoreSettings(f"tcp://h:{port}"))
    assert made[0].is_closed
    assert not made[1].is_closed
    # A forked child starts afresh and leaves its parent's clients alone.
    monkeypatch.setattr(store.os, "getpid", lambda: -1)
    in_child = store.client_of(StoreSettings("tcp://h:2"))
    assert in_child is not made[1]
    assert not made[1].is_closed
    store.close_clients()
    assert made[-1].is_closed
    assert not made[1].is_closed
