"""Log lines and audit entries of a store have the id of the client's call that a request belongs to."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from penstock.model.errors import ConnectionLostError
from penstock.runtime.log_context import log_context
from penstock.security.audit_log import AuditEntry, AuditLog, AuditSettings
from penstock.segmentstore.request_audit import RequestAudit
from penstock.wire import commands as wire
from penstock.wire.request_ids import request_tag, tag_of, tagged
from support.containers import memory_runtime
from support.wire_service import A, WireService


class Lines(logging.Handler):
    """Keeps each line with the fields that a line of JSON has."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.found: list[tuple[str, dict[str, str]]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append((record.getMessage(), dict(log_context.get())))


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    logger = logging.getLogger("penstock.segmentstore.connection")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture
async def service() -> AsyncIterator[WireService]:
    made = WireService()
    await made.start()
    yield made
    await made.stop()


def wire_id(request_id: str, number: int = 1) -> int:
    """Return the id of a request that a controller sends for a client's call."""
    token = request_tag.set(tag_of(request_id))
    try:
        return tagged(number)
    finally:
        request_tag.reset(token)


async def test_the_line_of_a_request_has_the_id_of_the_call(service: WireService, lines: Lines) -> None:
    connection = await service.connect()
    await connection.ask(wire.SealSegment(wire_id("4711"), A, ""), wire.SegmentSealed)
    await connection.ask(wire.GetStreamSegmentInfo(7, A, ""), wire.StreamSegmentInfo)
    (sealed,) = [line for line in lines.found if "SealSegment" in line[0]]
    assert sealed[0] == f"request 4711: SealSegment {A}: SegmentSealed"
    assert (sealed[1]["request_id"], sealed[1]["call"]) == ("4711", "SealSegment")
    assert sealed[1]["peer"].startswith("127.0.0.1:")
    (asked,) = [line for line in lines.found if "GetStreamSegmentInfo" in line[0]]
    assert asked[1]["request_id"] == "7"


async def test_the_line_of_a_failed_request_has_the_id_of_the_call(
    service: WireService, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error ends the connection, in a callback after the end of the request's task."""

    async def fail(segment: str) -> None:
        raise ConnectionLostError("the log is away")

    monkeypatch.setattr(service.store, "seal_segment", fail)
    connection = await service.connect()
    connection.send(wire.SealSegment(wire_id("order-17"), A, ""))
    assert await connection.receive() is None
    (failed,) = [line for line in lines.found if "the log is away" in line[0] and line[0].startswith("a request of")]
    assert failed[1]["request_id"] == "~83a428f80c"


async def test_the_audit_entry_of_a_refused_request_has_the_id_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = memory_runtime()
    log = AuditLog(tmp_path / "audit.jsonl", AuditSettings(), runtime.work, lambda: 0)
    kept: list[AuditEntry] = []
    monkeypatch.setattr(log, "record", kept.append)
    audit = RequestAudit(log)
    audit.note_refused(wire.SealSegment(wire_id("4711"), A, ""), "10.0.0.7:40112", "wrong token")
    audit.note_refused(wire.Hello(17, 5), "10.0.0.8:40112", "wrong token")
    await runtime.work.close()
    assert [entry.request_id for entry in kept] == ["4711", ""]
