"""`LogBucket`: the requests of the log to its bucket, each with a known outcome.

A request whose reply is lost is neither a success nor a failure. Each request here is safe to repeat, and is repeated
until its outcome is known: creations carry a nonce, and changes of a record are conditional and carry one, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TypeVar

from penstock.model.errors import (
    CorruptionError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectError,
    ObjectExistsError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
    UnreadableDataError,
)
from penstock.runtime.objects import ObjectStore, ObjectVersion
from penstock.runtime.pacing import GrowingDelay
from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.tier1.object_log.bucket_space import BucketSpace
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, record_key
from penstock.segmentstore.tier1.object_log.journal_format import (
    HEADER_LENGTH,
    ObjectHeader,
    ObjectKind,
    decode_header,
    encode_seal,
    journal_folder,
    journal_key,
)
from penstock.segmentstore.tier1.object_log.settings import ObjectLogSettings

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: Keys in one request for deletions; the maximum of S3.
_DELETE_COUNT = 1000
#: Creations after which the share of second copies counts.
_HEDGE_ALLOWANCE = 4
#: Answers, and not failures of the way to the bucket: repeating the request does not help.
_FINAL = (ObjectError, StorageFullError, UnreadableDataError)


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A container's record and its version in the bucket."""

    record: ContainerRecord
    version: ObjectVersion


