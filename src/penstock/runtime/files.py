"""`FileStore`: files of a remote file system such as HDFS. The part of the determinism seam for them.

Production uses `penstock.runtime.hdfs_files`; the simulation uses a file system in memory that answers late, twice or
never. As far as this program controls it, requests are sent once: the caller decides how to treat an unknown outcome.

A file has one writer at a time, which holds its *lease*. A writer that died holds the lease until it is recovered, by
another client or after minutes by the file system itself; recovering a lease fences the writer. Bytes after the last
sync of a file are undefined until its writer syncs them, and may become part of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.runtime.work import BlockingWork, PoolSettings

#: URL schemes of supported file systems.
FILE_SCHEMES = ("hdfs",)
#: Default port of HDFS's HTTP service on the NameNode.
WEBHDFS_PORT = 9870
#: HDFS bounds a path at 8 000 characters, and the names of chunks need a part of it.
ROOT_BYTES_MAX = 1000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a file system reports about one entry.

    Attributes:
        name: the last part of its path.
        is_folder: whether it is a folder.
        length_bytes: length of a file. While it is being written: as of the last sync, or less.
    """

    name: str
    is_folder: bool
    length_bytes: int


@dataclass(frozen=True, slots=True)
class FileStoreSettings:
    """How HDFS is reached, and the time limits of its requests.

    Attributes:
        webhdfs: URL of the HTTP service, ``http://host:port``. Empty: the NameNode's host and port 9870.
        user: the user name, where HDFS does not authenticate. Empty: ``HADOOP_USER_NAME``, else this process's user.
        replication: copies of each block. 0: the NameNode's default.
        block_bytes: length of a block. 0: the NameNode's default.
        connect_timeout_s: time for a connection to the HTTP service.
        request_timeout_s: time for each step of a request to it.
        copies_wait_s: how long after a change of a file an append waits until the NameNode knows of all copies; then
            another file is started.
        reads: the pool for reads of files, with the time limit of one.
        writes: the pool for creations and appends.
        names: the pool for everything else.
    """

    webhdfs: str = ""
    user: str = ""
    replication: int = 0
    block_bytes: int = 0
    connect_timeout_s: float = 5.0
    request_timeout_s: float = 20.0
    copies_wait_s: float = 3.0
    reads: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=8, hung_count_max=16, timeout_s=30.0)
    )
    writes: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=8, hung_count_max=16, timeout_s=30.0)
    )
    names: PoolSettings = field(
        default_factory=lambda: PoolSettings(thread_count_max=4, hung_count_max=8, timeout_s=30.0)
    )

    def __post_init__(self) -> None:
        """Check the values. Raises `InvalidArgumentError`."""
        if self.webhdfs and not self.webhdfs.startswith(("http://", "https://")):
            raise InvalidArgumentError(f"webhdfs is {self.webhdfs!r}: it is a URL, http://host:port")


