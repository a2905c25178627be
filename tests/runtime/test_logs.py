"""How servers write their logs: times in UTC, levels of failures, outages as a beginning, a count and an end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    PenstockError,
    SegmentTruncatedError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
)
from penstock.runtime.failure_levels import level_of
from penstock.runtime.log_context import log_context, request_id_of
from penstock.runtime.log_events import EVENTS
from penstock.runtime.logs import BURST_LINES, COUNT_INTERVAL_S, BoundedHandler, JsonFormatter, UtcFormatter
from penstock.runtime.outages import REPORT_INTERVAL_S, OutageLog
from penstock_simulation.simulated.simulation import Simulation

logger = logging.getLogger("penstock.test_logs")


@pytest.fixture
def far_east(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("far_east")
def test_times_are_in_utc_wherever_the_server_is() -> None:
    record = logging.LogRecord("a", logging.INFO, "file", 1, "text", None, None)
    record.created, record.msecs = 1_700_000_000.25, 250.0
    assert UtcFormatter("%(asctime)s %(message)s").format(record) == "2023-11-14T22:13:20.250Z text"


@pytest.mark.parametrize(
    ("error", "level"),
    [
        (CorruptionError("path", 0, "damaged"), logging.WARNING),
        (StorageError("broken"), logging.WARNING),
        (StorageUnavailableError("away"), logging.DEBUG),
        (SegmentTruncatedError("s/t/0", start_offset=5, offset=1), logging.INFO),
        (InvalidArgumentError("no"), logging.INFO),
    ],
)
def test_a_clients_mistake_is_no_warning(error: PenstockError, level: int) -> None:
    assert level_of(error) == level


def test_an_outage_is_one_line_a_count_and_an_end(caplog: pytest.LogCaptureFixture) -> None:
    """119 failures in 30 s were 119 lines."""

    async def scenario() -> None:
        outage = OutageLog(logger, "flushes")
        outage.ended()
        for _ in range(119):
            outage.failed("flush of a failed", StorageUnavailableError("away"))
            await asyncio.sleep(0.25)
        assert outage.failure_count == 119
        outage.ended()
        outage.ended()

    with caplog.at_level(logging.INFO):
        Simulation(1).run(scenario)
    assert [record.getMessage() for record in caplog.records if record.name == logger.name] == [
        "flush of a failed: away",
        "flushes succeed again, after 119 failures in 30 s",
    ]


def test_an_outage_that_lasts_is_counted_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        outage = OutageLog(logger, "flushes")
        for _ in range(200):
            outage.failed("flush of a failed", StorageUnavailableError("away"))
            await asyncio.sleep(1)

    with caplog.at_level(logging.INFO):
        Simulation(1).run(scenario)
    counts = [record.getMessage() for record in caplog.records if "still fail" in record.getMessage()]
    assert len(counts) == 199 // REPORT_INTERVAL_S
    assert counts[0] == "flushes still fail: 61 failures in 60 s; the latest: flush of a failed: away"


def test_another_kind_of_failure_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Damage that shows during an outage must not be hidden by it."""

    async def scenario() -> None:
        outage = OutageLog(logger, "flushes")
        for _ in range(3):
            outage.failed("flush failed", StorageFullError("no room"))
            outage.failed("flush failed", CorruptionError("path", 7, "damaged"), level=logging.ERROR)

    with caplog.at_level(logging.INFO):
        Simulation(1).run(scenario)
    assert [record.levelno for record in caplog.records if record.name == logger.name] == [
        logging.WARNING,
        logging.ERROR,
    ]


def _records(handler: BoundedHandler, count: int, at_s: float, level: int = logging.INFO) -> None:
    for number in range(count):
        record = logging.LogRecord("penstock.a", level, "file", 1, "client %d connects", (number,), None)
        record.created = at_s
        handler.handle(record)


def test_lines_of_one_message_are_bounded_and_the_rest_is_counted() -> None:
    """A thousand connections in a moment are 20 lines, and the count with the next record of any message."""
    stream = io.StringIO()
    handler = BoundedHandler(stream)
    _records(handler, 1000, 100.0)
    assert stream.getvalue().splitlines() == [f"client {number} connects" for number in range(BURST_LINES)]
    other = logging.LogRecord("penstock.b", logging.WARNING, "file", 1, "disk full", None, None)
    other.created = 100.0 + COUNT_INTERVAL_S
    handler.handle(other)
    assert stream.getvalue().splitlines()[BURST_LINES:] == [
        "980 lines of this kind left out, the last: client 999 connects",
        "disk full",
    ]


