"""`DirectoryObjects`: `ObjectStore` in a directory that processes of this machine share: a bucket without a service.

For demonstrations, tests, and clusters whose processes all run on one machine. It is no replacement for a bucket: what
the machine loses is lost.

- An object is a file. It is written and synced under another name, and then linked (`put_new`) or renamed (`put_if`).
  So it exists completely or not at all, and acknowledged data survives a power failure.
- Of several processes that create an object, the file system lets one link it.
- Replacements and deletions compare and change under a lock (`flock`), one of 64 by the key. The lock ends with its
  process. A process that is suspended while it holds a lock, some microseconds, delays the others until it resumes.
- The version of an object is a checksum of its content. Tags are extended attributes, where the file system has them.

Not on network file systems: locks and links there do not always reach other machines. Names that begin with ``~`` are
the store's own: locks, and drafts that a killed process left.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from penstock.model.checksum import crc32c
from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchObjectError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectRangeError,
    StorageBucketMissingError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
)
from penstock.model.segments import Buffer
from penstock.runtime.objects import ObjectInfo, ObjectStoreSettings, ObjectVersion, VersionedObject
from penstock.runtime.work import PoolSettings, ThreadedWork, WorkPool

T = TypeVar("T")

#: Begins the names of files that are no objects.
_OWN_MARK = "~"
_LOCK_FOLDER = "~locks"
_LOCK_COUNT = 64
_TAG_ATTRIBUTE = "user.penstock.tag"
_NAME_BYTES_MAX = 255
_THREAD_COUNT_MAX = 8
#: Objects in one page of a list.
_PAGE_LENGTH = 1000
_VERSION_BYTES = 16


class DirectoryObjects:
    """See the module. `root`: the directory, which must exist. `base`: keys are paths from here to below `root`."""

    def __init__(self, root: str, settings: ObjectStoreSettings | None = None, *, base: str = "/") -> None:
        settings = settings or ObjectStoreSettings()
        self._root = root
        self._base = base.rstrip("/")
        self._work = ThreadedWork(1)
        self._bounds = PoolSettings(thread_count_max=_THREAD_COUNT_MAX, timeout_s=settings.call_timeout_s)
        self._pool: WorkPool | None = None

    @property
    def place(self) -> str:
        """See `ObjectStore.place`."""
        return "file://"

    @property
    def key_part_bytes_max(self) -> int:
        """See `ObjectStore.key_part_bytes_max`."""
        return _NAME_BYTES_MAX

    async def put_new(self, key: str, content: Buffer, tag: str) -> None:
        """See `ObjectStore.put_new`."""
        await self._run(key, lambda: self._put_new(key, content, tag))

    async def put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        """See `ObjectStore.put_if`."""
        return await self._run(key, lambda: self._put_if(key, content, version))

    async def get_versioned(self, key: str) -> VersionedObject:
        """See `ObjectStore.get_versioned`."""
        content = await self.get(key)
        return VersionedObject(content, _version(content))

    async def head(self, key: str) -> ObjectInfo:
        """See `ObjectStore.head`."""
        return await self._run(key, lambda: self._head(key))

    async def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        return await self._run(key, lambda: _read(self._path(key)))

    async def get_range(self, key: str, offset: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        return await self._run(key, lambda: self._get_range(key, offset, length))

    async def delete(self, key: str) -> None:
        """See `ObjectStore.delete`."""
        await self._run(key, lambda: self._delete([key]))

    async def delete_many(self, keys: Sequence[str]) -> None:
        """See `ObjectStore.delete_many`."""
        if keys:
            await self._run(keys[0], lambda: self._delete(keys))

    async def list(self, folder: str, *, after: str = "") -> AsyncIterator[Sequence[ObjectInfo]]:
        """See `ObjectStore.list`."""
        found = await self._run(folder, lambda: self._list(folder, after))
        for first in range(0, len(found), _PAGE_LENGTH):
            yield found[first : first + _PAGE_LENGTH]

    async def close(self) -> None:
        """See `ObjectStore.close`. A call after it is executed, as by other stores."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    # -- in threads -----------------------------------------------------------------------------------------------

    async def _run(self, key: str, call: Callable[[], T]) -> T:
        if self._pool is None:
            self._pool = self._work.pool(f"objects in {self._root}", self._bounds)
        try:
            return await self._pool.run(call)
        except FileNotFoundError as error:
            if not os.path.isdir(self._root):
                raise StorageBucketMissingError(f"directory {self._root} does not exist: create it") from error
            raise NoSuchObjectError(key) from error
        except (IsADirectoryError, NotADirectoryError) as error:
            raise NoSuchObjectError(key) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(f"no space is left for {key} in {self._root}") from error
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise StorageCredentialsError(f"{key} in {self._root} is not permitted: {error}") from error
            raise StorageError(f"{key} in {self._root}: {error}") from error

    def _path(self, key: str) -> str:
        parts = key.split("/")
        if any(part in ("", ".", "..") or part.startswith(_OWN_MARK) for part in parts) or "\0" in key:
            raise InvalidArgumentError(f"{key!r} cannot be the key of an object in a directory")
        return f"{self._base}/{key}"

    def _put_new(self, key: str, content: Buffer, tag: str) -> None:
        path = self._path(key)
        folder = os.path.dirname(path)
        with self._draft(folder, content, tag) as draft:
            try:
                os.link(draft, path)
            except FileExistsError as error:
                # It may be of an earlier attempt of this call, which had no time to sync its name.
                _sync_folder(folder)
                raise ObjectExistsError(key, "it exists") from error
        _sync_folder(folder)

    def _put_if(self, key: str, content: Buffer, version: ObjectVersion) -> ObjectVersion:
        path = self._path(key)
        folder = os.path.dirname(path)
        with self._draft(folder, content, None) as draft:
            with self._locked(key):
                try:
                    present = _version(_read(path))
                except FileNotFoundError as error:
                    raise ObjectChangedError(key, "it does not exist") from error
                if not present.is_same(version):
                    raise ObjectChangedError(key, "it is in another version")
                os.rename(draft, path)
            _sync_folder(folder)
        return _version(bytes(content))

    def _head(self, key: str) -> ObjectInfo:
        path = self._path(key)
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise NoSuchObjectError(key)
        try:
            tag = os.getxattr(path, _TAG_ATTRIBUTE).decode()
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
            tag = None
        return ObjectInfo(key, found.st_size, tag)

    def _get_range(self, key: str, offset: int, length: int) -> bytes:
        with open(self._path(key), "rb") as file:
            data = os.pread(file.fileno(), length, offset)
            size = os.fstat(file.fileno()).st_size
            if not data:
                raise ObjectRangeError(key, f"there is no byte at {offset}, it has {size} bytes")
            while len(data) < min(length, size - offset):
                data += os.pread(file.fileno(), length - len(data), offset + len(data))
        return data

    def _delete(self, keys: Sequence[str]) -> None:
        folders: set[str] = set()
        for key in keys:
            path = self._path(key)
            with self._locked(key):
                try:
                    os.unlink(path)
                except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                    continue
            folders.add(os.path.dirname(path))
        for folder in sorted(folders):
            _sync_folder(folder)

    def _list(self, folder: str, after: str) -> Sequence[ObjectInfo]:
        top = self._path(folder) if folder else self._root
        found: list[ObjectInfo] = []
        for parent, folders, names in os.walk(top):
            folders[:] = [each for each in folders if not each.startswith(_OWN_MARK)]
            for name in names:
                path = os.path.join(parent, name)
                key = path[len(self._base) + 1 :]
                if name.startswith(_OWN_MARK) or key <= after:
                    continue
                try:
                    found.append(ObjectInfo(key, os.stat(path).st_size))
                except FileNotFoundError:
                    continue
        found.sort(key=lambda info: info.key.encode())
        return found

    @contextmanager
    def _draft(self, folder: str, content: Buffer, tag: str | None) -> Iterator[str]:
        """Write a file that is no object yet; it is removed at the end, unless it was renamed."""
        self._make_folder(folder)
        path = os.path.join(folder, f"{_OWN_MARK}draft-{os.getpid()}-{secrets.token_hex(8)}")
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        try:
            try:
                left = memoryview(content).cast("B")
                while left:
                    left = left[os.write(handle, left) :]
                if tag is not None:
                    _set_tag(handle, tag)
                os.fsync(handle)
            finally:
                os.close(handle)
            yield path
        finally:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass  # It was renamed.

    def _make_folder(self, folder: str) -> None:
        """Make a folder of objects, durably. The directory itself is not made: it may be a mount that is missing."""
        if os.path.isdir(folder):
            return
        if not folder.startswith(f"{self._root}/"):
            raise FileNotFoundError(errno.ENOENT, "no such directory", folder)
        self._make_folder(os.path.dirname(folder))
        try:
            os.mkdir(folder)
        except FileExistsError:
            pass
        _sync_folder(os.path.dirname(folder))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        folder = os.path.join(self._root, _LOCK_FOLDER)
        self._make_folder(folder)
        path = os.path.join(folder, f"{crc32c(key.encode(), 0) % _LOCK_COUNT:02x}")
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            # Closing it ends the lock.
            os.close(handle)


def _version(content: bytes) -> ObjectVersion:
    return ObjectVersion(hashlib.blake2b(content, digest_size=_VERSION_BYTES).hexdigest())


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _set_tag(handle: int, tag: str) -> None:
    try:
        os.setxattr(handle, _TAG_ATTRIBUTE, tag.encode())
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise


def _sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
