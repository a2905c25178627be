"""`salvage_object_log`: replaces a damaged log in a bucket by a new one with everything in it that is intact.

A server may run meanwhile: it does not open a disabled log. Steps:

1. The log is disabled, if it is not, and the slot after its last one is sealed. From now on its owner acknowledges
   nothing.
2. The record and all objects that it names are copied to `<prefix>/damaged/<container>-<epoch>/`, as far as they are
   there. Nothing deletes them.
3. The record gets an empty piece of a new journal. So no sweep deletes what the next step creates there, and the record
   still says what the log is: if the command ends here, the log is as damaged as before.
4. The new log is created in that journal, and read again.
5. The record is replaced on condition: its only piece is the new log, and it is enabled. Then the journal is sealed.

If another process changes the record meanwhile, a condition does not hold and the command ends; the log is as before.
A run that is interrupted is repeated from the beginning: another journal is begun, and a sweep deletes the first one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from penstock.administration.errors import LogNotSalvageableError
from penstock.administration.log_salvage import Salvaged
from penstock.administration.object_log_administration import DAMAGED_PREFIX, ObjectLogAdministration
from penstock.administration.salvage_plan import SalvagePlan, SalvagePlanner
from penstock.administration.storage_administration import cluster_chunks
from penstock.administration.storage_recovery import EPOCH_STEP
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LogFencedError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
)
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.damaged_log import LostRange
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, LogPiece, record_key
from penstock.segmentstore.tier1.object_log.journal_format import (
    FRAMES_MAX,
    ObjectKind,
    SectionFrames,
    encode_data,
    frame_address,
    journal_key,
)
from penstock.segmentstore.tier1.object_log.journal_reader import JournalReader, SlotPart, SlotPlace
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket, StoredRecord
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.settings import StandaloneSettings

#: Objects that are read or copied at a time: each has at most `batch_bytes_max` bytes and one frame more.
_LANES = 4
#: Seconds that the reader's thread waits for objects, after which the command fails. Requests have limits of their own.
_READ_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True)
class _Slot:
    """A slot of the log. `part`: None if it cannot be read, because of `problem`."""

    ordinal: int
    journal: bytes
    number: int
    part: SlotPart | None
    problem: str = ""


class DamagedObjectLog:
    """`ReadableDamage` of a log in a bucket: what its record names, as far as it is there and intact.

    `read` blocks in a thread of its own and has its requests made by the event loop that has called `load`.
    """

    def __init__(self, bucket: LogBucket, settings: ObjectLogSettings, record: ContainerRecord) -> None:
        self.epoch: int = record.epoch
        self.first_epoch: int = record.epoch
        self.problems: list[str] = []
        self._bucket = bucket
        self._settings = settings
        self._record = record
        self._reader = JournalReader(bucket, settings, record.container_id)
        self._slots: list[_Slot] = []
        #: The first slot after the open piece.
        self._end = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    async def load(self) -> None:
        """Read what each slot has. Raises `StorageError` if the bucket does not answer, `LaterVersionError`."""
        self._loop = asyncio.get_running_loop()
        self._slots = []
        for piece in self._record.pieces:
            await self._load(piece)
        sections = [
            slot.part.section for slot in self._slots if slot.part is not None and slot.part.section is not None
        ]
        self.first_epoch = min((section.epoch for section in sections), default=self._record.epoch)

    async def _load(self, piece: LogPiece) -> None:
        number = self._record.first_slot(piece)
        while piece.end is None or number < piece.end:
            count = self._settings.read_slots_max if piece.end is None else piece.end - number
            count = min(count, self._settings.read_slots_max)
            for slot in await asyncio.gather(*(self._slot(piece, number + index) for index in range(count))):
                is_end = slot.part is None or slot.part.kind is ObjectKind.SEAL
                if piece.end is None and is_end and slot.problem in ("", _MISSING):
                    self._end = slot.number
                    return
                if slot.part is not None and slot.part.kind is ObjectKind.SEAL:
                    slot = replace(slot, part=None, problem="it is a seal, although the log continues after it")
                self._slots.append(slot)
            number += count

    async def _slot(self, piece: LogPiece, number: int) -> _Slot:
        try:
            part = await self._reader.part(piece.journal, number)
        except CorruptionError as error:
            return _Slot(piece.ordinal, piece.journal, number, None, str(error))
        return _Slot(piece.ordinal, piece.journal, number, part, _MISSING if part is None else "")

    async def find_end(self) -> None:
        """Note objects after the open piece that are more than a process has in flight: one before was deleted."""
        piece = self._record.open_piece
        if piece is None:
            return
        slots, _ = await self._bucket.list_slots(piece.journal)
        later = [slot for slot in slots if slot > self._end]
        if len(later) > self._settings.in_flight_max:
            key = journal_key(self._bucket.prefix, piece.journal, self._end)
            self.problems.append(f"{key} is missing, and {len(later)} objects after it are not part of the log")

    async def seal(self, token: bytes) -> ContainerRecord:
        """Seal the slot after the open piece; return the record with its end. Raises `StorageError`."""
        piece = self._record.open_piece
        if piece is None:
            return self._record
        while not await self._bucket.seal(piece.journal, self._end, token):
            await self.load()
        return self._record.with_end(self._end, is_empty=False)

    @property
    def keys(self) -> Sequence[str]:
        """Keys of all objects of the log, the missing ones among them."""
        return [journal_key(self._bucket.prefix, slot.journal, slot.number) for slot in self._slots]

    def read(self) -> Iterator[bytes | LostRange]:
        """See `ReadableDamage.read`."""
        assert self._loop is not None
        for first in range(0, len(self._slots), _LANES):
            slots = self._slots[first : first + _LANES]
            asked = asyncio.run_coroutine_threadsafe(self._contents(slots), self._loop)
            for content in asked.result(_READ_TIMEOUT_S):
                yield from content

    async def _contents(self, slots: Sequence[_Slot]) -> Sequence[Sequence[bytes | LostRange]]:
        return await asyncio.gather(*(self._content(slot) for slot in slots))

    async def _content(self, slot: _Slot) -> Sequence[bytes | LostRange]:
        """Return the frames of a slot that are not forgotten, or what is lost."""
        key = journal_key(self._bucket.prefix, slot.journal, slot.number)
        if slot.part is None:
            return [LostRange(key, 0, 0, slot.problem)]
        section = slot.part.section
        if section is None:
            return []
        try:
            frames = await self._reader.frames(slot.journal, slot.number, slot.part)
        except CorruptionError as error:
            end = section.offset + section.length
            return [LostRange(key, section.offset, end, str(error), section.frame_count)]
        first = frame_address(slot.ordinal, slot.number, 0)
        return frames[min(max(self._record.truncation - first + 1, 0), len(frames)) :]


_MISSING = "the object is missing"


async def salvage_object_log(
    logs: ObjectLogAdministration,
    settings: StandaloneSettings,
    runtime: Runtime,
    container_id: int,
    *,
    enable_command: str,
    is_dry_run: bool,
) -> Salvaged:
    """Replace the damaged log of a container in a bucket. With `is_dry_run` nothing is changed.

    `enable_command`: enables the log, for messages.

    Raises:
        InvalidArgumentError: the log is not damaged, does not exist, or no long-term storage is named.
        LogNotSalvageableError: neither the log nor long-term storage has a whole checkpoint to begin with.
        LogFencedError: another process has changed the log meanwhile. It is as before.
        CorruptionError, LaterVersionError: its record cannot be read.
        StorageUnavailableError, StorageIdentityError: long-term storage is missing, or belongs to another cluster.
        StorageError: the bucket does not answer.
    """
    return await _ObjectSalvage(logs, settings, runtime, container_id, enable_command).run(is_dry_run=is_dry_run)


class _ObjectSalvage:
    def __init__(
        self,
        logs: ObjectLogAdministration,
        settings: StandaloneSettings,
        runtime: Runtime,
        container_id: int,
        enable_command: str,
    ) -> None:
        self._logs = logs
        self._bucket = logs.bucket
        self._settings = settings
        self._runtime = runtime
        self._id = container_id
        self._enable_command = enable_command
        self._path = f"{self._bucket.place}/r/{container_id}"

    async def run(self, *, is_dry_run: bool) -> Salvaged:
        stored = await self._logs.demand(self._id)
        damaged, planner = await self._loaded(stored)
        plan, image_problem = await planner.plan()
        if is_dry_run:
            return Salvaged(plan.report, tuple(damaged.problems), image_problem, "", "")
        was_enabled = stored.record.is_enabled
        stored = await self._disabled(stored)
        record = stored.record
        if record.open_piece is not None:
            # What its owner has appended until the seal is part of the log.
            damaged, _ = await self._loaded(stored)
            record = await damaged.seal(self._runtime.random_id())
            damaged, planner = await self._loaded(replace(stored, record=record))
            try:
                plan, image_problem = await planner.plan()
            except InvalidArgumentError as error:
                if was_enabled:
                    await self._change(stored, replace(stored.record, is_enabled=True, reason=""))
                raise InvalidArgumentError(
                    f"the log of container {self._id} in {self._bucket.place} is not damaged any more: its owner has "
                    "truncated it meanwhile"
                ) from error
        damaged_path = await self._keep_evidence(stored.record, damaged)
        await self._replace(stored, record, planner, plan)
        return Salvaged(plan.report, tuple(damaged.problems), image_problem, self._path, damaged_path)

    async def _disabled(self, stored: StoredRecord) -> StoredRecord:
        """Disable the log; return its record then. Its owner changes the record, too, from time to time."""
        for _ in range(self._settings.object_log.open_attempts_max):
            if not stored.record.is_enabled:
                return stored
            disabled = replace(
                stored.record,
                nonce=self._runtime.random_id(),
                is_enabled=False,
                reason="it is being salvaged",
            )
            try:
                return await self._bucket.change_record(stored, disabled)
            except ObjectChangedError:
                stored = await self._logs.demand(self._id)
        raise LogFencedError(f"the log of container {self._id} in {self._bucket.place} is changed again and again")

    async def _loaded(self, stored: StoredRecord) -> tuple[DamagedObjectLog, SalvagePlanner]:
        damaged = DamagedObjectLog(self._bucket, self._settings.object_log, stored.record)
        await damaged.load()
        await damaged.find_end()
        planner = SalvagePlanner(
            self._id, damaged, self._settings, self._runtime, open_chunks=self._chunks, path=self._path,
            enable_command=self._enable_command,
            advice="Put the damaged or missing object back, for example an earlier version of it if the bucket keeps "
            f"versions, and run `{self._enable_command}`",
        )  # fmt: skip
        return damaged, planner

    def _chunks(self) -> AbstractAsyncContextManager[ChunkStorage]:
        """Open long-term storage of the same cluster."""
        if not self._settings.tier2:
            raise InvalidArgumentError("parts of the log are lost: name its long-term storage with --tier2")
        directory = DataDirectory(self._settings.data_dir, self._runtime)
        identity = Identity(self._logs.cluster_id, self._logs.container_count)
        return cluster_chunks(self._settings, directory, self._runtime, identity)

    async def _keep_evidence(self, record: ContainerRecord, damaged: DamagedObjectLog) -> str:
        """Copy the damaged log; return the place of the copy. An earlier run may have copied some of it."""
        prefix = self._bucket.prefix
        start = f"{prefix}/" if prefix else ""
        folder = f"{start}{DAMAGED_PREFIX}{self._id}-{record.epoch}"
        keys = [record_key(prefix, self._id), *damaged.keys]

        async def copy(key: str) -> None:
            try:
                content = await self._bucket.retried("a read", lambda: self._bucket.objects.get(key))
            except NoSuchObjectError:
                return
            to = f"{folder}/{key.removeprefix(start)}"
            try:
                await self._bucket.retried("a copy", lambda: self._bucket.objects.put_new(to, content, "damaged"))
            except ObjectExistsError:
                pass

        for first in range(0, len(keys), _LANES):
            await asyncio.gather(*map(copy, keys[first : first + _LANES]))
        return f"{self._bucket.objects.place}/{folder}"

    async def _replace(
        self, stored: StoredRecord, record: ContainerRecord, planner: SalvagePlanner, plan: SalvagePlan
    ) -> None:
        """Write the new log and replace `stored` by it. `record`: the same with an end of its last piece."""
        journal = self._runtime.random_id()
        begun = record.with_piece(journal, 0)
        begun = replace(begun, pieces=(*begun.pieces[:-1], replace(begun.pieces[-1], end=0)))
        stored = await self._change(stored, begun)
        epoch = max(record.epoch, 0 if plan.image is None else plan.image.name.epoch) + EPOCH_STEP
        end = await self._write(planner.frames(plan), journal, epoch)
        piece = replace(begun.pieces[-1], end=end)
        salvaged = replace(begun, pieces=(piece,), epoch=epoch, is_enabled=True, reason="")
        await self._check(salvaged)
        await self._change(stored, salvaged)
        # After the change: a sweep deletes slots of a sealed journal that no record includes.
        await self._bucket.seal(journal, end, self._runtime.random_id())

    async def _change(self, stored: StoredRecord, record: ContainerRecord) -> StoredRecord:
        try:
            return await self._bucket.change_record(stored, replace(record, nonce=self._runtime.random_id()))
        except ObjectChangedError as error:
            raise LogFencedError(
                f"the log of container {self._id} in {self._bucket.place} was changed meanwhile: list the logs, and "
                "repeat this command if it is disabled"
            ) from error

    async def _write(self, frames: Iterator[list[bytes]], journal: bytes, epoch: int) -> int:
        """Create the slots of the new log; return their number."""
        slot = 0
        while (ready := await self._runtime.work.run(next, frames, None)) is not None:
            for first in range(0, len(ready), FRAMES_MAX):
                nonce = self._runtime.random_id()
                section = SectionFrames(self._id, epoch, [[frame] for frame in ready[first : first + FRAMES_MAX]])
                content = encode_data(journal, slot, nonce, [section])
                if not await self._bucket.create(journal, slot, content, nonce):
                    raise LogFencedError(f"the new log in {self._bucket.place} was sealed by another process")
                slot += 1
        return slot

    async def _check(self, record: ContainerRecord) -> None:
        """Read the new log again. Raises `CorruptionError`."""
        piece = record.pieces[-1]
        reader = JournalReader(self._bucket, self._settings.object_log, self._id)
        places = (SlotPlace(piece.ordinal, piece.journal, slot) for slot in range(piece.end or 0))
        async for _ in reader.known_range(places):
            pass


__all__ = ["DamagedObjectLog", "LogNotSalvageableError", "salvage_object_log"]
