"""`ChunkPlaces`: read-only access to long-term storage for clients.

A directory must be visible on this machine under the store's path, or under a given path. Buckets are accessed with the
settings of the environment (``AWS_*``), HDFS likewise. See docs/direct-reads.md.
"""

from __future__ import annotations

import posixpath
from typing import Protocol

from penstock.client.settings import ClientSettings
from penstock.model.errors import (
    ChunkError,
    NoSuchChunkError,
    NoSuchObjectError,
    NoSuchRemoteFileError,
    ObjectRangeError,
    ProtocolError,
    StorageIdentityError,
)
from penstock.model.sizes import IDENTITY_LENGTH_MAX
from penstock.runtime.disk import Disk
from penstock.runtime.files import FilePlace, FileStore, FileStoreSettings
from penstock.runtime.objects import ObjectPlace, ObjectStore, ObjectStoreSettings
from penstock.runtime.runtime import Runtime
from penstock.runtime.work import PoolSettings, WorkPool
from penstock.wire.chunk_layouts import StorageTold


class ChunkPlace(Protocol):
    """Whole objects by name. Raises `NoSuchChunkError` and `StorageError`; a hung place raises within its time-out."""

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (above 0) from `offset` on, fewer only at the end."""

    async def close(self) -> None:
        """Cancel the reads in progress. Does not wait for hung ones."""


def check_chunk_name(name: str) -> None:
    """Raise `ProtocolError` for a name that leads out of long-term storage."""
    if any(part in ("", ".", "..") for part in name.split("/")):
        raise ProtocolError(f"{name!r} is not the name of a chunk")


class ChunkPlaces:
    """The places that one client reads chunks from, each opened once and verified before use."""

    def __init__(self, runtime: Runtime, settings: ClientSettings) -> None:
        self._runtime = runtime
        self._settings = settings
        self._open: dict[str, ChunkPlace] = {}
        #: Verified places, by the identity that they store.
        self._known: set[tuple[str, bytes]] = set()

    async def find(self, storage: StorageTold, place: str = "", *, is_again: bool = False) -> ChunkPlace:
        """Return the place of a layout; `place`: its location on this machine, if different.

        With `is_again` it is verified again: it may have been unmounted since.

        Raises `StorageIdentityError` if another storage is there, or none, `InvalidArgumentError` for an invalid place,
        or one whose library is not installed, `StorageError`.
        """
        url = place or storage.place
        found = self._open.get(url)
        if found is None:
            found = self._open[url] = self._opened(url)
        if is_again or (url, storage.identity) not in self._known:
            try:
                identity = await found.read(storage.identity_name, 0, IDENTITY_LENGTH_MAX)
            except NoSuchChunkError:
                raise StorageIdentityError(url, "it does not exist, or is not the store's long-term storage") from None
            if identity != storage.identity:
                raise StorageIdentityError(url, "it is another store's long-term storage")
            self._known.add((url, storage.identity))
        return found

    def _opened(self, url: str) -> ChunkPlace:
        runtime, timeout_s = self._runtime, self._settings.direct_read_timeout_s
        pool = PoolSettings(thread_count_max=4, hung_count_max=8, timeout_s=timeout_s)
        scheme = url.partition("://")[0] if "://" in url else ""
        if scheme == "hdfs":
            folder = FilePlace.parse(url)
            files = FileStoreSettings(request_timeout_s=timeout_s, reads=pool)
            return _FilePlace(folder, runtime.open_files(folder, files, runtime.work))
        if scheme:
            bucket = ObjectPlace.parse(url)
            objects = ObjectStoreSettings(request_timeout_s=timeout_s, call_timeout_s=2 * timeout_s)
            return _ObjectPlace(bucket, runtime.open_objects(bucket, objects))
        return _DirectoryPlace(url, runtime.disk, runtime.work.pool("direct-reads", pool))

    async def close(self) -> None:
        """Close them all."""
        places, self._open = list(self._open.values()), {}
        for place in places:
            await place.close()


class _DirectoryPlace:
    """A directory. Files are opened for each read: no handle is held that a hung file system would block."""

    def __init__(self, root: str, disk: Disk, pool: WorkPool) -> None:
        self._root = root
        self._disk = disk
        self._pool = pool

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkPlace.read`."""
        return await self._pool.run(self._read, name, offset, length)

    def _read(self, name: str, offset: int, length: int) -> bytes:
        try:
            file = self._disk.open(posixpath.join(self._root, name), writable=False)
        except (FileNotFoundError, NotADirectoryError):
            raise NoSuchChunkError(name) from None
        except OSError as error:
            raise ChunkError(name, f"cannot open it in {self._root}: {error}") from error
        try:
            return file.read(offset, length)
        except OSError as error:
            raise ChunkError(name, f"cannot read it in {self._root}: {error}") from error
        finally:
            file.close()

    async def close(self) -> None:
        """See `ChunkPlace.close`."""
        self._pool.close()


class _ObjectPlace:
    """A bucket."""

    def __init__(self, place: ObjectPlace, objects: ObjectStore) -> None:
        self._folder = f"{place.prefix}/" if place.prefix else ""
        self._objects = objects

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkPlace.read`."""
        try:
            return await self._objects.get_range(self._folder + name, offset, length)
        except NoSuchObjectError:
            raise NoSuchChunkError(name) from None
        except ObjectRangeError:
            return b""

    async def close(self) -> None:
        """See `ChunkPlace.close`."""
        await self._objects.close()


class _FilePlace:
    """A folder of HDFS."""

    def __init__(self, place: FilePlace, files: FileStore) -> None:
        self._root = place.root
        self._files = files

    async def read(self, name: str, offset: int, length: int) -> bytes:
        """See `ChunkPlace.read`."""
        try:
            return await self._files.read(f"{self._root}/{name}", offset, length)
        except NoSuchRemoteFileError:
            raise NoSuchChunkError(name) from None

    async def close(self) -> None:
        """See `ChunkPlace.close`."""
        await self._files.close()