class LogBucket:
    """The log below `prefix` of the bucket `objects`. `cluster_id`: records of another cluster are refused.

    `attempts_max`: for commands: a request is repeated so often, and not if it is refused; 0: for servers, until its
    outcome is known.
    """

    def __init__(
        self,
        objects: ObjectStore,
        settings: ObjectLogSettings,
        *,
        prefix: str = "",
        cluster_id: str = "",
        attempts_max: int = 0,
    ) -> None:
        self._attempts_max = attempts_max
        self.objects: ObjectStore = objects
        self.prefix: str = prefix
        self.cluster_id: str = cluster_id
        self._settings = settings
        self.space: BucketSpace = BucketSpace(objects, settings, prefix, self.place)
        self._creation_count = 0
        self._hedge_count = 0

    @property
    def place(self) -> str:
        """The URL of the log, for messages."""
        return f"{self.objects.place}/{self.prefix}".rstrip("/")

    async def retried(self, what: str, call: Callable[[], Awaitable[T]], *, gives_up_refused: bool = False) -> T:
        """Repeat a request that can be repeated until the bucket answers.

        `gives_up_refused`: raise `StorageRefusedError` at once, for requests of a start. Raises `ObjectError`,
        `StorageFullError`, `UnreadableDataError`, which are answers; after `attempts_max` any `StorageError`.
        """
        delay = GrowingDelay(self._settings.retry_delay_s_first, self._settings.retry_delay_s_max)
        attempt = 0
        while True:
            attempt += 1
            try:
                return await call()
            except _FINAL:
                raise
            except StorageError as error:
                is_refused = isinstance(error, StorageRefusedError)
                if (is_refused and gives_up_refused) or self._is_last(attempt, is_refused=is_refused):
                    raise
                _log.warning("the log in %s: %s is repeated in %.2f s: %s", self.place, what, delay.next_s, error)
            await delay.sleep()

    def _is_last(self, attempt: int, *, is_refused: bool) -> bool:
        return bool(self._attempts_max) and (is_refused or attempt >= self._attempts_max)

    # -- slots ----------------------------------------------------------------------------------------------------

    async def create(self, journal: bytes, slot: int, content: bytes, nonce: bytes) -> bool:
        """Create the data object of a slot. Return whether it is there; False if a seal is.

        Repeats until one of the two is certain, also while the bucket is full. Raises `CorruptionError` if another
        process's data are there.
        """
        key = journal_key(self.prefix, journal, slot)
        delay = GrowingDelay(self._settings.retry_delay_s_first, self._settings.retry_delay_s_max)
        while True:
            try:
                await self._put_hedged(key, content, nonce.hex())
                return True
            except ObjectExistsError:
                pass
            except StorageFullError as error:
                if await self.space.refused(error):
                    continue
            except _FINAL:
                raise
            except StorageError as error:
                _log.warning("the log in %s: %s is created again in %.2f s: %s", self.place, key, delay.next_s, error)
            # Also after an error: a service may break the connection of a long creation whose object exists.
            header = await self.header(journal, slot)
            if header is not None and header.kind is ObjectKind.SEAL:
                return False
            if header is not None and header.nonce == nonce:
                return True
            if header is not None:
                raise CorruptionError(key, 0, "another process writes the same journal")
            await delay.sleep()

    async def seal(self, journal: bytes, slot: int, token: bytes) -> bool:
        """Seal a slot unless it holds data. Return whether it is sealed, by any process. Raises `StorageFullError`."""
        key = journal_key(self.prefix, journal, slot)
        seal = encode_seal(journal, slot, token)
        while True:
            try:
                await self.retried("a seal", lambda: self.objects.put_new(key, seal, token.hex()))
                return True
            except StorageFullError as error:
                if not await self.space.refused(error):
                    raise
                continue
            except ObjectExistsError:
                header = await self.header(journal, slot)
                if header is not None:
                    return header.kind is ObjectKind.SEAL
            await asyncio.sleep(self._settings.retry_delay_s_first)

    async def header(self, journal: bytes, slot: int, *, is_repeated: bool = True) -> ObjectHeader | None:
        """Return the header of a slot; None if it is free. Raises `UnreadableDataError`.

        `is_repeated`: repeat until the bucket answers; otherwise any `StorageError` is raised.
        """
        head = await self.slot_start(journal, slot, HEADER_LENGTH, is_repeated=is_repeated)
        return None if head is None else decode_header(head, journal_key(self.prefix, journal, slot), journal, slot)

    async def slot_start(self, journal: bytes, slot: int, length: int, *, is_repeated: bool = True) -> bytes | None:
        """Return the first `length` bytes of a slot, or all if it is shorter; None if it is free."""
        try:
            return await self.slot_range(journal, slot, 0, length, is_repeated=is_repeated)
        except NoSuchObjectError:
            return None

    async def slot_range(
        self, journal: bytes, slot: int, offset: int, length: int, *, is_repeated: bool = True
    ) -> bytes:
        """Return bytes of a slot. Raises `NoSuchObjectError`."""
        key = journal_key(self.prefix, journal, slot)
        if not is_repeated:
            return await self.objects.get_range(key, offset, length)
        return await self.retried("a read", lambda: self.objects.get_range(key, offset, length))

    async def delete_slots(self, journal: bytes, slots: Sequence[int]) -> None:
        """Delete data objects. Nothing may refer to them."""
        for start in range(0, len(slots), _DELETE_COUNT):
            keys = [journal_key(self.prefix, journal, slot) for slot in slots[start : start + _DELETE_COUNT]]
            await self.objects.delete_many(keys)

    async def list_slots(self, journal: bytes) -> tuple[list[int], bool]:
        """Return the slots of a journal that hold data, and whether the list shows a seal. May be out of date."""
        slots: list[int] = []
        is_sealed = False
        async for page in self.objects.list(journal_folder(self.prefix, journal)):
            for info in page:
                if info.length_bytes == HEADER_LENGTH:
                    is_sealed = True
                else:
                    slots.append(int(info.key.rpartition("/")[2], 16))
        return slots, is_sealed

    async def _put_hedged(self, key: str, content: bytes, tag: str) -> None:
        """Create an object; send a second copy of a creation that takes long. Either may have created it."""
        self._creation_count += 1
        loop = asyncio.get_running_loop()
        tasks = {loop.create_task(self.objects.put_new(key, content, tag))}
        try:
            if self._settings.hedge_s:
                _, waiting = await asyncio.wait(tasks, timeout=self._settings.hedge_s)
                if waiting and self._may_hedge():
                    self._hedge_count += 1
                    tasks.add(loop.create_task(self.objects.put_new(key, content, tag)))
            waiting = set(tasks)
            while True:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                errors = [task.exception() for task in done]
                if None in errors:
                    return
                final = next((error for error in errors if isinstance(error, _FINAL)), None)
                if final is not None or not waiting:
                    error = final or errors[0]
                    assert error is not None
                    raise error
        finally:
            await _cancel_all(tasks)

    def _may_hedge(self) -> bool:
        allowed = self._creation_count * self._settings.hedge_percent_max // 100
        return self._settings.hedge_percent_max > 0 and self._hedge_count < allowed + _HEDGE_ALLOWANCE

    # -- records --------------------------------------------------------------------------------------------------

    async def read_record(self, container_id: int, *, gives_up_refused: bool = False) -> StoredRecord | None:
        """Return a container's record; None if it has none.

        Raises `CorruptionError`, `LaterVersionError`, `LogIdentityError`.
        """
        key = record_key(self.prefix, container_id)
        try:
            found = await self.retried(
                "a read of a record", lambda: self.objects.get_versioned(key), gives_up_refused=gives_up_refused
            )
        except NoSuchObjectError:
            return None
        record = ContainerRecord.decode(found.content, f"{self.place}/r/{container_id}", container_id, self.cluster_id)
        return StoredRecord(record, found.version)

    async def change_record(self, before: StoredRecord | None, record: ContainerRecord) -> StoredRecord:
        """Replace a record, or create it, if it has not changed. `record` has a new nonce.

        Repeats until the outcome is certain. Raises `ObjectChangedError` if another change was made, and then this one
        was not made, or was made and replaced. Raises `StorageFullError`.
        """
        key = record_key(self.prefix, record.container_id)
        content = record.encode()
        delay = GrowingDelay(self._settings.retry_delay_s_first, self._settings.retry_delay_s_max)
        attempt = 0
        full: StorageFullError | None = None
        while True:
            attempt += 1
            try:
                if before is None:
                    await self.objects.put_new(key, content, record.nonce.hex())
                else:
                    return StoredRecord(record, await self.objects.put_if(key, content, before.version))
            except (ObjectExistsError, ObjectChangedError):
                pass  # By this call, by another, or not at all: the record says it.
            except StorageFullError as error:
                if self._attempts_max:
                    raise
                if await self.space.refused(error):
                    continue
                full = error  # Another process may have changed the record: then it does not matter.
            except _FINAL:
                raise
            except StorageError as error:
                if self._is_last(attempt, is_refused=isinstance(error, StorageRefusedError)):
                    raise
                _log.warning("the log in %s: the change of %s is looked up: %s", self.place, key, error)
            found = await self.read_record(record.container_id)
            if found is not None and found.record.nonce == record.nonce:
                return found
            if before is None and found is not None:
                raise ObjectChangedError(key, "another process has created it")
            if before is not None and (found is None or not found.version.is_same(before.version)):
                raise ObjectChangedError(key, "another process has changed it")
            if full is not None:
                raise full
            await delay.sleep()


async def _cancel_all(tasks: set[asyncio.Task[None]]) -> None:
    await cancel_and_wait(*tasks)


async def finished(work: Coroutine[object, object, T]) -> T:
    """Run `work` to its end even if the caller is cancelled: its outcome must become known."""
    task = asyncio.get_running_loop().create_task(work)
    # After a cancellation no caller is left to retrieve the result.
    task.add_done_callback(lambda done: None if done.cancelled() else done.exception())
    return await asyncio.shield(task)
