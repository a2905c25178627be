"""`LedgerRebuild`: makes lost records of logs in BookKeeper again, from the labels of their ledgers and their frames.

Steps, and why each crash between them is harmless: docs/bookkeeper-log.md, "Rebuild".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    StorageConflictError,
)
from penstock.model.errors.ledgers import NoSuchEntryError, NoSuchLedgerError
from penstock.runtime.ledgers import LedgerStore
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.container.log.frames import FIRST, RecordReader
from penstock.segmentstore.container.log.recovery import record_number
from penstock.segmentstore.tier1.bookkeeper.entry_format import decode_entry, frame_address
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogLedger, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import RecordStore
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings


class RebuildState(StrEnum):
    """What a rebuild has found of a log.

    Attributes:
        KEPT: its record exists; nothing was changed.
        REBUILT: its record did not exist, and does now, or would in the end of a real run.
        NEW: there is neither a record nor a ledger: no store has opened it.
        DAMAGED: its ledgers are not those of one log, or cannot be read; there is no record.
    """

    KEPT = "kept"
    REBUILT = "rebuilt"
    NEW = "new"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class RebuiltLog:
    """What a rebuild has found of the log of a container, and done.

    Attributes:
        ledgers: numbers of the ledgers in the record, in order. In a dry run: of all that may belong to it.
        left_out: ledgers that were forgotten before the loss: later ones are missing after them.
        problem: why there is no record; empty: there is one.
    """

    container: int
    state: RebuildState
    ledgers: Sequence[int] = ()
    left_out: Sequence[int] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ClusterLogs:
    """The logs of one cluster in BookKeeper, and what their administration uses.

    Attributes:
        records: of the cluster's containers.
        container_count: of the cluster.
    """

    ledgers: LedgerStore
    records: RecordStore
    settings: BookKeeperSettings
    runtime: Runtime
    container_count: int


class LedgerRebuild:
    """See the module."""

    def __init__(self, logs: ClusterLogs) -> None:
        self._logs = logs

    async def run(self, *, is_dry_run: bool) -> Sequence[RebuiltLog]:
        """Make the records that do not exist. Stores must not run: one that runs is fenced.

        A dry run fences and reads nothing. Raises `LedgerError` if bookies do not answer, and `InvalidArgumentError` if
        a ledger belongs to a container that the cluster does not have; then it can be repeated.
        """
        found = await self._own_ledgers()
        strange = sorted(each for each in found if not 0 <= each < self._logs.container_count)
        if strange:
            raise InvalidArgumentError(
                f"there are ledgers of containers {', '.join(map(str, strange))}, and the cluster has "
                f"{self._logs.container_count} containers: nothing was changed"
            )
        return [
            await self._rebuild(container_id, found.get(container_id, {}), is_dry_run=is_dry_run)
            for container_id in range(self._logs.container_count)
        ]

    async def _own_ledgers(self) -> Mapping[int, Mapping[int, LedgerLabels]]:
        """Return the labels of the cluster's ledgers, by container and number."""
        found: defaultdict[int, dict[int, LedgerLabels]] = defaultdict(dict)
        async for ledger_id, labels in labelled_ledgers(self._logs.ledgers):
            if labels.cluster_id == self._logs.records.cluster_id:
                found[labels.container_id][ledger_id] = labels
        return found

    async def _rebuild(self, container_id: int, labels: Mapping[int, LedgerLabels], *, is_dry_run: bool) -> RebuiltLog:
        try:
            stored = await self._logs.records.read(container_id)
        except (CorruptionError, LaterVersionError) as error:
            return RebuiltLog(container_id, RebuildState.DAMAGED, problem=str(error))
        if stored is not None:
            return RebuiltLog(container_id, RebuildState.KEPT, tuple(each.ledger_id for each in stored.record.ledgers))
        if not labels:
            return RebuiltLog(container_id, RebuildState.NEW)
        if is_dry_run:
            return RebuiltLog(container_id, RebuildState.REBUILT, sorted(labels, key=lambda each: labels[each].ordinal))
        reader = LogReader(self._logs.ledgers, self._logs.settings, container_id, self._logs.records.cluster_id)
        try:
            record, left_out = await self._found_record(reader, container_id, labels)
            await self._logs.records.change(None, record)
        except StorageConflictError:
            return RebuiltLog(container_id, RebuildState.KEPT)
        except (CorruptionError, LaterVersionError) as error:
            return RebuiltLog(container_id, RebuildState.DAMAGED, sorted(labels), problem=str(error))
        finally:
            await reader.close()
        return RebuiltLog(
            container_id, RebuildState.REBUILT, tuple(each.ledger_id for each in record.ledgers), left_out
        )

    async def _found_record(
        self, reader: LogReader, container_id: int, labels: Mapping[int, LedgerLabels]
    ) -> tuple[LogRecord, Sequence[int]]:
        """Return the record of a log whose ledgers have these labels, and the ledgers that were forgotten before.

        Raises `CorruptionError`.
        """
        current, replaced = await self._without_replaced(container_id, labels)
        ended = await self._ended(container_id, current)
        empty = LogRecord(container_id, self._logs.records.cluster_id, self._logs.runtime.random_id(), is_settled=False)
        first, begins_with = await self._first_needed(reader, empty, ended)
        kept, left_out = ended[first:], ended[:first]
        last_ordinal = max(each.ordinal for each in labels.values())
        begins_at = kept[0].ordinal if kept else min((each.ordinal for each in current.values()), default=1)
        # A log that does not begin with its first operation must begin with a checkpoint.
        truncation = 0 if begins_at == 1 or begins_with == 1 else frame_address(begins_at - 1, 0)
        record = LogRecord(
            container_id,
            self._logs.records.cluster_id,
            self._logs.runtime.random_id(),
            epoch=max(each.epoch for each in labels.values()),
            is_settled=False,
            truncation=truncation,
            next_ordinal=last_ordinal + 1,
            ledgers=tuple(kept),
            begins=max((each.begins for each in current.values()), default=0),
        )
        return record, (*replaced, *(each.ledger_id for each in left_out))

    async def _without_replaced(
        self, container_id: int, labels: Mapping[int, LedgerLabels]
    ) -> tuple[Mapping[int, LedgerLabels], Sequence[int]]:
        """Return the ledgers that a salvage has not replaced, and those that it has, or that belong to no log.

        Ledgers of the salvaged log name its begin. The last salvage is taken as complete, too, if its new log is whole.
        """
        begins = max((each.begins for each in labels.values() if not each.is_draft), default=0)
        for begin in sorted({each.begins for each in labels.values() if each.is_draft and each.begins > begins}):
            drafts = {number: each for number, each in labels.items() if each.is_draft and each.begins == begin}
            is_continued = any(each.ordinal >= begin and not each.is_draft for each in labels.values())
            if not is_continued and await self._is_whole(container_id, drafts, begin):
                begins = begin
        kept = {
            number: each
            for number, each in labels.items()
            if each.ordinal >= begins and (not each.is_draft or each.begins == begins)
        }
        return kept, sorted(labels.keys() - kept.keys())

    async def _is_whole(self, container_id: int, drafts: Mapping[int, LedgerLabels], begin: int) -> bool:
        """Return whether a salvage has written its new log completely: that ends with a beat."""
        last = max(each.ordinal for each in drafts.values())
        if {each.ordinal for each in drafts.values()} != set(range(begin, last + 1)):
            return False
        for ledger_id in sorted(number for number, each in drafts.items() if each.ordinal == last):
            reader = await self._logs.ledgers.open(ledger_id, is_fencing=True)
            try:
                number = reader.last_entry
                if number > 0:
                    (entry,) = await reader.read(number, number)
                    if decode_entry(entry, record_path(container_id), number) is None:
                        return True
            except NoSuchEntryError:
                continue
            finally:
                await reader.close()
        return False

    async def _ended(self, container_id: int, labels: Mapping[int, LedgerLabels]) -> list[LogLedger]:
        """Fence all ledgers, and return those with entries, in order.

        A ledger is recorded before its first entry. So of those with one ordinal, one at most has entries.
        """
        ended: dict[int, LogLedger] = {}
        for ledger_id in sorted(labels, key=lambda each: (labels[each].ordinal, each), reverse=True):
            ordinal = labels[ledger_id].ordinal
            opened = await self._logs.ledgers.open(ledger_id, is_fencing=True)
            await opened.close()
            if opened.last_entry < 0:
                continue
            if ordinal in ended:
                raise CorruptionError(
                    record_path(container_id), 0,
                    f"ledgers {ended[ordinal].ledger_id} and {ledger_id} both are number {ordinal} of the log",
                )  # fmt: skip
            ended[ordinal] = LogLedger(ordinal, ledger_id, opened.last_entry)
        return [ended[each] for each in sorted(ended)]

    async def _first_needed(self, reader: LogReader, record: LogRecord, ended: Sequence[LogLedger]) -> tuple[int, int]:
        """Return the index of the first ledger after which none is missing, and the number of its first operation.

        A truncation removes ledgers from the record, and then deletes them. What could not be deleted is left over,
        and the ones after it may be gone. Ledgers without frames are gone from the middle, too; then the numbers of the
        operations continue.
        """
        first, begins_with, last = 0, 0, 0
        records = RecordReader()
        may_miss = is_fresh = False
        for index, ledger in enumerate(ended):
            if index and ledger.ordinal > ended[index - 1].ordinal + 1:
                may_miss = is_fresh = True
            async for run in reader.frame_runs(record, [ledger]):
                if is_fresh:
                    if records.is_open and not run.data[0][1] & FIRST:
                        raise CorruptionError(
                            f"ledger {ledger.ledger_id} of BookKeeper", 0,
                            "it is not known whether its first operation began in a ledger that is missing",
                        )  # fmt: skip
                    records, is_fresh = RecordReader(), False
                for number in _numbers(records, run.data, ledger):
                    if may_miss and number > last + 1:
                        first, begins_with = index, number
                    may_miss, last, begins_with = False, number, begins_with or number
        return first, begins_with


async def labelled_ledgers(ledgers: LedgerStore) -> AsyncIterator[tuple[int, LedgerLabels]]:
    """Yield all ledgers of this application, with their labels. Raises `LedgerError`."""
    async for ledger_id in ledgers.ledger_ids():
        try:
            labels = LedgerLabels.decode(await ledgers.labels(ledger_id))
        except NoSuchLedgerError:
            continue
        if labels is not None:
            yield ledger_id, labels


def _numbers(records: RecordReader, frames: Iterable[bytes], ledger: LogLedger) -> Iterator[int]:
    """Yield the sequence numbers of the operations that end in frames."""
    for frame in frames:
        try:
            yield from map(record_number, records.feed(frame))
        except ValueError as error:
            raise CorruptionError(f"ledger {ledger.ledger_id} of BookKeeper", 0, f"a frame: {error}") from error
