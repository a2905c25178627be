"""`ObjectChunkStorage`: chunks as objects of a bucket, one object for each write; nothing is ever appended.

The key of an object is the prefix and the chunk's name. No key is a folder of another, which some stores require: all
names of one depth have the same form, and each ends with a UUID. Concatenation is not supported either: the library
used does not offer server-side copies.

**A creation whose response is lost.** Creations are conditional (only if the object does not exist), and repeated if
the response is lost. Possible outcomes, and the reason for the tag:

1. This call sends the object with a unique tag; it is stored; the response is lost.
2. This call, or the library used, sends the object again; the store responds that it exists.
3. The object is looked up. If its length and its tag are those of this call, the creation has succeeded.
4. With another tag it was created by another caller, whatever its bytes are: `ChunkExistsError`. If a store keeps no
tags, this cannot be determined: the outcome is unknown.
5. If there is no object, the request may still arrive. It is repeated with the same tag, so that it does not matter
which of them is applied, until `put_attempts_max` or `put_deadline_s`; then the outcome is unknown and raised as an
error. The name is known to no other caller, so nothing is ever read from it; it is deleted as an orphan.

An entity tag is not sufficient: it is a checksum of the content, and the same for equal content of two callers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

from penstock.model.errors import (
    STORAGE_AWAY,
    ChunkError,
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    NoSuchObjectError,
    ObjectExistsError,
    ObjectRangeError,
    StorageError,
    StorageFullError,
    StorageIdentityError,
    StorageRefusedError,
    UnsupportedOperationError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.runtime.objects import ObjectInfo, ObjectStore
from penstock.runtime.pacing import GrowingDelay
from penstock.segmentstore.tier2.byte_gate import ByteGate
from penstock.segmentstore.tier2.chunk_deletion import delete_each
from penstock.segmentstore.tier2.chunk_files import IDENTITY_NAME
from penstock.segmentstore.tier2.chunk_name import (
    CHUNK_NAME_PART_LENGTH_MAX,
    RESERVED_NAME_PREFIX,
    check_chunk_name,
    check_concat,
    check_range,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.object_storage_settings import ObjectStorageSettings
from penstock.segmentstore.tier2.storage_identity import demand_identity

T = TypeVar("T")

_log = logging.getLogger(__name__)


#: The limit of S3, GCS and Azure, in bytes of UTF-8.
KEY_LENGTH_MAX = 1024
_TAG_BYTES = 16


class ObjectChunkStorage:
    """`ChunkStorage` on an object store, `objects`. Can neither append nor concatenate. Closing it closes `objects`."""

    def __init__(
        self,
        objects: ObjectStore,
        rng: random.Random,
        settings: ObjectStorageSettings | None = None,
        *,
        prefix: str = "",
    ) -> None:
        self.objects: ObjectStore = objects
        self._rng = rng
        self._settings = settings or ObjectStorageSettings()
        #: Limits the copies of objects being created.
        self.content: ByteGate = ByteGate(self._settings.content_bytes_max)
        self._prefix = prefix
        self._folder = f"{prefix}/" if prefix else ""
        self._known_identity: bytes | None = None
        #: Loop time of the last creation that was refused for lack of space, unless one has succeeded since.
        self._full_s: float | None = None
        self._is_closed = False

    @property
    def supports_append(self) -> bool:
        """See `ChunkStorage.supports_append`."""
        return False

    @property
    def supports_concat(self) -> bool:
        """See `ChunkStorage.supports_concat`."""
        return False

    @property
    def place(self) -> str:
        """See `ChunkStorage.place`."""
        return f"{self.objects.place}/{self._prefix}".rstrip("/")

    @property
    def name_part_bytes_max(self) -> int:
        """See `ChunkStorage.name_part_bytes_max`."""
        return min(CHUNK_NAME_PART_LENGTH_MAX, self.objects.key_part_bytes_max)

    @property
    def identity_key(self) -> str:
        """The key of the identity object."""
        return self._folder + IDENTITY_NAME

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`. Raises `StorageBucketMissingError` if the bucket does not exist."""
        self._check_open()
        try:
            return await self.objects.get(self.identity_key)
        except NoSuchObjectError:
            return None

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`. Costs one request for each creation."""
        self._known_identity = identity

    async def create_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.create_identity`."""
        self._check_open()
        if not await self._put_new(IDENTITY_NAME, identity):
            raise StorageIdentityError(self.place, "it has an identity already")

    async def create(self, name: str) -> None:
        """See `ChunkStorage.create`."""
        self._check(name)
        raise UnsupportedOperationError(f"chunk {name}: object storage cannot append, use create_with_content")

    async def create_with_content(self, name: str, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.create_with_content`. For unknown outcomes see the module."""
        self._check(name)
        self._check_key(name)
        length = sum(map(len, data))
        if not length:
            raise InvalidArgumentError(f"chunk {name} cannot be created without content")
        async with self.content.hold(length):
            # Copied once, unless it is in one piece: the library reads it while the loop runs.
            content = bytes(data[0]) if len(data) == 1 else b"".join(data)
            await demand_identity(self, self._known_identity, name)
            if not await self._put_new(name, content):
                raise ChunkExistsError(name)
        return length

    async def write(self, name: str, offset: int, data: Sequence[Buffer]) -> int:
        """See `ChunkStorage.write`."""
        self._check(name, offset)
        raise UnsupportedOperationError(f"chunk {name}: object storage cannot append, create another chunk")

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkStorage.read`. One request, except at the end of the chunk."""
        self._check(name, offset, length)
        try:
            if length:
                return await self.objects.get_range(self._folder + name, offset, length)
        except NoSuchObjectError:
            raise NoSuchChunkError(name) from None
        except ObjectRangeError:
            pass  # Nothing is left there, or it is beyond the end: that depends on the length.
        info = await self.info(name)
        if offset > info.length:
            raise InvalidArgumentError(f"chunk {name}: offset {offset} is beyond its length {info.length}")
        if length and offset < info.length:
            raise ChunkError(name, f"no bytes were returned from offset {offset}, although it has {info.length}")
        return b""

    async def info(self, name: str) -> ChunkInfo:
        """See `ChunkStorage.info`."""
        self._check(name)
        try:
            found = await self.objects.head(self._folder + name)
        except NoSuchObjectError:
            raise NoSuchChunkError(name) from None
        return ChunkInfo(name, found.length_bytes)

    async def exists(self, name: str) -> bool:
        """See `ChunkStorage.exists`."""
        try:
            await self.info(name)
        except NoSuchChunkError:
            return False
        return True

    async def delete(self, name: str) -> None:
        """See `ChunkStorage.delete`. Deletions do not report whether the object existed, so look it up first."""
        await self.info(name)
        await self.objects.delete(self._folder + name)

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `DeletesMany`. Up to 1000 in one request, if the service supports that, and without a lookup."""
        for name in names:
            self._check(name)
        try:
            await self.objects.delete_many([self._folder + name for name in names])
        except STORAGE_AWAY:
            raise
        except StorageError:
            # The response does not say which of them was refused.
            return await delete_each(self, names, limit=limit)
        return {}

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        check_concat(target, target_length, sources)
        self._check(target)
        raise UnsupportedOperationError(f"chunk {target}: object storage cannot concatenate")

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`. Requests what is in the folder from the prefix on, and ends after it.

        The folder of the containers' own segments has chunks of all containers, and each start lists those of one.
        """
        self._check_open()
        folder = prefix.rpartition("/")[0]
        if folder or prefix.startswith("/"):
            check_chunk_name(folder)
        # Keys after all but the prefix's last character: the first of them may be the prefix itself.
        after = "" if prefix.endswith("/") else prefix[:-1]
        if after.rpartition("/")[2] in (".", ".."):
            after = after.rpartition("/")[0]  # No key ends like that, and stores refuse it.
        end = prefix.encode()
        found: list[ChunkInfo] = []
        async with aclosing(self._pages(folder, after)) as pages:
            async for page in pages:
                found += [each for each in page if each.name.startswith(prefix)]
                if page and page[-1].name.encode() > end and not page[-1].name.startswith(prefix):
                    break
        found.sort(key=lambda info: info.name)
        return found

    async def names(self, *, limit: int, after: str = "") -> Sequence[str]:
        """See `ChunkStorage.names`. In the order of the names' bytes."""
        self._check_open()
        found: list[str] = []
        async for page in self._pages("", after):
            found += [each.name for each in page]
            if len(found) >= limit:
                break
        return found[:limit]

    async def space(self) -> DiskSpace | None:
        """See `ChunkStorage.space`. None free for `full_retry_s` after the bucket refused a creation as it is full.

        Otherwise unknown. So moves of users' bytes stop, and truncations go before them.
        """
        if self._full_s is None or asyncio.get_running_loop().time() - self._full_s >= self._settings.full_retry_s:
            return None
        return DiskSpace(0, 1 << 62)

    async def close(self) -> None:
        """See `ChunkStorage.close`."""
        self._is_closed = True
        await self.objects.close()

    def _check(self, name: str, offset: int = 0, length: int = 0) -> None:
        check_chunk_name(name)
        check_range(name, offset, length)
        self._check_open()

    def _check_key(self, name: str) -> None:
        parts = (self._folder + name).encode().split(b"/")
        length, part_length = sum(map(len, parts)) + len(parts) - 1, max(map(len, parts))
        if length > KEY_LENGTH_MAX or part_length > self.name_part_bytes_max:
            raise InvalidArgumentError(
                f"chunk {name}: its key has {length} bytes with the prefix, {part_length} in one part; {self.place} "
                f"takes {KEY_LENGTH_MAX}, and {self.name_part_bytes_max} in a part"
            )

    def _check_open(self) -> None:
        if self._is_closed:
            raise StorageError(f"the chunk storage in {self.place} is closed")

    async def _pages(self, folder: str, after: str = "") -> AsyncGenerator[Sequence[ChunkInfo], None]:
        start = len(self._folder)
        pages = self.objects.list((self._folder + folder).rstrip("/"), after=self._folder + after if after else "")
        async for page in pages:
            yield [
                ChunkInfo(each.key[start:], each.length_bytes)
                for each in page
                if not each.key.startswith(RESERVED_NAME_PREFIX, start)
            ]

    async def _put_new(self, name: str, content: bytes) -> bool:
        """Create an object, or verify that it was created: see the module. False: another caller's object exists."""
        settings, loop = self._settings, asyncio.get_running_loop()
        key, tag = self._folder + name, self._rng.randbytes(_TAG_BYTES).hex()
        deadline_s = loop.time() + settings.put_deadline_s
        delay = GrowingDelay(settings.put_retry_delay_s)
        for attempt in range(1, settings.put_attempts_max + 1):
            try:
                await self.objects.put_new(key, content, tag)
            except StorageFullError as error:
                self._full_s = loop.time()
                problem: StorageError = error
            except StorageRefusedError as error:
                if attempt == 1:
                    raise  # The request was not applied, and will not be.
                problem = error
            except StorageError as error:
                problem = error
            else:
                self._full_s = None
                return True
            found = await self._find(key, problem)
            if found is not None:
                if found.length_bytes == len(content) and found.tag == tag:
                    _log.info("%s was created by a request whose answer failed: %s", key, problem)
                    return True
                if found.tag is None and not (attempt == 1 and isinstance(problem, ObjectExistsError)):
                    raise problem
                return False
            if attempt == settings.put_attempts_max or loop.time() + delay.next_s >= deadline_s:
                break
            _log.info("creating %s is retried: %s", key, problem)
            await delay.sleep()
        raise problem

    async def _find(self, key: str, problem: StorageError) -> ObjectInfo | None:
        """Return the object found after a failed creation; None if there is none, or this cannot be determined."""
        try:
            return await self.objects.head(key)
        except NoSuchObjectError:
            return None
        except StorageError as error:
            problem.add_note(f"and it cannot be read: {error}")
            return None
