"""`ObjectChunkStorage`: chunks as objects of a bucket, one object for each write; nothing is ever appended to.

A chunk's name, behind the prefix, is its object's key. So no key is a folder of another, as some stores want it: all
names of one depth have the same make, and each ends with a UUID. Nothing is concatenated either: copies on the server's
side are not among what the library below offers.

**A creation whose reply is lost.** Creations are conditional (only if there is no such object), and sent again when the
answer does not come. What may happen then, and why the tag is there:

1. This call sends the object with a tag of its own; it lands; the answer is lost.
2. It, or the library below, sends the object again; the store says that there is one.
3. The object is looked at. Its length and its tag are those of this call: it is ours, and the creation has succeeded.
4. With another tag it is somebody else's, whatever its bytes are: `ChunkExistsError`. Where a store keeps no tags,
   nobody can say: the outcome is unknown.
5. With no object at all, what was sent may still come. It is sent again, with the same tag, so that it does not matter
   which of them comes, until `put_attempts_max` or `put_deadline_s`; then the outcome is unknown, and told as an error.
   Nobody else knows of the name, so nothing is ever read from it; it is deleted as an orphan.

An entity tag will not do: it is a checksum of the content, and the same for equal content of two callers.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from penstock.model.errors import (
    ChunkError,
    ChunkExistsError,
    InvalidArgumentError,
    NoSuchChunkError,
    NoSuchObjectError,
    ObjectExistsError,
    ObjectRangeError,
    StorageError,
    StorageIdentityError,
    StorageRefusedError,
    UnsupportedOperationError,
)
from penstock.model.segments import Buffer
from penstock.runtime.disk import DiskSpace
from penstock.runtime.objects import ObjectInfo, ObjectStore, ObjectStoreSettings
from penstock.segmentstore.tier2.byte_gate import ByteGate
from penstock.segmentstore.tier2.chunk_deletion import AWAY, delete_each
from penstock.segmentstore.tier2.chunk_files import IDENTITY_NAME
from penstock.segmentstore.tier2.chunk_name import (
    CHUNK_NAME_PART_LENGTH_MAX,
    RESERVED_NAME_PREFIX,
    check_chunk_name,
    check_concat,
    check_range,
)
from penstock.segmentstore.tier2.chunk_storage import ChunkInfo
from penstock.segmentstore.tier2.storage_identity import demand_identity

T = TypeVar("T")

_log = logging.getLogger(__name__)

_MIB = 1024 * 1024

#: What S3, GCS and Azure take, in bytes of UTF-8.
KEY_LENGTH_MAX = 1024
_TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class ObjectStorageSettings:
    """How long-term storage in an object store works. Each write is an object, so writes are long and seldom.

    Attributes:
        flush_bytes: as `ContainerSettings.flush_bytes`, in place of it: about the length of an object.
        flush_age_s: as `ContainerSettings.flush_age_s`, in place of it.
        read_ahead_range_bytes: as `ContainerSettings.read_ahead_range_bytes`, in place of it: a request has its price.
        content_bytes_max: bytes of objects under creation at a time, each of which is a copy of its own; more wait.
        put_attempts_max: how often a creation is begun whose outcome is unknown.
        put_deadline_s: no further attempt is begun so long after the first one.
        put_retry_delay_s: pause before the second attempt; it doubles.
        store: how the store is reached.
    """

    flush_bytes: int = 16 * _MIB
    flush_age_s: float = 60.0
    read_ahead_range_bytes: int = 4 * _MIB
    content_bytes_max: int = 128 * _MIB
    put_attempts_max: int = 3
    put_deadline_s: float = 90.0
    put_retry_delay_s: float = 0.2
    store: ObjectStoreSettings = field(default_factory=ObjectStoreSettings)

    def __post_init__(self) -> None:
        """Check what no type says. Raises `InvalidArgumentError`."""
        if min(self.put_attempts_max, self.flush_bytes, self.read_ahead_range_bytes) < 1:
            raise InvalidArgumentError(
                "put_attempts_max, flush_bytes and read_ahead_range_bytes of object storage are at least 1"
            )


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
        #: Copies of what is being created.
        self.content: ByteGate = ByteGate(self._settings.content_bytes_max)
        self._prefix = prefix
        self._folder = f"{prefix}/" if prefix else ""
        self._known_identity: bytes | None = None
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
        """The key of the object that is the identity."""
        return self._folder + IDENTITY_NAME

    async def read_identity(self) -> bytes | None:
        """See `ChunkStorage.read_identity`. Raises `StorageBucketMissingError` when there is no place for it."""
        self._check_open()
        try:
            return await self.objects.get(self.identity_key)
        except NoSuchObjectError:
            return None

    def hold_to_identity(self, identity: bytes) -> None:
        """See `ChunkStorage.hold_to_identity`. It costs a request for each creation."""
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
        """See `ChunkStorage.create_with_content`. Of an unknown outcome see the module."""
        self._check(name)
        self._check_key(name)
        length = sum(map(len, data))
        if not length:
            raise InvalidArgumentError(f"chunk {name}: there is no content to create it with")
        async with self.content.hold(length):
            # Copied once, unless it is in one piece: the library below reads it while this loop turns.
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
            pass  # Nothing is left there, or it is behind the end: that depends on the length.
        info = await self.info(name)
        if offset > info.length:
            raise InvalidArgumentError(f"chunk {name}: offset {offset} is beyond its length {info.length}")
        if length and offset < info.length:
            raise ChunkError(name, f"no bytes came from {offset} on, although it has {info.length}")
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
        """See `ChunkStorage.delete`. Object stores do not tell whether there was one, so it is looked for first."""
        await self.info(name)
        await self.objects.delete(self._folder + name)

    async def delete_many(self, names: Sequence[str], *, limit: int) -> dict[str, StorageError]:
        """See `DeletesMany`. Up to 1000 in one request, where the service has such requests, and without a look."""
        for name in names:
            self._check(name)
        try:
            await self.objects.delete_many([self._folder + name for name in names])
        except AWAY:
            raise
        except StorageError:
            # Nobody says which of them was refused.
            return await delete_each(self, names, limit=limit)
        return {}

    async def concat(self, target: str, target_length: int, sources: Sequence[tuple[str, int]]) -> int:
        """See `ChunkStorage.concat`."""
        check_concat(target, target_length, sources)
        self._check(target)
        raise UnsupportedOperationError(f"chunk {target}: object storage cannot concatenate")

    async def list(self, prefix: str = "") -> Sequence[ChunkInfo]:
        """See `ChunkStorage.list`."""
        self._check_open()
        folder = prefix.rpartition("/")[0]
        if folder or prefix.startswith("/"):
            check_chunk_name(folder)
        found: list[ChunkInfo] = []
        async for page in self._pages(folder):
            found += [each for each in page if each.name.startswith(prefix)]
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
        """See `ChunkStorage.space`. Nobody can say."""
        return None

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

    async def _pages(self, folder: str, after: str = "") -> AsyncIterator[Sequence[ChunkInfo]]:
        start = len(self._folder)
        pages = self.objects.list((self._folder + folder).rstrip("/"), after=self._folder + after if after else "")
        async for page in pages:
            yield [
                ChunkInfo(each.key[start:], each.length_bytes)
                for each in page
                if not each.key.startswith(RESERVED_NAME_PREFIX, start)
            ]

    async def _put_new(self, name: str, content: bytes) -> bool:
        """Create an object, or see that it was created: see the module. False: somebody else's is there."""
        settings, loop = self._settings, asyncio.get_running_loop()
        key, tag = self._folder + name, self._rng.randbytes(_TAG_BYTES).hex()
        deadline_s = loop.time() + settings.put_deadline_s
        delay_s = settings.put_retry_delay_s
        for attempt in range(1, settings.put_attempts_max + 1):
            try:
                await self.objects.put_new(key, content, tag)
            except StorageRefusedError as error:
                if attempt == 1:
                    raise  # Nothing happened, and nothing will.
                problem: StorageError = error
            except StorageError as error:
                problem = error
            else:
                return True
            found = await self._look(key, problem)
            if found is not None:
                if found.length_bytes == len(content) and found.tag == tag:
                    _log.info("%s was created by a request without a good answer: %s", key, problem)
                    return True
                if found.tag is None and not (attempt == 1 and isinstance(problem, ObjectExistsError)):
                    raise problem
                return False
            if attempt == settings.put_attempts_max or loop.time() + delay_s >= deadline_s:
                break
            _log.info("%s is created again: %s", key, problem)
            await asyncio.sleep(delay_s)
            delay_s *= 2
        raise problem

    async def _look(self, key: str, problem: StorageError) -> ObjectInfo | None:
        """Return what is there after a creation that failed; None if there is nothing, or nobody can say."""
        try:
            return await self.objects.head(key)
        except NoSuchObjectError:
            return None
        except StorageError as error:
            problem.add_note(f"and it cannot be looked at: {error}")
            return None
