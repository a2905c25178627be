"""`LogProcess`: what the logs of one process share: the bucket, the writer, and the deletion of what is not needed."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable

from penstock.model.errors import LogClosedError, LogFencedError, LogTakenOverError, StorageError
from penstock.runtime.runtime import Runtime
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.tier1.log_owner import LogOwner
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord
from penstock.segmentstore.tier1.object_log.journal_writer import JournalWriter
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket
from penstock.segmentstore.tier1.object_log.server_claim import ServerClaim
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier1.object_log.shared_slots import SharedSlots

_log = logging.getLogger(__name__)

#: Passes in which a journal without a seal is listed again after records ceased to name it. Its process seals it
#: when it ends; one that was killed may not have, and only a sweep deletes what it left.
_UNSEALED_PASSES_MAX = 60


class JournalTrim:
    """Decides which slots of the process's own journals are needed, and deletes the others.

    A slot is needed while a container's piece includes it. That is known of the containers of this process. Records of
    containers that were given up are read again.
    """

    def __init__(self, bucket: LogBucket, writer: JournalWriter, container_count: int) -> None:
        self._bucket = bucket
        self._writer = writer
        self._container_count = container_count
        #: By container: the record that was known last; it names the live journal, or did.
        self._records: dict[int, ContainerRecord] = {}
        #: By container: journal and first slot of a piece that may be recorded at any moment.
        self._holds: dict[int, tuple[bytes, int]] = {}
        #: Journals that a record has ceased to name, and how many passes have found each without a seal.
        self._dropped: dict[bytes, int] = {}

    def hold(self, container_id: int, journal: bytes, first: int) -> None:
        """Keep slots from `first` on: a change of the record that names them is about to be sent."""
        self._holds[container_id] = journal, first

    def release(self, container_id: int) -> None:
        """Keep them no more: the change was not made."""
        self._holds.pop(container_id, None)

    def changed(self, before: ContainerRecord | None, record: ContainerRecord) -> None:
        """Note a record that is in the bucket now, and the journals that the one before it named and it does not."""
        self._records[record.container_id] = record
        self._holds.pop(record.container_id, None)
        if before is not None:
            named = {piece.journal for piece in record.pieces}
            self._dropped |= {piece.journal: 0 for piece in before.pieces if piece.journal not in named}

    async def run_once(self) -> None:
        """Delete what is not needed. Raises `StorageError` if a request fails; the next pass repeats it."""
        await self._read_departed()
        await self._trim_live()
        await self._delete_dropped()

    async def _read_departed(self) -> None:
        """Read the records of containers that other processes may have taken over."""
        for container_id in [one for one in self._records if self._writer.member(one) is None]:
            stored = await self._bucket.read_record(container_id)
            if self._writer.member(container_id) is not None:
                continue
            if stored is None or all(piece.journal != self._writer.journal for piece in stored.record.pieces):
                del self._records[container_id]
            else:
                self._records[container_id] = stored.record

    async def _trim_live(self) -> None:
        writer = self._writer
        journal, lengths = writer.journal, writer.use.lengths
        ranges: list[tuple[int, int]] = [(first, 1 << 62) for own, first in self._holds.values() if own == journal]
        for record in self._records.values():
            ranges += [
                (record.first_slot(piece), 1 << 62 if piece.end is None else piece.end)
                for piece in record.pieces
                if piece.journal == journal
            ]
        unneeded = [slot for slot in lengths if not any(first <= slot < end for first, end in ranges)]
        if unneeded:
            await self._bucket.delete_slots(journal, unneeded)
            if writer.journal == journal:
                for slot in unneeded:
                    lengths.pop(slot, None)

    async def _delete_dropped(self) -> None:
        for journal in sorted(self._dropped.keys() - {self._writer.journal}):
            # Removed first: a record that ceases to name it during this pass notes it for the next one.
            passes = self._dropped.pop(journal)
            try:
                is_settled = await self._delete_unnamed(journal)
            except StorageError:
                self._dropped.setdefault(journal, passes)
                raise
            if not is_settled and passes < _UNSEALED_PASSES_MAX:
                self._dropped.setdefault(journal, passes + 1)

    async def _delete_unnamed(self, journal: bytes) -> bool:
        """Delete the data of a sealed journal that no record names. Return False if it has data and no seal."""
        slots, is_sealed = await self._bucket.list_slots(journal)
        if slots and not is_sealed:
            return False  # Its process may still write, and deletes what it does not need.
        # After the seal: a sealed journal gets no new references with data.
        if slots and not await is_named(self._bucket, journal, self._container_count):
            await self._bucket.delete_slots(journal, slots)
        return True


async def is_named(bucket: LogBucket, journal: bytes, container_count: int) -> bool:
    """Return whether any container's record names a journal."""
    for container_id in range(container_count):
        stored = await bucket.read_record(container_id)
        if stored is not None and any(piece.journal == journal for piece in stored.record.pieces):
            return True
    return False


