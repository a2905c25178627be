"""`ObjectLogAdministration`: inspects and changes the logs in a bucket, beside a running server or without one.

All changes are conditional, so a server may run meanwhile. `sweep` deletes what no container's record names. Why it
deletes nothing that is needed: docs/object-log.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from penstock.administration.log_administration import LogReport, LogState
from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    LaterVersionError,
    LogDamagedError,
    LogFencedError,
    LogIdentityError,
    LogMissingError,
    ObjectChangedError,
)
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.tier1.object_log.bucket_space import RESERVE_PREFIX
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, LogPiece, record_key
from penstock.segmentstore.tier1.object_log.factory import enable_log
from penstock.segmentstore.tier1.object_log.journal_format import HEADER_LENGTH, ID_LENGTH
from penstock.segmentstore.tier1.object_log.journal_reader import JournalReader, SlotPlace, UpwardReader
from penstock.segmentstore.tier1.object_log.log_bucket import LogBucket, StoredRecord
from penstock.segmentstore.tier1.object_log.server_claim import (
    CLUSTER_OBJECT_NAMES,
    LogClusterIdentity,
    read_identity,
)
from penstock.server.settings import StandaloneSettings

#: Begin of the keys of damaged logs that a salvage has kept, below the log's prefix. Nothing deletes them.
DAMAGED_PREFIX: str = "damaged/"
#: Attempts of each request, after which the command ends with the bucket's error.
_ATTEMPTS_MAX = 5
#: Slots tried for a seal of a journal that its process extends meanwhile. It is left for the next sweep then.
_SEAL_ATTEMPTS_MAX = 100
_SLOT_DIGITS = 16
_PUT_BACK = (
    "Put the object back, for example an earlier version of it if the bucket keeps versions, and repeat this command"
)


@dataclass(frozen=True, slots=True)
class UnnamedSlots:
    """Data objects of one journal that no container's record names. `length_bytes`: of all of them together."""

    journal: str
    object_count: int
    length_bytes: int


@dataclass(frozen=True, slots=True)
class LogSweepReport:
    """What a sweep has found.

    Attributes:
        is_dry_run: whether nothing was changed.
        unnamed: objects that were deleted, or would be.
        object_count, length_bytes: the sum of them.
        kept_count: data objects that a record names.
        seal_count: seals. They are never deleted; each has 64 bytes.
        foreign: keys below the log's prefix that are not of a log, at most 100 of them; they stay.
        foreign_count: their number.
    """

    is_dry_run: bool
    unnamed: Sequence[UnnamedSlots]
    object_count: int
    length_bytes: int
    kept_count: int
    seal_count: int
    foreign: Sequence[str]
    foreign_count: int


@dataclass(slots=True)
class _Journal:
    """Listed objects of a journal: lengths of data by slot, and the number of seals."""

    lengths: dict[int, int] = field(default_factory=dict)
    seal_count: int = 0


@asynccontextmanager
async def object_logs(
    url: str, settings: StandaloneSettings, runtime: Runtime, *, missing: str = ""
) -> AsyncIterator[ObjectLogAdministration]:
    """Open the logs in the bucket `url`, which is reached as the settings say. `missing`: why there may be no log.

    Raises:
        InvalidArgumentError: `url` is not a place in object storage, or no server has made a log there.
        StorageError: the bucket does not answer, or refuses.
        CorruptionError: the log's identity is damaged.
    """
    place = ObjectPlace.parse(url)
    objects = runtime.open_objects(place, settings.object_storage.store)
    try:
        bucket = LogBucket(objects, settings.object_log, prefix=place.prefix, attempts_max=_ATTEMPTS_MAX)
        identity = await read_identity(bucket)
        if identity is None:
            missing = missing or f"no server was started with --log {place}"
            raise InvalidArgumentError(f"there is no log in {place}: {missing}")
        bucket.cluster_id = identity.cluster_id
        yield ObjectLogAdministration(bucket, identity, settings, runtime)
    finally:
        await objects.close()