def test_a_message_at_a_low_rate_is_never_left_out() -> None:
    """One line per second, for longer than the burst lasts; a clock that is set back changes nothing."""
    stream = io.StringIO()
    handler = BoundedHandler(stream)
    for second in range(100):
        _records(handler, 1, 100.0 + second)
    _records(handler, 1, 50.0)
    handler.close()
    assert len(stream.getvalue().splitlines()) == 101


def test_the_end_of_a_process_writes_the_count() -> None:
    """Otherwise the log would not tell that lines are missing."""
    stream = io.StringIO()
    handler = BoundedHandler(stream)
    _records(handler, BURST_LINES + 1, 100.0)
    handler.close()
    assert (
        stream.getvalue().splitlines()[-1] == f"1 line of this kind left out, the last: client {BURST_LINES} connects"
    )


@pytest.mark.parametrize("level", [logging.DEBUG, logging.WARNING, logging.ERROR])
def test_other_levels_are_written_whole(level: int) -> None:
    stream = io.StringIO()
    _records(BoundedHandler(stream), 1000, 100.0, level)
    assert len(stream.getvalue().splitlines()) == 1000


def test_messages_are_followed_in_bounded_memory() -> None:
    """Texts that are made before they are logged would be a message each: their counts are written, none is lost."""
    stream = io.StringIO()
    handler = BoundedHandler(stream)
    _records(handler, BURST_LINES + 5, 100.0)
    for number in range(5000):
        record = logging.LogRecord("penstock.a", logging.INFO, "file", 1, f"message {number}", None, None)
        record.created = 100.0
        handler.handle(record)
    assert len(handler._rates) <= 1024
    assert "5 lines of this kind left out" in stream.getvalue()
    assert stream.getvalue().count("message ") == 5000


#: Prints what is logged at which level by the log of a server.
_LEVELS = """
import logging, sys
from penstock.runtime.logs import log_to_standard_error
log_to_standard_error(sys.argv[1])
for name in ("penstock.server", "httpx"):
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        logging.getLogger(name).log(level, "said")
"""


@pytest.mark.parametrize(
    ("level", "written"),
    [
        ("debug", ["DEBUG", "INFO", "WARNING", "ERROR"] * 2),
        ("info", ["INFO", "WARNING", "ERROR", "WARNING", "ERROR"]),
        ("warning", ["WARNING", "ERROR"] * 2),
        ("error", ["ERROR"] * 2),
    ],
)
def test_other_packages_log_from_warning_on(level: str, written: list[str]) -> None:
    """An HTTP library logs each request at INFO, which is not what an operator asks for by default."""
    ran = subprocess.run([sys.executable, "-c", _LEVELS, level], capture_output=True, text=True, timeout=60, check=True)
    assert [line.split()[1] for line in ran.stderr.splitlines()] == written


def test_a_json_line_has_the_event_the_context_and_the_traceback() -> None:
    formatter = JsonFormatter("store 1")
    try:
        raise ValueError("a\nb")
    except ValueError:
        record = logging.LogRecord(
            "penstock.x", logging.ERROR, "x.py", 1, "container %d stays offline", (3,), sys.exc_info()
        )
    record.created, record.msecs = 0.25, 250.0
    token = log_context.set({"call": "createScope", "request_id": ""})
    try:
        line = json.loads(formatter.format(record))
    finally:
        log_context.reset(token)
    assert line.pop("exc").endswith("ValueError: a\nb")
    assert line == {
        "ts": "1970-01-01T00:00:00.250Z", "level": "error", "logger": "penstock.x", "event": "container.offline",
        "msg": "container 3 stays offline", "process": "store 1", "call": "createScope",
    }  # fmt: skip


def test_the_operations_guide_names_every_event() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide" / "operations.md").read_text()
    for name in [*EVENTS, "change.done"]:
        assert f"`{name}`" in guide, name


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ([], ""),
        ([("requestid", "4711")], "4711"),
        ([("requestid", b"47\x0011")], "4711"),
        ([("other", "1"), ("requestid", "x" * 100)], "x" * 64),
    ],
)
def test_a_request_id_is_bounded_and_printable(metadata: list[tuple[str, str | bytes]], expected: str) -> None:
    assert request_id_of(metadata) == expected