class FileStore(Protocol):
    """Files of one file system. Paths are absolute, without empty parts, ``.`` and ``..``.

    Each call may raise, besides the errors it names:

        StorageCredentialsError: this user has no permission; nothing happened.
        StorageSafeModeError: the file system is read-only at present; nothing happened.
        StorageFullError: no space, or a quota is reached.
        StorageUnreachableError: no connection, or it broke; the request may have been executed.
        StorageNotRespondingError: no answer in time; the request may still be executed.
        CorruptionError: no copy of the bytes matches its checksum.
        StorageError: anything else; the request may have been executed.
    """

    @property
    def place(self) -> str:
        """The URL of the file system, for messages."""

    @property
    def name_part_bytes_max(self) -> int:
        """The longest path component that the file system accepts, in bytes of UTF-8."""

    async def create(self, path: str, content: Buffer) -> None:
        """Create a file and its folders; `content` is durable and the file closed when this returns.

        Of several callers one succeeds. A call that fails deletes the file it has created, if it can. After a time-out
        it may do that later, so its path must not be used again. Raises `RemoteFileExistsError`,
        `RemoteFileNotClosedError`.
        """

    async def append(self, path: str, offset: int, content: Buffer) -> None:
        """Append to a file whose length is `offset`, which is checked under its lease; durable when this returns.

        Raises `NoSuchRemoteFileError`, `RemoteFileLeasedError`, `RemoteFileLengthError`, `RemoteFileCopiesError`,
        `RemoteFileNotClosedError`.
        """

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (above 0) from `offset`; fewer only at the end of the file, none at or after it.

        Of a file that is being written: all that was synced. Raises `NoSuchRemoteFileError`.
        """

    async def stat(self, path: str) -> FileInfo:
        """Return the entry at a path. Raises `NoSuchRemoteFileError` (not for folders)."""

    async def list(self, folder: str) -> Sequence[FileInfo]:
        """Return the entries of a folder, sorted by name; an empty list if there is no such folder."""

    async def rename_new(self, source: str, target: str) -> None:
        """Rename a file atomically, unless the target exists.

        Raises `NoSuchRemoteFileError`, `RemoteFileExistsError`.
        """

    async def delete(self, path: str) -> None:
        """Delete a file, even while it is being written. Raises `NoSuchRemoteFileError`."""

    async def recover_lease(self, path: str) -> bool:
        """Fence the writer of a file; return whether that is done, else call again. Raises `NoSuchRemoteFileError`.

        Done means that the file is closed and contains all synced bytes.
        """

    async def truncate(self, path: str, length: int) -> bool:
        """Truncate a closed file to `length`; return whether that is done, otherwise it is once its lease is recovered.

        Raises `NoSuchRemoteFileError`, `RemoteFileLeasedError`.
        """

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """Append the blocks of closed files to another file, atomically; the sources no longer exist afterwards.

        All files are in one folder, none is empty, and no path has a comma. Raises `NoSuchRemoteFileError`.
        """

    async def close(self) -> None:
        """Accept no more calls. Waits briefly for calls in progress."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A folder of a file system, given as a URL: ``hdfs://host:port/path``.

    Attributes:
        scheme: one of `FILE_SCHEMES`.
        host: the NameNode, or the logical name of several in Hadoop's configuration.
        port: of the NameNode; 0 if none is given.
        root: the folder, absolute and without a trailing slash.
    """

    scheme: str
    host: str
    port: int
    root: str

    @classmethod
    def parse(cls, url: str) -> FilePlace:
        """Parse a URL. Raises `InvalidArgumentError`."""
        scheme, _, rest = url.partition("://")
        authority, _, path = rest.partition("/")
        host, mark, port = authority.rpartition(":") if ":" in authority else (authority, "", "")
        path = path.rstrip("/")
        wrong = f"{url!r} is not a folder of a file system: write hdfs://host:port/path"
        if scheme not in FILE_SCHEMES or not host or not path or any(each in url for each in "?#@"):
            raise InvalidArgumentError(wrong)
        if mark and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidArgumentError(f"{wrong}; {port!r} is not a port")
        if any(part in ("", ".", "..") for part in path.split("/")):
            raise InvalidArgumentError(f"{wrong}; a part of its path is empty, '.' or '..'")
        if len(path.encode()) > ROOT_BYTES_MAX:
            raise InvalidArgumentError(f"{wrong}; its path is above {ROOT_BYTES_MAX} bytes")
        return cls(scheme, host, int(port or 0), f"/{path}")

    @property
    def file_system(self) -> str:
        """The URL of the file system."""
        return f"{self.scheme}://{self.host}" + (f":{self.port}" if self.port else "")

    def __str__(self) -> str:
        return f"{self.file_system}{self.root}"


#: Opens the file system of a place. Does no I/O: the first call does. Raises `InvalidArgumentError` for unusable
#: settings, and when the libraries for it are not installed.
OpenFileStore = Callable[[FilePlace, FileStoreSettings, BlockingWork], FileStore]
