"""`DamagedLedgerLog`: a damaged log in BookKeeper, as far as its entries are there and intact."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from dataclasses import dataclass, replace

from penstock.administration.ledger_rebuild import ClusterLogs
from penstock.model.errors import CorruptionError, LogIdentityError, StorageError
from penstock.model.errors.ledgers import (
    LedgerDigestError,
    LedgerSilentError,
    LedgerUnavailableError,
    NoSuchEntryError,
    NoSuchLedgerError,
)
from penstock.runtime.ledgers import LedgerReader
from penstock.segmentstore.tier1.bookkeeper.entry_format import decode_entry
from penstock.segmentstore.tier1.bookkeeper.log_record import FORGOTTEN, LedgerLabels, LogLedger, LogRecord
from penstock.segmentstore.tier1.damaged_log import LostRange

#: Seconds that the reader's thread waits for entries, after which the command fails. Requests have limits of their own.
_READ_TIMEOUT_S = 600.0
#: Errors of bookies that do not answer.
_ABSENT = (LedgerSilentError, LedgerUnavailableError)


@dataclass(slots=True)
class _Part:
    """The entries of one ledger after the truncation: from `first` to `last`; None: to the end that bookies show.

    `reader`: None: the ledger is lost, because of `problem`.
    """

    ledger: LogLedger
    reader: LedgerReader | None
    first: int
    last: int | None
    problem: str = ""


class DamagedLedgerLog:
    """`ReadableDamage` of a log in BookKeeper: what its record names. Close it.

    `read` blocks in a thread of its own and has its requests made by the event loop that has called `load`.
    `is_without_absent`: what only bookies have that do not answer is lost; otherwise it is an error.
    """

    def __init__(self, logs: ClusterLogs, record: LogRecord, *, is_without_absent: bool) -> None:
        self.epoch: int = record.epoch
        self.first_epoch: int = record.epoch
        self.problems: list[str] = []
        #: Whether a ledger could not be fenced, because too many of its bookies are absent.
        self.is_unfenced: bool = False
        self._logs = logs
        self._record = record
        self._is_without_absent = is_without_absent
        self._parts: list[_Part] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    async def load(self, *, is_fencing: bool) -> None:
        """Open the ledgers. `is_fencing`: those whose end is not recorded with recovery, the last one first.

        Raises `StorageError` if bookies do not answer, `LogIdentityError`.
        """
        self._loop = asyncio.get_running_loop()
        for ledger in reversed(self._record.ledgers):
            first = self._record.first_entry(ledger)
            is_over = ledger.last_entry is not None and first > ledger.last_entry
            if not is_over and first < FORGOTTEN:
                self._parts.insert(0, await self._part(ledger, first, is_fencing=is_fencing))

    async def _part(self, ledger: LogLedger, first: int, *, is_fencing: bool) -> _Part:
        try:
            reader = await self._opened(ledger, is_fencing=is_fencing and ledger.last_entry is None)
        except NoSuchLedgerError:
            return _Part(ledger, None, first, ledger.last_entry, "the ledger is missing")
        labels = LedgerLabels.decode(reader.labels)
        if labels is None or (labels.container_id, labels.ordinal) != (self._record.container_id, ledger.ordinal):
            await reader.close()
            return _Part(ledger, None, first, ledger.last_entry, "it is not a ledger of this log")
        if labels.cluster_id != self._record.cluster_id:
            await reader.close()
            raise LogIdentityError(_place(ledger), found=labels.cluster_id, expected=self._record.cluster_id)
        self.first_epoch = min(self.first_epoch, labels.epoch)
        last = ledger.last_entry
        if last is None and is_fencing and not self.is_unfenced:
            last = reader.last_entry
        return _Part(ledger, reader, first, last)

    async def _opened(self, ledger: LogLedger, *, is_fencing: bool) -> LedgerReader:
        ledgers = self._logs.ledgers
        try:
            return await ledgers.open(ledger.ledger_id, is_fencing=is_fencing)
        except _ABSENT:
            if not self._is_without_absent or not is_fencing:
                raise
        self.is_unfenced = True
        return await ledgers.open(ledger.ledger_id, is_fencing=False)

    @property
    def ends(self) -> dict[int, int]:
        """The last entries of the ledgers that were fenced, by ordinal."""
        return {
            part.ledger.ordinal: -1 if part.last is None else part.last
            for part in self._parts
            if part.ledger.last_entry is None
        }

    def read(self) -> Iterator[bytes | LostRange]:
        """See `ReadableDamage.read`."""
        for part in self._parts:
            if part.reader is None:
                yield LostRange(_place(part.ledger), 0, 0, part.problem)
            else:
                yield from self._content(part, part.reader)

    def _content(self, part: _Part, reader: LedgerReader) -> Iterator[bytes | LostRange]:
        """Yield the frames of a ledger, and its lost ranges, each as long as possible."""
        lost: LostRange | None = None
        for found in self._batches(part, reader):
            for each in found:
                if not isinstance(each, LostRange):
                    if lost is not None:
                        yield lost
                        lost = None
                    yield each
                elif lost is None:
                    lost = each
                else:
                    lost = replace(lost, end=each.end)
        if lost is not None:
            yield lost

    def _batches(self, part: _Part, reader: LedgerReader) -> Iterator[Sequence[bytes | LostRange]]:
        settings = self._logs.settings
        average = max(reader.length_bytes // max(reader.last_entry + 1, 1), 1)
        count = min(max(settings.read_bytes // average, 1), settings.read_entries_max)
        last = reader.last_entry if part.last is None else min(reader.last_entry, part.last)
        for first in range(part.first, last + 1, count):
            yield self._asked(self._entries(part.ledger, reader, first, min(first + count - 1, last)))
        if part.last is None:
            yield self._asked(self._unconfirmed(part.ledger, reader, max(part.first, last + 1)))
        elif part.last > last:
            problem = f"the ledger ended at entry {part.last}, and ends before it now"
            yield [_lost(part.ledger, max(part.first, last + 1), part.last + 1, problem)]

    def _asked(self, request: Coroutine[None, None, Sequence[bytes | LostRange]]) -> Sequence[bytes | LostRange]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(request, self._loop).result(_READ_TIMEOUT_S)

    async def _entries(
        self, ledger: LogLedger, reader: LedgerReader, first: int, last: int
    ) -> Sequence[bytes | LostRange]:
        """Return the frames of entries, and a range for each entry that is lost. A failed read is divided."""
        try:
            batch = await reader.read(first, last)
        except (NoSuchEntryError, LedgerDigestError, *_ABSENT) as error:
            if first < last:
                middle = (first + last) // 2
                left = await self._entries(ledger, reader, first, middle)
                return [*left, *await self._entries(ledger, reader, middle + 1, last)]
            await self._demand_all_answered(reader, error)
            return [_lost(ledger, first, first + 1, str(error))]
        found: list[bytes | LostRange] = []
        for entry, data in enumerate(batch, first):
            try:
                frame = decode_entry(data, _place(ledger), entry)
            except CorruptionError as error:
                found.append(_lost(ledger, entry, entry + 1, str(error)))
                continue
            if frame is not None:
                found.append(frame)
        return found

    async def _demand_all_answered(self, reader: LedgerReader, error: StorageError) -> None:
        """Raise `StorageError` if an entry may be intact on a bookie that has not answered, unless that is lost."""
        if isinstance(error, NoSuchEntryError) or self._is_without_absent:
            return
        absent = sorted(set(reader.bookies) - set(await self._logs.ledgers.bookies()))
        if absent or not isinstance(error, LedgerDigestError):
            raise StorageError(
                f"ledger {reader.ledger_id} of BookKeeper is read when its bookies are back "
                f"({', '.join(absent) or 'all are registered'}): {error}"
            ) from error

    async def _unconfirmed(self, ledger: LogLedger, reader: LedgerReader, first: int) -> Sequence[bytes | LostRange]:
        """Return the frames of entries that are not known to be confirmed, as far as bookies have them."""
        found: list[bytes | LostRange] = []
        while (data := await reader.read_unconfirmed(first)) is not None:
            try:
                frame = decode_entry(data, _place(ledger), first)
            except CorruptionError as error:
                found.append(_lost(ledger, first, first + 1, str(error)))
            else:
                if frame is not None:
                    found.append(frame)
            first += 1
        return found

    async def close(self) -> None:
        """Release all ledgers. Raises nothing."""
        parts, self._parts = self._parts, []
        for part in parts:
            if part.reader is not None:
                await part.reader.close()


def _place(ledger: LogLedger) -> str:
    return f"ledger {ledger.ledger_id} of BookKeeper"


def _lost(ledger: LogLedger, first: int, end: int, problem: str) -> LostRange:
    """Return a range of lost entries. Whether one was a beat is not known."""
    return LostRange(_place(ledger), first, end, problem, unit="entries")


__all__ = ["DamagedLedgerLog"]