class ObjectLogAdministration:
    """The logs in `bucket`, of the cluster `identity`. See the module."""

    def __init__(
        self, bucket: LogBucket, identity: LogClusterIdentity, settings: StandaloneSettings, runtime: Runtime
    ) -> None:
        self.bucket: LogBucket = bucket
        self._identity = identity
        self._settings = settings.object_log
        self._runtime = runtime

    @property
    def cluster_id(self) -> str:
        """The cluster that the log belongs to."""
        return self._identity.cluster_id

    @property
    def container_count(self) -> int:
        """The number of containers of that cluster."""
        return self._identity.container_count

    async def owners(self) -> Collection[str]:
        """Return the tokens, in hex, of the processes that have opened each log last.

        Raises `UnreadableDataError` if a record is damaged.
        """
        return frozenset(record.owner.hex() for record in await self._records())

    async def reports(self) -> Sequence[LogReport]:
        """Return a report of each container's log. Changes nothing."""
        journals, _ = await self._listed()
        return [await self._report(container_id, journals) for container_id in range(self._identity.container_count)]

    async def _report(self, container_id: int, journals: Mapping[bytes, _Journal]) -> LogReport:
        path = f"{self.bucket.place}/r/{container_id}"
        try:
            record = (await self._stored(container_id)).record
        except LaterVersionError as error:
            return LogReport(container_id, LogState.LATER_VERSION, 0, 0, 0, path, str(error))
        except LogMissingError:
            problem = "its record does not exist: no server has opened it, or the object was deleted"
            return LogReport(container_id, LogState.MISSING, 0, 0, 0, path, problem)
        except (CorruptionError, LogIdentityError) as error:
            return LogReport(container_id, LogState.DAMAGED, 0, 0, 0, path, str(error))
        lengths = [
            length
            for piece in record.pieces
            for slot, length in journals[piece.journal].lengths.items()
            if _is_in(slot, record, piece)
        ]
        state, problem = LogState.ENABLED, ""
        if not record.is_enabled:
            state, problem = LogState.DISABLED, record.reason
        return LogReport(container_id, state, record.epoch, len(lengths), sum(lengths), path, problem)

    async def enable(self, container_id: int) -> None:
        """Enable a disabled log. Its frames are read first: a damaged log stays disabled.

        Raises:
            InvalidArgumentError: it is not disabled, or does not exist.
            LogDamagedError: it is damaged. Nothing was changed.
        """
        stored = await self.demand(container_id)
        if not stored.record.is_enabled:
            try:
                await self._check_frames(stored.record)
            except CorruptionError as error:
                raise LogDamagedError(container_id, error, advice=_PUT_BACK) from error
        await enable_log(self.bucket, self._runtime, container_id)

    async def disable(self, container_id: int) -> None:
        """Disable a log. A server that has opened it ends its container.

        Raises `InvalidArgumentError` if it is disabled already, or does not exist.
        """
        stored = await self.demand(container_id)
        record = stored.record
        if not record.is_enabled:
            raise InvalidArgumentError(f"the log of container {container_id} in {self.bucket.place} is disabled")
        nonce = self._runtime.random_id()
        try:
            await self.bucket.change_record(
                stored, replace(record, nonce=nonce, is_enabled=False, reason="by an administrator")
            )
        except ObjectChangedError as error:
            raise LogFencedError(
                f"the log of container {container_id} in {self.bucket.place} was changed meanwhile: list the logs"
            ) from error
        if (piece := record.open_piece) is not None:
            # Its owner finds the seal with its next append or check, and the changed record after it.
            found = self._upward(record, piece)
            await found.read_up()
            while not found.is_sealed and not await self.bucket.seal(piece.journal, found.slot, nonce):
                await found.read_up()

    async def sweep(self, *, is_dry_run: bool) -> LogSweepReport:
        """Delete the data objects of journals that no container's record names. A server may run meanwhile.

        Raises `UnreadableDataError` if a record is damaged: then it is not known what it names. Nothing was deleted.
        """
        # The list comes first: a record names a slot before the slot has frames of its container.
        journals, foreign = await self._listed()
        unnamed = _unnamed(journals, await self._records())
        if not is_dry_run:
            await self._seal_unnamed(journals, unnamed)
            # After the seals: no record begins to name data of a sealed journal.
            still = _unnamed({journal: journals[journal] for journal in unnamed}, await self._records())
            unnamed = {journal: slots for journal, slots in still.items() if journals[journal].seal_count}
            for journal, slots in unnamed.items():
                await self.bucket.delete_slots(journal, sorted(slots))
        found = [
            UnnamedSlots(journal.hex(), len(slots), sum(journals[journal].lengths[slot] for slot in slots))
            for journal, slots in sorted(unnamed.items())
        ]
        object_count = sum(each.object_count for each in found)
        return LogSweepReport(
            is_dry_run,
            found,
            object_count,
            sum(each.length_bytes for each in found),
            sum(len(each.lengths) for each in journals.values()) - object_count,
            sum(each.seal_count for each in journals.values()),
            foreign[:100],
            len(foreign),
        )

    async def _seal_unnamed(self, journals: Mapping[bytes, _Journal], unnamed: Mapping[bytes, Collection[int]]) -> None:
        """Seal journals that have no seal: their process has ended, or begins another journal."""
        token = self._runtime.random_id()
        for journal in unnamed:
            there = journals[journal]
            first = max(there.lengths) + 1
            for slot in range(first, first if there.seal_count else first + _SEAL_ATTEMPTS_MAX):
                if await self.bucket.seal(journal, slot, token):
                    there.seal_count += 1
                    break

    async def _listed(self) -> tuple[defaultdict[bytes, _Journal], list[str]]:
        """Return all objects of journals, and the keys of objects that are not of a log."""
        prefix = self.bucket.prefix
        start = len(prefix) + 1 if prefix else 0
        count = self._identity.container_count
        known = {record_key("", number) for number in range(count)} | set(CLUSTER_OBJECT_NAMES)
        journals: defaultdict[bytes, _Journal] = defaultdict(_Journal)
        foreign: list[str] = []
        async for page in self.bucket.objects.list(prefix):
            for info in page:
                place = _journal_place(info.key[start:])
                if place is not None:
                    journal, slot = place
                    if info.length_bytes == HEADER_LENGTH:
                        journals[journal].seal_count += 1
                    else:
                        journals[journal].lengths[slot] = info.length_bytes
                elif info.key[start:] not in known and not info.key[start:].startswith(
                    (RESERVE_PREFIX, DAMAGED_PREFIX)
                ):
                    foreign.append(info.key)
        return journals, foreign

    async def _records(self) -> list[ContainerRecord]:
        found = [await self.bucket.read_record(number) for number in range(self._identity.container_count)]
        return [each.record for each in found if each is not None]

    async def _stored(self, container_id: int) -> StoredRecord:
        stored = await self.bucket.read_record(container_id)
        if stored is None:
            raise LogMissingError(container_id, f"{self.bucket.place}/r/{container_id}", record="the bucket")
        return stored

    async def demand(self, container_id: int) -> StoredRecord:
        """Return the record of a container. Raises `InvalidArgumentError` if there is none."""
        if container_id < self._identity.container_count:
            stored = await self.bucket.read_record(container_id)
            if stored is not None:
                return stored
        raise InvalidArgumentError(f"the log of container {container_id} in {self.bucket.place} does not exist")

    def _upward(self, record: ContainerRecord, piece: LogPiece) -> UpwardReader:
        reader = JournalReader(self.bucket, self._settings, record.container_id)
        return UpwardReader(reader, piece.journal, record.first_slot(piece), self._settings, None)

    async def _check_frames(self, record: ContainerRecord) -> None:
        """Read every frame of a log. Raises `CorruptionError`."""
        places: list[SlotPlace] = []
        for piece in record.pieces:
            end = piece.end
            if end is None:
                found = self._upward(record, piece)
                await found.read_up()
                end = found.slot
            first = record.first_slot(piece)
            places += [SlotPlace(piece.ordinal, piece.journal, slot) for slot in range(first, end)]
        reader = JournalReader(self.bucket, self._settings, record.container_id)
        async for _ in reader.known_range(places):
            pass


def _is_in(slot: int, record: ContainerRecord, piece: LogPiece) -> bool:
    return record.first_slot(piece) <= slot and (piece.end is None or slot < piece.end)


def _unnamed(journals: Mapping[bytes, _Journal], records: Sequence[ContainerRecord]) -> dict[bytes, set[int]]:
    """Return the data objects of journals that no piece of a record includes, by journal.

    A journal that a record names and that has no seal is left out: its process deletes what it does not need.
    """
    found: dict[bytes, set[int]] = {}
    for journal, there in journals.items():
        pieces = [(record, piece) for record in records for piece in record.pieces if piece.journal == journal]
        slots = {slot for slot in there.lengths if not any(_is_in(slot, *each) for each in pieces)}
        if slots and (there.seal_count or not pieces):
            found[journal] = slots
    return found


def _journal_place(name: str) -> tuple[bytes, int] | None:
    """Return journal and slot of a key below the log's prefix; None if it is not that of a slot."""
    folder, _, rest = name.partition("/")
    journal, _, slot = rest.partition("/")
    if folder != "j" or len(journal) != 2 * ID_LENGTH or len(slot) != _SLOT_DIGITS:
        return None
    try:
        return bytes.fromhex(journal), int(slot, 16)
    except ValueError:
        return None
