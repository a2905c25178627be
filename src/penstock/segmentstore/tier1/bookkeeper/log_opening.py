"""`claim`: how a process becomes the only writer of a log. Protocol: docs/bookkeeper-log.md, "Open"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from penstock.model.errors import CorruptionError, LogDisabledError, LogFencedError, StorageConflictError
from penstock.model.errors.ledgers import LedgerMetadataError
from penstock.segmentstore.tier1.bookkeeper.entry_format import frame_address
from penstock.segmentstore.tier1.bookkeeper.ledger_chain import OpenLedger
from penstock.segmentstore.tier1.bookkeeper.log_process import BookKeeperProcess
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogLedger, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import StoredLogRecord
from penstock.segmentstore.tier1.durable_log import InspectFrame

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimedLog:
    """A log that this process owns.

    Attributes:
        stored: its record.
        found: the ledgers with frames of earlier incarnations; all have ended.
        reader: reads them.
        ledger: the own one.
        last_address: of the last entry that was found; 0: none.
        is_unsettled: an earlier incarnation may still answer reads.
        began_s: when the change of the record was begun, on `Runtime.monotonic_s`.
    """

    stored: StoredLogRecord
    found: Sequence[LogLedger]
    reader: LogReader
    ledger: OpenLedger
    last_address: int
    is_unsettled: bool
    began_s: float


async def claim(
    process: BookKeeperProcess, container_id: int, inspect: InspectFrame | None, check: Callable[[], None]
) -> ClaimedLog:
    """Fence every other holder, and take the log over. `check` raises if it is not opened any more.

    Raises the errors of `DurableLog.open`; `LedgerError` if too few bookies answer.
    """
    for attempt in range(1, process.settings.open_attempts_max + 1):
        reader = LogReader(process.ledgers, process.settings, container_id, process.records.cluster_id)
        claimed = None
        try:
            claimed = await _try_to_claim(process, container_id, reader, inspect, check)
        except LedgerMetadataError as error:
            if attempt == process.settings.open_attempts_max:
                raise
            _log.info("the open of the log of container %d begins again: %s", container_id, error)
            await asyncio.sleep(process.settings.retry_s)
        finally:
            if claimed is None:
                await reader.close()
        if claimed is not None:
            return claimed
    raise LogFencedError(f"the log of container {container_id} is being opened by other processes again and again")


async def _try_to_claim(
    process: BookKeeperProcess,
    container_id: int,
    reader: LogReader,
    inspect: InspectFrame | None,
    check: Callable[[], None],
) -> ClaimedLog | None:
    """Take the log over; return None if its record has changed meanwhile."""
    stored = await process.records.read(container_id)
    before = LogRecord(container_id, process.records.cluster_id, b"") if stored is None else stored.record
    if not before.is_enabled:
        raise LogDisabledError(f"the log of container {container_id} ({record_path(container_id)} in "
                               f"{process.records.place}) is disabled: {before.reason}")  # fmt: skip
    try:
        if inspect is not None:
            await reader.inspect(before, inspect)
        check()
        ended = before.with_ends(await _fence(reader, before, inspect))
    except CorruptionError:
        if await _has_changed(process, container_id, stored):
            return None  # A ledger was deleted because its owner, or a later one, has truncated the log.
        raise
    check()
    may_live = before.epoch > 0 and not before.is_released
    is_unsettled = not before.is_settled or (
        may_live and process.owner.may_answer(container_id, before.epoch, before.owner)
    )
    labels = LedgerLabels(before.cluster_id, container_id, ended.next_ordinal, before.epoch + 1, before.begins)
    ledger = OpenLedger(labels.ordinal)
    ledger.writer = await process.create_ledger(
        labels, ledger, gives_up=True, on_problem=lambda text: _log.info("container %d: %s", container_id, text)
    )
    record = replace(
        ended.with_ledger(ledger.writer.ledger_id),
        nonce=process.runtime.random_id(),
        epoch=before.epoch + 1,
        owner=process.owner.token,
        is_settled=not is_unsettled,
        is_released=False,
    )
    began_s = process.runtime.monotonic_s()
    try:
        changed = await process.records.change(stored, record)
    except StorageConflictError:
        process.delete_ledgers((ledger.writer.ledger_id,))
        return None
    found = ended.ledgers
    last = max((frame_address(each.ordinal, max(each.last_entry or 0, 0)) for each in found), default=0)
    return ClaimedLog(changed, found, reader, ledger, last, is_unsettled, began_s)


async def _fence(reader: LogReader, record: LogRecord, inspect: InspectFrame | None) -> dict[int, int]:
    """Fence each ledger whose end is not recorded, the last one first. Return their last entries by ordinal."""
    ends: dict[int, int] = {}
    for ledger in reversed(record.ledgers):
        if ledger.last_entry is None:
            ends[ledger.ordinal] = (await reader.fenced(ledger)).last_entry
    if inspect is not None:
        for ledger in record.ledgers:
            if ledger.ordinal in ends:
                await reader.inspect_rest(ledger, record.first_entry(ledger), ends[ledger.ordinal], inspect)
    return ends


async def _has_changed(process: BookKeeperProcess, container_id: int, known: StoredLogRecord | None) -> bool:
    found = await process.records.read(container_id)
    return known is None or found is None or found.record.nonce != known.record.nonce
