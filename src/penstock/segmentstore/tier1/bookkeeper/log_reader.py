"""Reads the frames of one log from its ledgers: for inspection before a claim, and for the recovery after it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from penstock.model.errors import CorruptionError, LogIdentityError, StorageError
from penstock.model.errors.ledgers import LedgerDigestError, NoSuchEntryError, NoSuchLedgerError
from penstock.runtime.ledgers import LedgerReader, LedgerStore
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.bookkeeper.entry_format import decode_entry, frame_address
from penstock.segmentstore.tier1.bookkeeper.log_record import FORGOTTEN, LedgerLabels, LogLedger, LogRecord
from penstock.segmentstore.tier1.bookkeeper.settings import BookKeeperSettings
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogFrameRun


@dataclass(slots=True)
class KeptFrames:
    """Frames of a ledger that an inspection has read: entries from `first` to before `end`, without the beats."""

    ordinal: int
    first: int
    end: int
    entries: list[int] = field(default_factory=list)
    frames: list[bytes] = field(default_factory=list)
    length_bytes: int = 0

    def add(self, entry: int, frame: bytes | None) -> None:
        """Keep the next entry; None: a beat."""
        self.end = entry + 1
        if frame is not None:
            self.entries.append(entry)
            self.frames.append(frame)
            self.length_bytes += len(frame)


class LogReader:
    """Reads ledgers of the log of container `container_id`. Close it."""

    def __init__(self, ledgers: LedgerStore, settings: BookKeeperSettings, container_id: int, cluster_id: str) -> None:
        self._ledgers = ledgers
        self._settings = settings
        self._container_id = container_id
        self._cluster_id = cluster_id
        #: By ordinal: ledgers that were opened with recovery.
        self._fenced: dict[int, LedgerReader] = {}
        self._kept: KeptFrames | None = None

    async def fenced(self, ledger: LogLedger) -> LedgerReader:
        """Open a ledger with recovery: nothing is appended to it any more.

        Raises `CorruptionError` if it is missing, or not of this log, `LogIdentityError`, `StorageError`.
        """
        found = self._fenced.get(ledger.ordinal)
        if found is None:
            found = self._fenced[ledger.ordinal] = await self._open(ledger, is_fencing=True)
        if ledger.last_entry is not None and found.last_entry < ledger.last_entry:
            raise CorruptionError(
                _place(ledger), found.last_entry + 1, f"it ended at entry {ledger.last_entry}, and ends before it now"
            )
        return found

    async def _open(self, ledger: LogLedger, *, is_fencing: bool) -> LedgerReader:
        try:
            reader = await self._ledgers.open(ledger.ledger_id, is_fencing=is_fencing)
        except NoSuchLedgerError as error:
            raise CorruptionError(_place(ledger), 0, "the ledger is missing") from error
        labels = LedgerLabels.decode(reader.labels)
        if labels is None or (labels.container_id, labels.ordinal) != (self._container_id, ledger.ordinal):
            await reader.close()
            raise CorruptionError(_place(ledger), 0, f"it is not a ledger of this log: {dict(reader.labels)}")
        if self._cluster_id and labels.cluster_id != self._cluster_id:
            await reader.close()
            raise LogIdentityError(_place(ledger), found=labels.cluster_id, expected=self._cluster_id)
        return reader

    # -- inspection -----------------------------------------------------------------------------------------------

    async def inspect(self, record: LogRecord, inspect: InspectFrame) -> None:
        """Inspect the frames of the last ledger that has any. Fences nothing.

        Raises `LaterVersionError`, `CorruptionError`, `StorageError`.
        """
        for ledger in reversed(record.ledgers):
            first = record.first_entry(ledger)
            self._kept = kept = KeptFrames(ledger.ordinal, first, first)
            if ledger.last_entry is not None:
                await self.inspect_rest(ledger, first, ledger.last_entry, inspect)
            elif first < FORGOTTEN:
                await self._inspect_open(ledger, first, inspect)
            if kept.end > first:
                return

    async def _inspect_open(self, ledger: LogLedger, first: int, inspect: InspectFrame) -> None:
        reader = await self._open(ledger, is_fencing=False)
        try:
            entry = first
            async with aclosing(self._batches(reader, first, reader.last_entry)) as batches:
                async for batch in batches:
                    for data in batch:
                        self._inspected(ledger, entry, data, inspect)
                        entry += 1
            while (found := await reader.read_unconfirmed(entry)) is not None:
                self._inspected(ledger, entry, found, inspect)
                entry += 1
        finally:
            await reader.close()

    async def inspect_rest(self, ledger: LogLedger, first: int, last: int, inspect: InspectFrame) -> None:
        """Inspect entries of a ledger that has ended, from `first` on, but those that were inspected before."""
        kept = self._kept
        if kept is not None and kept.ordinal == ledger.ordinal:
            first = max(first, kept.end)
        if first > last:
            return
        reader = await self.fenced(ledger)
        async with aclosing(self._batches(reader, first, last)) as batches:
            async for batch in batches:
                for data in batch:
                    self._inspected(ledger, first, data, inspect)
                    first += 1

    def _inspected(self, ledger: LogLedger, entry: int, data: bytes, inspect: InspectFrame) -> None:
        frame = decode_entry(data, _place(ledger), entry)
        if frame is not None:
            try:
                inspect(frame)
            except LaterFormatError as error:
                raise error.at(f"{_place(ledger)}, entry {entry},") from error
        kept = self._kept
        is_next = kept is not None and kept.ordinal == ledger.ordinal and kept.end == entry
        if kept is not None and is_next and kept.length_bytes < self._settings.kept_bytes_max:
            kept.add(entry, frame)

    # -- recovery -------------------------------------------------------------------------------------------------

    async def frame_runs(self, record: LogRecord, ledgers: Sequence[LogLedger]) -> AsyncGenerator[LogFrameRun, None]:
        """Yield the frames of ledgers, all of which have ended, after the truncation.

        Raises `CorruptionError` for an entry that is missing or damaged, `StorageError` if it cannot be read now.
        """
        for ledger in ledgers:
            first, last = record.first_entry(ledger), ledger.last_entry
            assert last is not None
            kept, self._kept = self._kept, None
            if kept is not None and kept.ordinal == ledger.ordinal and kept.first == first and kept.end > first:
                if kept.frames:
                    yield LogFrameRun([frame_address(ledger.ordinal, each) for each in kept.entries], kept.frames)
                first = kept.end
            elif kept is not None:
                self._kept = kept
            if first > last:
                continue
            reader = await self.fenced(ledger)
            async with aclosing(self._batches(reader, first, last)) as batches:
                async for batch in batches:
                    if run := _decoded(ledger, first, batch):
                        yield run
                    first += len(batch)
            del self._fenced[ledger.ordinal]
            await reader.close()

    async def _batches(self, reader: LedgerReader, first: int, last: int) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield entries, one batch read ahead."""
        loop = asyncio.get_running_loop()
        settings = self._settings
        average = max(reader.length_bytes // max(reader.last_entry + 1, 1), 1)
        count = min(max(settings.read_bytes // average, 1), settings.read_entries_max)
        reading: asyncio.Task[Sequence[bytes]] | None = None
        try:
            while first <= last or reading is not None:
                if reading is None:
                    end = min(first + count - 1, last)
                    reading, first = loop.create_task(self._read(reader, first, end)), end + 1
                batch = await reading
                reading = None
                if first <= last:
                    end = min(first + count - 1, last)
                    reading, first = loop.create_task(self._read(reader, first, end)), end + 1
                    # It starts before the caller has processed this batch.
                    await asyncio.sleep(0)
                yield batch
        finally:
            if reading is not None:
                reading.cancel()
                reading.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    async def _read(self, reader: LedgerReader, first: int, last: int) -> Sequence[bytes]:
        place = f"ledger {reader.ledger_id} of BookKeeper"
        try:
            return await reader.read(first, last)
        except NoSuchEntryError as error:
            raise CorruptionError(place, first, f"an entry from {first} to {last} is missing: {error}") from error
        except LedgerDigestError as error:
            missing = sorted(set(reader.bookies) - set(await self._ledgers.bookies()))
            if missing:
                raise StorageError(f"{place} is read when {', '.join(missing)} are back: {error}") from error
            raise CorruptionError(place, first, f"an entry from {first} to {last} is damaged: {error}") from error

    async def close(self) -> None:
        """Release all ledgers."""
        readers, self._fenced = list(self._fenced.values()), {}
        for reader in readers:
            await reader.close()


def _decoded(ledger: LogLedger, first: int, batch: Sequence[bytes]) -> LogFrameRun | None:
    addresses: list[int] = []
    frames: list[bytes] = []
    for entry, data in enumerate(batch, first):
        frame = decode_entry(data, _place(ledger), entry)
        if frame is not None:
            addresses.append(frame_address(ledger.ordinal, entry))
            frames.append(frame)
    return LogFrameRun(addresses, frames) if frames else None


def _place(ledger: LogLedger) -> str:
    return f"ledger {ledger.ledger_id} of BookKeeper"