class LogProcess:
    """See the module.

    Attributes:
        on_fenced: called with the id of a container whose log another process has opened or disabled.
        on_taken_over: called when a later server has started: this one must exit.
        claim: the right of this process to open all logs; None: others may open some of them at the same time.
    """

    def __init__(
        self, bucket: LogBucket, runtime: Runtime, settings: ObjectLogSettings, owner: LogOwner, container_count: int
    ) -> None:
        self.bucket: LogBucket = bucket
        self.runtime: Runtime = runtime
        self.settings: ObjectLogSettings = settings
        self.owner: LogOwner = owner
        self.writer: JournalWriter = JournalWriter(bucket, runtime, settings)
        self.shared_slots: SharedSlots = SharedSlots(bucket, settings)
        self.trim: JournalTrim = JournalTrim(bucket, self.writer, container_count)
        self.on_fenced: Callable[[int], None] = lambda container_id: None
        self.on_taken_over: Callable[[LogTakenOverError], None] = lambda error: None
        self.claim: ServerClaim | None = None
        self._checking: asyncio.Task[None] | None = None
        self._opening: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._trimming: asyncio.Task[None] | None = None

    def opening(self, container_id: int) -> asyncio.Lock:
        """Return the lock under which this process opens a container's log."""
        if self._trimming is None:
            self._trimming = asyncio.get_running_loop().create_task(self._keep_trimming())
        return self._opening[container_id]

    async def check_may_open(self) -> None:
        """Raise `LogTakenOverError` if a later server has started, see `ServerClaim`."""
        if self.claim is not None:
            try:
                await self.claim.check()
            except LogTakenOverError as error:
                self.on_taken_over(error)
                raise

    def fenced(self, container_id: int) -> None:
        """Note that another process has opened or disabled a container's log."""
        self.on_fenced(container_id)
        if self.claim is not None and (self._checking is None or self._checking.done()):
            self._checking = asyncio.get_running_loop().create_task(self._check_claim())

    async def _check_claim(self) -> None:
        try:
            await self.check_may_open()
        except LogTakenOverError:
            pass  # It was reported.
        except StorageError as error:
            _log.warning("the log in %s does not say which server it belongs to: %s", self.bucket.place, error)

    async def trim_once(self) -> None:
        """Free what idle containers keep, and delete what is not needed any more. Raises `StorageError`."""
        lengths = self.writer.use.lengths

        def bytes_after(slot: int) -> int:
            return sum(length for number, length in lengths.items() if number > slot)

        for member in self.writer.members:
            try:
                await member.record_truncation()
                await member.hop(bytes_after)
            except (LogFencedError, LogClosedError) as error:
                _log.info("nothing is freed for container %d: %s", member.container_id, error)
        await self.trim.run_once()

    async def _keep_trimming(self) -> None:
        await self.bucket.space.fill()
        while True:
            await asyncio.sleep(self.settings.trim_interval_s)
            try:
                await self.trim_once()
            except StorageError as error:
                _log.warning("the log in %s could not delete what it does not need: %s", self.bucket.place, error)

    async def close(self) -> None:
        """Stop the writer. All logs are closed."""
        tasks = [task for task in (self._trimming, self._checking) if task is not None]
        await cancel_and_wait(*tasks)
        await self.writer.close()
