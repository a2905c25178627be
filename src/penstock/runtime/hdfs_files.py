"""`HdfsFiles`: `FileStore` by hdfs-native, and by HDFS's HTTP service where hdfs-native lacks an operation.

hdfs-native (Rust) blocks, and panics with a `BaseException` when bytes after the end of a file are requested. So each
call runs in a thread of a bounded pool, requests no more than there is, and translates every error. hdfs-native does
not survive a fork: calls in a child process are refused. It does not see the last block of a file that is being
written; WebHDFS reads that block.

An append goes to those copies of the last block that the NameNode knows of. A copy that it does not know of yet stays
as it was; if a later append fails, the recovery may truncate the block to the length of that copy and lose synced
bytes. So an append shortly after another change of the file waits until all copies are known, and is refused if that
takes too long.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from penstock.model.errors import (
    InvalidArgumentError,
    NoSuchRemoteFileError,
    RemoteFileCopiesError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    RemoteFileLengthError,
    RemoteFileNotClosedError,
    StorageError,
)
from penstock.model.segments import Buffer
from penstock.runtime.extras import missing_extra
from penstock.runtime.files import WEBHDFS_PORT, FileInfo, FilePlace, FileStoreSettings
from penstock.runtime.hdfs_errors import told_in_our_words
from penstock.runtime.webhdfs import WebHdfs
from penstock.runtime.work import BlockingWork, WorkPool

if TYPE_CHECKING:
    from hdfs_native import FileWriter

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: HDFS's default for ``dfs.namenode.fs-limits.max-component-length``.
_NAME_PART_BYTES_MAX = 255
_CLOSE_TIMEOUT_S = 1.0
_USER_VARIABLE = "HADOOP_USER_NAME"
#: Disables the library's retries, which take minutes while a NameNode is down. With several NameNodes it fails over.
_SINGLE_NAME_NODE = {"dfs.client.failover.max.attempts": "0"}
#: The text of HDFS's error when the calling client itself holds the lease of a file.
_OWN_LEASE = "already the current lease holder"
#: Files whose time of the last change is remembered, and the interval at which the copies of one are polled.
_CHANGED_MAX = 10_000
_COPIES_POLL_S = 0.02


def open_file_store(place: FilePlace, settings: FileStoreSettings, work: BlockingWork) -> HdfsFiles:
    """Return the file system of `place`. See `penstock.runtime.files.OpenFileStore`."""
    try:
        import hdfs_native
        import httpx
    except ImportError as error:
        raise InvalidArgumentError(missing_extra(str(place), "hdfs", error)) from error
    del hdfs_native, httpx
    if settings.user and os.environ.setdefault(_USER_VARIABLE, settings.user) != settings.user:
        # hdfs-native takes the user from this variable only.
        raise InvalidArgumentError(
            f"the user of HDFS is {settings.user!r} in the settings, {os.environ[_USER_VARIABLE]!r} in {_USER_VARIABLE}"
        )
    return HdfsFiles(place, settings, work)


class HdfsFiles:
    """See the module."""

    def __init__(self, place: FilePlace, settings: FileStoreSettings, work: BlockingWork) -> None:
        from hdfs_native import Client

        self._place = place.file_system
        self._settings = settings
        try:
            self._client = Client(place.file_system, config=_SINGLE_NAME_NODE if place.port else {})
        except (RuntimeError, ValueError, OSError) as error:
            raise InvalidArgumentError(f"{place} cannot be used: {error}") from error
        user = os.environ.get(_USER_VARIABLE) or getpass.getuser()
        url = settings.webhdfs or f"http://{place.host}:{WEBHDFS_PORT}"
        self._web = WebHdfs(url, place.file_system, user, settings)
        self._reads = work.pool("hdfs-reads", settings.reads)
        self._writes = work.pool("hdfs-writes", settings.writes)
        self._names = work.pool("hdfs-names", settings.names)
        self._process_id = os.getpid()
        self._changed_s: OrderedDict[str, float] = OrderedDict()
        self._changed_lock = threading.Lock()

    @property
    def place(self) -> str:
        """See `FileStore.place`."""
        return self._place

    @property
    def name_part_bytes_max(self) -> int:
        """See `FileStore.name_part_bytes_max`."""
        return _NAME_PART_BYTES_MAX

    async def create(self, path: str, content: Buffer) -> None:
        """See `FileStore.create`."""
        await self._run(self._writes, path, lambda: self._create(path, content))

    async def append(self, path: str, offset: int, content: Buffer) -> None:
        """See `FileStore.append`."""
        await self._run(self._writes, path, lambda: self._append(path, offset, content))

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """See `FileStore.read`."""
        return await self._run(self._reads, path, lambda: self._read(path, offset, length))

    async def stat(self, path: str) -> FileInfo:
        """See `FileStore.stat`."""
        return await self._run(self._names, path, lambda: self._stat(path))

    async def list(self, folder: str) -> Sequence[FileInfo]:
        """See `FileStore.list`."""
        return await self._run(self._names, folder, lambda: self._list(folder))

    async def rename_new(self, source: str, target: str) -> None:
        """See `FileStore.rename_new`."""
        await self._run(self._names, source, lambda: self._client.rename(source, target, overwrite=False))

    async def delete(self, path: str) -> None:
        """See `FileStore.delete`."""
        await self._run(self._names, path, lambda: self._delete(path))

    async def recover_lease(self, path: str) -> bool:
        """See `FileStore.recover_lease`."""
        return await self._run(self._names, path, lambda: self._recover_lease(path))

    async def truncate(self, path: str, length: int) -> bool:
        """See `FileStore.truncate`."""
        return await self._run(self._names, path, lambda: self._truncate(path, length))

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """See `FileStore.concat`."""
        await self._run(self._names, target, lambda: self._concat(target, sources))

    async def close(self) -> None:
        """See `FileStore.close`."""
        pools = (self._reads, self._writes, self._names)
        for pool in pools:
            pool.close()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                for pool in pools:
                    await pool.drained(with_abandoned=True)
        except TimeoutError:
            _log.warning("calls to %s are still running after %g s, and are abandoned", self._place, _CLOSE_TIMEOUT_S)
        self._web.close()

    async def _run(self, pool: WorkPool, path: str, function: Callable[[], T]) -> T:
        """Run a blocking function in a thread. An abandoned call may still take effect later, or never."""
        if pool.is_closed:
            raise StorageError(f"the file system {self._place} is closed")
        return await pool.run(self._translated, path, function)

    # -- in threads ---------------------------------------------------------------------------------------------

    def _translated(self, path: str, function: Callable[[], T]) -> T:
        if os.getpid() != self._process_id:
            raise StorageError(f"{self._place} was opened before this process was forked, and cannot be used in it")
        with told_in_our_words(self._place, path):
            return function()

    def _create(self, path: str, content: Buffer) -> None:
        from hdfs_native import WriteOptions

        settings = self._settings
        options = WriteOptions(
            block_size=settings.block_bytes or None, replication=settings.replication or None, create_parent=True
        )
        try:
            writer = self._client.create(path, options)
        except FileExistsError as error:
            # Open or closed, the file exists.
            raise RemoteFileExistsError(path, str(error), is_own=_OWN_LEASE in str(error)) from error
        try:
            self._write(path, writer, content)
        except RemoteFileNotClosedError:
            raise
        except StorageError as problem:
            # This call has created the file, and there is no other writer.
            try:
                with told_in_our_words(self._place, path):
                    self._client.delete(path)
            except StorageError as second:
                problem.add_note(f"and the incomplete {path} could not be deleted: {second}")
            raise

    def _append(self, path: str, offset: int, content: Buffer) -> None:
        self._wait_for_copies(path)
        try:
            writer = self._client.append(path)
        except FileExistsError as error:
            # The file is leased, or the path is a folder.
            if self._client.get_file_info(path).isdir:
                raise NoSuchRemoteFileError(path) from error
            raise RemoteFileLeasedError(path, f"it is open for writing, or its writer crashed: {error}") from error
        # This client holds the lease, so the length cannot change.
        length_bytes = self._client.get_file_info(path).length
        if length_bytes != offset:
            writer.close()
            raise RemoteFileLengthError(path, length_bytes=length_bytes, offset=offset)
        self._write(path, writer, content)

    def _write(self, path: str, writer: FileWriter, content: Buffer) -> None:
        """Write, sync and close. Only the sync confirms the write: the library accepts bytes even after a fencing."""
        with told_in_our_words(self._place, path):
            if len(content):
                writer.write(content)
                writer.hsync()
        try:
            with told_in_our_words(self._place, path):
                writer.close()
        except StorageError as error:
            raise RemoteFileNotClosedError(path, f"written and synced, but not closed: {error}") from error
        finally:
            self._note_change(path)

    def _note_change(self, path: str) -> None:
        with self._changed_lock:
            self._changed_s[path] = time.monotonic()
            self._changed_s.move_to_end(path)
            while len(self._changed_s) > _CHANGED_MAX:
                self._changed_s.popitem(last=False)

    def _wait_for_copies(self, path: str) -> None:
        """Wait until the NameNode knows of all copies of a recently changed file; see the module.

        Raises `RemoteFileCopiesError` when it takes too long.
        """
        with self._changed_lock:
            changed_s = self._changed_s.get(path)
        if changed_s is None or time.monotonic() - changed_s >= self._settings.copies_wait_s:
            return
        wanted = self._client.get_file_info(path).replication or 1
        while (known := self._web.copies(path)) is not None and known < wanted:
            if time.monotonic() - changed_s >= self._settings.copies_wait_s:
                raise RemoteFileCopiesError(path, known=known, wanted=wanted)
            time.sleep(_COPIES_POLL_S)

    def _read(self, path: str, offset: int, length: int) -> bytes:
        reader = self._client.read(path)
        closed_bytes = len(reader)
        end = offset + length
        if end > closed_bytes:
            # At the end, or in the last block of a file that is being written.
            end = min(end, max(closed_bytes, self._client.get_file_info(path).length))
        if end <= offset:
            return b""
        parts: list[bytes] = []
        if offset < closed_bytes:
            parts.append(bytes(reader.read_range(offset, min(end, closed_bytes) - offset)))
        if end > closed_bytes:
            start = max(offset, closed_bytes)
            parts.append(self._web.read(path, start, end - start))
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        if len(data) != end - offset:
            raise StorageError(
                f"{self._place}: {len(data)} of {end - offset} bytes of {path} were returned from offset {offset}"
            )
        return data

    def _stat(self, path: str) -> FileInfo:
        found = self._client.get_file_info(path)
        return FileInfo(path.rpartition("/")[2], found.isdir, found.length)

    def _list(self, folder: str) -> Sequence[FileInfo]:
        try:
            with told_in_our_words(self._place, folder):
                found = [
                    FileInfo(entry.path.rpartition("/")[2], entry.isdir, entry.length)
                    for entry in self._client.list_status(folder)
                    if entry.path != folder  # A file is listed as itself.
                ]
        except NoSuchRemoteFileError:
            return []
        return sorted(found, key=lambda info: info.name)

    def _delete(self, path: str) -> None:
        if self._client.get_file_info(path).isdir or not self._client.delete(path):
            raise NoSuchRemoteFileError(path)

    def _truncate(self, path: str, length: int) -> bool:
        try:
            return self._web.truncate(path, length)
        finally:
            self._note_change(path)

    def _concat(self, target: str, sources: Sequence[str]) -> None:
        try:
            self._web.concat(target, sources)
        finally:
            self._note_change(target)  # Its last block is that of a source, which may just have been written.

    def _recover_lease(self, path: str) -> bool:
        try:
            with told_in_our_words(self._place, path):
                return bool(self._client.recover_lease(path))
        except RemoteFileLeasedError:
            return False  # Another recovery is in progress.
        finally:
            self._note_change(path)
