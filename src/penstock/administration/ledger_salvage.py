"""`salvage_ledger_log`: replaces a damaged log in BookKeeper by a new one with everything in it that is intact.

Steps, and why each crash between them is harmless: docs/recovery.md, "A damaged log of a cluster".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace

from penstock.administration.bookkeeper_administration import BookKeeperAdministration
from penstock.administration.damaged_ledgers import DamagedLedgerLog
from penstock.administration.log_salvage import Salvaged
from penstock.administration.salvage_plan import SalvagePlanner
from penstock.administration.storage_administration import cluster_chunks
from penstock.administration.storage_recovery import EPOCH_STEP
from penstock.model.errors import CorruptionError, InvalidArgumentError, LogFencedError, StorageConflictError
from penstock.model.errors.ledgers import LedgerError, LedgerSilentError, NoSuchLedgerError
from penstock.runtime.ledgers import LedgerEntry, LedgerWriter
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.bookkeeper.entry_format import BeatEntry, FrameEntry
from penstock.segmentstore.tier1.bookkeeper.log_process import PASSING_ERRORS
from penstock.segmentstore.tier1.bookkeeper.log_reader import LogReader
from penstock.segmentstore.tier1.bookkeeper.log_record import LedgerLabels, LogLedger, LogRecord, record_path
from penstock.segmentstore.tier1.bookkeeper.record_store import StoredLogRecord
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings


async def salvage_ledger_log(
    administration: BookKeeperAdministration,
    settings: StandaloneSettings,
    runtime: Runtime,
    container_id: int,
    *,
    enable_command: str,
    is_dry_run: bool,
    is_without_absent: bool = False,
) -> Salvaged:
    """Replace the damaged log of a container in BookKeeper. With `is_dry_run` nothing is changed, or fenced.

    `enable_command`: enables the log, for messages. `is_without_absent`: what only bookies have that do not answer is
    lost.

    Raises:
        InvalidArgumentError: the log is not damaged, or does not exist.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogFencedError: another process has changed the log meanwhile. It is as before.
        CorruptionError, LaterVersionError: its record cannot be read.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
        StorageError: bookies do not answer.
    """
    salvage = _LedgerSalvage(
        administration, settings, runtime, container_id, enable_command, is_without_absent=is_without_absent
    )
    return await salvage.run(is_dry_run=is_dry_run)


class _DraftWriter:
    """A ledger of the new log: a `LedgerObserver`.

    Attributes:
        writer: set after its creation.
        entry_count, length_bytes: sent to it so far.
    """

    def __init__(self, stall_s: float) -> None:
        self.writer: LedgerWriter | None = None
        self.entry_count: int = 0
        self.length_bytes: int = 0
        self._stall_s = stall_s
        self._unsynced_bytes = 0
        self._last_confirmed = -1
        self._failure: LedgerError | None = None
        self._changed = asyncio.Event()

    def confirmed(self, last_entry: int) -> None:
        """See `LedgerObserver.confirmed`."""
        self._last_confirmed = last_entry
        self._changed.set()

    def failed(self, error: LedgerError) -> None:
        """See `LedgerObserver.failed`."""
        self._failure = error
        self._changed.set()

    async def send(self, entry: LedgerEntry, in_flight_bytes_max: int) -> None:
        """Append an entry; wait before if too many bytes are in flight. Raises `LedgerError`."""
        assert self.writer is not None
        if self._unsynced_bytes + entry.length > in_flight_bytes_max:
            await self.synced()
        self.writer.append(entry)
        self._unsynced_bytes += entry.length
        self.entry_count += 1
        self.length_bytes += entry.length

    async def synced(self) -> None:
        """Wait until all entries are confirmed. Raises `LedgerError`: one was not."""
        while self._last_confirmed < self.entry_count - 1:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            try:
                async with asyncio.timeout(self._stall_s):
                    await self._changed.wait()
            except TimeoutError as error:
                raise LedgerSilentError(0, f"an append has no answer for {self._stall_s:g} s") from error
        self._unsynced_bytes = 0


class _LedgerSalvage:
    def __init__(
        self,
        administration: BookKeeperAdministration,
        settings: StandaloneSettings,
        runtime: Runtime,
        container_id: int,
        enable_command: str,
        *,
        is_without_absent: bool,
    ) -> None:
        self._administration = administration
        self._logs = administration.logs
        self._settings = settings
        self._runtime = runtime
        self._id = container_id
        self._enable_command = enable_command
        self._is_without_absent = is_without_absent
        self._path = f"{self._logs.records.place}{record_path(container_id)}"

    async def run(self, *, is_dry_run: bool) -> Salvaged:
        stored = await self._administration.demand(self._id)
        async with self._loaded(stored.record, is_fencing=False) as (damaged, planner):
            plan, image_problem = await planner.plan()
            if is_dry_run:
                return Salvaged(plan.report, tuple(damaged.problems), image_problem, "", "")
        was_enabled = stored.record.is_enabled
        stored = await self._disabled(stored)
        async with self._loaded(stored.record, is_fencing=True) as (damaged, planner):
            # What its owner has appended until it was fenced is part of the log.
            if damaged.is_unfenced:
                await self._outwait_owner()
            try:
                plan, image_problem = await planner.plan()
            except InvalidArgumentError as error:
                if was_enabled:
                    await self._change(stored, replace(stored.record, is_enabled=True, reason=""))
                raise InvalidArgumentError(
                    f"the log of container {self._id} in {self._path} is not damaged any more: its owner has truncated "
                    "it meanwhile, or bookies are back"
                ) from error
            epoch = max(stored.record.epoch, 0 if plan.image is None else plan.image.name.epoch) + EPOCH_STEP
            written, drafts = await self._written(stored, planner.frames(plan), epoch)
        await self._delete_drafts(stored.record)
        await self._replace(written, drafts, epoch)
        numbers = ", ".join(str(each.ledger_id) for each in stored.record.ledgers if each.last_entry != -1)
        return Salvaged(
            plan.report, tuple(damaged.problems), image_problem, self._path, f"ledgers {numbers} of BookKeeper"
        )

    @asynccontextmanager
    async def _loaded(
        self, record: LogRecord, *, is_fencing: bool
    ) -> AsyncIterator[tuple[DamagedLedgerLog, SalvagePlanner]]:
        damaged = DamagedLedgerLog(self._logs, record, is_without_absent=self._is_without_absent)
        try:
            await damaged.load(is_fencing=is_fencing)
            yield damaged, SalvagePlanner(
                self._id, damaged, self._settings, self._runtime, open_chunks=self._chunks, path=self._path,
                enable_command=self._enable_command,
                advice="If bookies with the missing or intact entries can be started again, start them and run "
                f"`{self._enable_command}`; otherwise build a cluster from images in long-term storage",
            )  # fmt: skip
        finally:
            await damaged.close()

    async def _disabled(self, stored: StoredLogRecord) -> StoredLogRecord:
        """Disable the log; return its record then. Its owner changes the record, too, from time to time."""
        for _ in range(self._logs.settings.open_attempts_max):
            if not stored.record.is_enabled:
                return stored
            disabled = replace(
                stored.record, nonce=self._runtime.random_id(), is_enabled=False, reason="it is being salvaged"
            )
            try:
                return await self._logs.records.change(stored, disabled)
            except StorageConflictError:
                stored = await self._administration.demand(self._id)
        raise LogFencedError(f"the log of container {self._id} in {self._path} is changed again and again")

    async def _outwait_owner(self) -> None:
        """Wait until an owner whose ledger could not be fenced checks the record before it acknowledges anything.

        It does if nothing has confirmed its ownership for half of this time: docs/bookkeeper-log.md, "Why it is right".
        """
        await asyncio.sleep(self._logs.settings.deletion_delay_s)

    def _chunks(self) -> AbstractAsyncContextManager[ChunkStorage]:
        """Open long-term storage of the same cluster."""
        directory = DataDirectory(self._settings.data_dir, self._runtime)
        identity = Identity(self._administration.cluster_id, self._logs.container_count)
        return cluster_chunks(self._settings, directory, self._runtime, identity)

    # -- the new log ----------------------------------------------------------------------------------------------

    async def _written(
        self, stored: StoredLogRecord, frames: Iterator[list[bytes]], epoch: int
    ) -> tuple[StoredLogRecord, Sequence[LogLedger]]:
        """Write the new log; return the record, which names its ledgers as empty, and the ledgers with their ends."""
        settings = self._logs.settings
        begins = stored.record.next_ordinal
        drafts: list[LogLedger] = []
        draft: _DraftWriter | None = None
        frame_count = 0
        while (ready := await self._runtime.work.run(next, frames, None)) is not None:
            for frame in ready:
                if draft is not None and draft.length_bytes >= settings.ledger_bytes:
                    drafts.append(await self._ended(draft, stored.record))
                    draft = None
                if draft is None:
                    stored, draft = await self._begun(stored, epoch, begins)
                await draft.send(FrameEntry([frame], len(frame)), settings.in_flight_bytes_max)
                frame_count += 1
        if draft is None:
            raise CorruptionError(self._path, 0, "the new log has no frames")
        # It shows a rebuild that the new log is whole.
        await draft.send(BeatEntry(), settings.in_flight_bytes_max)
        drafts.append(await self._ended(draft, stored.record))
        await self._check(stored.record, drafts, frame_count)
        return stored, drafts

    async def _begun(self, stored: StoredLogRecord, epoch: int, begins: int) -> tuple[StoredLogRecord, _DraftWriter]:
        """Create a ledger of the new log, and record it as empty, so that no sweep deletes it."""
        settings, record = self._logs.settings, stored.record
        labels = LedgerLabels(record.cluster_id, self._id, record.next_ordinal, epoch, begins, is_draft=True)
        draft = _DraftWriter(settings.append_stall_s)
        try:
            draft.writer = await self._logs.ledgers.create(settings.quorum, labels.encode(), draft)
        except PASSING_ERRORS:
            draft.writer = await self._logs.ledgers.create(settings.smaller_quorum, labels.encode(), draft)
        named = record.with_ledger(draft.writer.ledger_id)
        return await self._change(stored, named.with_ends({record.next_ordinal: -1})), draft

    async def _ended(self, draft: _DraftWriter, record: LogRecord) -> LogLedger:
        """Close a ledger of the new log. Raises `StorageError` if it does not end where it was written to."""
        assert draft.writer is not None
        await draft.synced()
        await draft.writer.close()
        reader = await self._logs.ledgers.open(draft.writer.ledger_id, is_fencing=True)
        await reader.close()
        last = draft.entry_count - 1
        if reader.last_entry != last:
            raise CorruptionError(
                f"ledger {draft.writer.ledger_id} of BookKeeper", reader.last_entry + 1,
                f"it was written up to entry {last}, and ends at {reader.last_entry}",
            )  # fmt: skip
        return LogLedger(record.next_ordinal - 1, draft.writer.ledger_id, last)

    async def _check(self, record: LogRecord, drafts: Sequence[LogLedger], frame_count: int) -> None:
        """Read the new log again. Raises `CorruptionError`."""
        reader = LogReader(self._logs.ledgers, self._logs.settings, self._id, record.cluster_id)
        try:
            found = 0
            async for run in reader.frame_runs(record, drafts):
                found += len(run.data)
        finally:
            await reader.close()
        if found != frame_count:
            raise CorruptionError(self._path, 0, f"the new log has {found} of {frame_count} frames")

    # -- the switch -----------------------------------------------------------------------------------------------

    async def _delete_drafts(self, record: LogRecord) -> None:
        """Delete the ledgers of earlier, interrupted runs. Their changes of the record fail since this one's first."""
        for ledger in record.ledgers:
            if ledger.last_entry != -1:
                continue
            try:
                labels = LedgerLabels.decode(await self._logs.ledgers.labels(ledger.ledger_id))
            except NoSuchLedgerError:
                continue
            if labels is not None and labels.is_draft:
                await self._logs.ledgers.delete(ledger.ledger_id)

    async def _replace(self, stored: StoredLogRecord, drafts: Sequence[LogLedger], epoch: int) -> None:
        """Put the new log in the place of the damaged one, whose ledgers stay."""
        salvaged = replace(
            stored.record, ledgers=tuple(drafts), begins=drafts[0].ordinal, epoch=epoch, is_enabled=True, reason=""
        )
        await self._change(stored, salvaged)

    async def _change(self, stored: StoredLogRecord, record: LogRecord) -> StoredLogRecord:
        try:
            return await self._logs.records.change(stored, replace(record, nonce=self._runtime.random_id()))
        except StorageConflictError as error:
            raise LogFencedError(
                f"the log of container {self._id} in {self._path} was changed meanwhile: list the logs, and repeat "
                "this command if it is disabled"
            ) from error


__all__ = ["salvage_ledger_log"]
