"""`CountedObjects`: an `ObjectStore` that counts its requests and bytes; `ObjectRequests`: the counts of a process.

Stores bill each request. What the library repeats by itself is counted once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from penstock.model.segments import Buffer
from penstock.runtime.objects import (
    ObjectInfo,
    ObjectPlace,
    ObjectStore,
    ObjectStoreSettings,
    ObjectVersion,
    OpenObjectStore,
    VersionedObject,
)


@dataclass(slots=True)
class RequestCounts:
    """Requests to one bucket since the process started.

    Attributes:
        write_count: creations, replacements and pages of lists, which stores bill alike.
        read_count: reads of objects, of ranges, and of metadata.
        delete_count: deletions, which are free; one for up to 1 000 objects.
        sent_bytes, received_bytes: contents of objects.
    """

    write_count: int = 0
    read_count: int = 0
    delete_count: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(slots=True)
class ObjectRequests:
    """The counts of a process. `by_bucket`: by the URL of the bucket."""

    by_bucket: dict[str, RequestCounts] = field(default_factory=dict)

    def counting(self, open_store: OpenObjectStore) -> OpenObjectStore:
        """Return `open_store` with all requests of the opened buckets counted here."""

        def open_counted(place: ObjectPlace, settings: ObjectStoreSettings) -> ObjectStore:
            store = open_store(place, settings)
            return CountedObjects(store, self.by_bucket.setdefault(store.place, RequestCounts()))

        return open_counted


#: Objects that one request deletes.
_DELETIONS_MAX = 1000


class CountedObjects:
    """`ObjectStore` that counts the requests to `inner` in `counts`. A request counts when it is sent."""

    def __init__(self, inner: ObjectStore, counts: RequestCounts) -> None:
        self.inner: ObjectStore = inner
        self.counts: RequestCounts = counts

    @property
    def place(self) -> str:
        """See `ObjectStore.place`."""
        return self.inner.place

    @property
    def key_part_bytes_max(self) -> int:
        """See `ObjectStore.key_part_bytes_max`."""
        return self.inner.key_part_bytes_max

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """See `ObjectStore.put_new`."""
        self._note_write(content)
        await self.inner.put_new(key, content, tag)

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        """See `ObjectStore.put_if`."""
        self._note_write(content)
        return await self.inner.put_if(key, content, version)

    async def get_versioned(self, key: str) -> VersionedObject:
        """See `ObjectStore.get_versioned`."""
        self.counts.read_count += 1
        found = await self.inner.get_versioned(key)
        self.counts.received_bytes += len(found.content)
        return found

    async def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        self.counts.read_count += 1
        return await self.inner.head(key)

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        self.counts.read_count += 1
        content = await self.inner.get(key)
        self.counts.received_bytes += len(content)
        return content

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        self.counts.read_count += 1
        content = await self.inner.get_range(key, offset, length)
        self.counts.received_bytes += len(content)
        return content

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        self.counts.delete_count += 1
        await self.inner.delete(key)

    async def delete_many(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete_many`."""
        self.counts.delete_count += -(-len(keys) // _DELETIONS_MAX)
        await self.inner.delete_many(keys)

    async def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See `ObjectStore.list`."""
        self.counts.write_count += 1
        is_first = True
        async for page in self.inner.list(folder, after=after):
            self.counts.write_count += not is_first
            is_first = False
            yield page

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        await self.inner.close()

    def _note_write(self, content: Buffer) -> None:
        self.counts.write_count += 1
        self.counts.sent_bytes += memoryview(content).nbytes
