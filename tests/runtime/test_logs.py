"""How servers write their logs: times in UTC, levels of failures, outages as a beginning, a count and an end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

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
from penstock.runtime.logs import UtcFormatter
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
