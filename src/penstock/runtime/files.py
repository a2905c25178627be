"""`FileStore`: files of somebody else's file system, as HDFS is one. The part of the determinism seam for them.

Production has `penstock.runtime.hdfs_files` behind it, the simulation a file system in memory that answers late, twice
or never. Requests are sent once, as far as this program can tell: what an unknown outcome means is decided by the
caller.

A file has one writer at a time, who holds its *lease*. A writer that died holds it until it is recovered, by somebody
else or by the file system itself after minutes; whoever recovers it shuts the writer out. What a file holds behind the
last sync is nobody's business but its writer's, and may become part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from penstock.model.errors import InvalidArgumentError
from penstock.model.segments import Buffer
from penstock.runtime.work import BlockingWork, PoolSettings

#: Schemes of the URLs of such file systems.
FILE_SCHEMES = ("hdfs",)
#: Where HDFS's HTTP service listens beside a NameNode, unless somebody moved it.
WEBHDFS_PORT = 9870
#: Names of chunks take their part of a path, which HDFS bounds at 8 000 characters.
ROOT_BYTES_MAX = 1000


@dataclass(frozen=True, slots=True)
class FileInfo:
    """What a file system says of one entry.

    Attributes:
        name: the last part of its path.
        is_folder: whether it is a folder.
        length_bytes: how long a file is. While it is written to: as of the last sync, or less.
    """

    name: str
    is_folder: bool
    length_bytes: int


@dataclass(frozen=True, slots=True)
class FileStoreSettings:
    """How HDFS is reached, and how long is tried.

    Attributes:
        webhdfs: URL of the HTTP service, ``http://host:port``. Empty: the NameNode's host and port 9870.
        user: who this is, where HDFS believes what it is told. Empty: ``HADOOP_USER_NAME``, else this process's user.
        replication: copies of each block. 0: as many as the NameNode says.
        block_bytes: length of a block. 0: as the NameNode says.
        connect_timeout_s: time for a connection to the HTTP service.
        request_timeout_s: time for each step of a request to it.
        copies_wait_s: how long behind a change of a file an append waits for the NameNode to hear of all copies; then
            another file is begun.
        reads: the pool for reads of files, with the time for one.
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
        """Check what no type says. Raises `InvalidArgumentError`."""
        if self.webhdfs and not self.webhdfs.startswith(("http://", "https://")):
            raise InvalidArgumentError(f"webhdfs is {self.webhdfs!r}: it is a URL, http://host:port")


class FileStore(Protocol):
    """Files of one file system. Paths are absolute, without empty parts, ``.`` and ``..``.

    Each call raises, besides what it says:

        StorageCredentialsError: this user may not; nothing happened.
        StorageSafeModeError: no changes are taken for now; nothing happened.
        StorageFullError: no room, or a quota is reached.
        StorageUnreachableError: no connection, or it broke; what was asked for may have happened.
        StorageNotRespondingError: no answer in time; what was asked for may still happen.
        CorruptionError: bytes did not arrive as they were written, from nobody who has them.
        StorageError: anything else; what was asked for may have happened.
    """

    @property
    def place(self) -> str:
        """Where it is, for people: its URL."""

    @property
    def name_part_bytes_max(self) -> int:
        """The longest part of a path between slashes that it takes, in bytes of UTF-8."""

    async def create(self, path: str, content: Buffer) -> None:
        """Create a file, its folders too; `content` is durable and the file closed at the end.

        Of several callers one succeeds. What a call has created that fails it deletes, if it can; one that did not
        answer in time may do that later, so its path must not be used again.
        Raises `RemoteFileExistsError`, `RemoteFileNotClosedError`.
        """

    async def append(self, path: str, offset: int, content: Buffer) -> None:
        """Append to a file whose length is `offset`, which is checked under its lease; it is durable at the end.

        Raises `NoSuchRemoteFileError`, `RemoteFileLeasedError`, `RemoteFileLengthError`, `RemoteFileCopiesError`,
        `RemoteFileNotClosedError`.
        """

    async def read(self, path: str, offset: int, length: int) -> bytes:
        """Return `length` bytes (above 0) from `offset` on, fewer only at the end; none at and behind it.

        Of a file that is written to: all that was synced. Raises `NoSuchRemoteFileError`.
        """

    async def stat(self, path: str) -> FileInfo:
        """Say what is there. Raises `NoSuchRemoteFileError` (not for folders)."""

    async def list(self, folder: str) -> Sequence[FileInfo]:
        """Return what is in a folder, sorted by name; nothing if there is no such folder."""

    async def rename_new(self, source: str, target: str) -> None:
        """Give a file another path, in one step, unless there is something.

        Raises `NoSuchRemoteFileError`, `RemoteFileExistsError`.
        """

    async def delete(self, path: str) -> None:
        """Delete a file, whoever writes to it. Raises `NoSuchRemoteFileError`."""

    async def recover_lease(self, path: str) -> bool:
        """Shut out whoever writes to a file; say whether that is done, else ask again. Raises `NoSuchRemoteFileError`.

        Done means that the file is closed, and that all that was synced is in it.
        """

    async def truncate(self, path: str, length: int) -> bool:
        """Cut a closed file to `length`; say whether that is done, else it is when its lease is recovered.

        Raises `NoSuchRemoteFileError`, `RemoteFileLeasedError`.
        """

    async def concat(self, target: str, sources: Sequence[str]) -> None:
        """Move the blocks of closed files behind those of another, in one step; the sources are gone then.

        All lie in one folder, none is empty, and no path has a comma. Raises `NoSuchRemoteFileError`.
        """

    async def close(self) -> None:
        """Take no more calls. Waits a little for what is under way."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """A folder of a file system, as people write it: ``hdfs://host:port/path``.

    Attributes:
        scheme: one of `FILE_SCHEMES`.
        host: the NameNode, or the name of several in Hadoop's configuration.
        port: of the NameNode; 0 if none is given.
        root: the folder, absolute and without a slash at its end.
    """

    scheme: str
    host: str
    port: int
    root: str

    @classmethod
    def parse(cls, url: str) -> FilePlace:
        """Read a URL. Raises `InvalidArgumentError`."""
        scheme, _, rest = url.partition("://")
        authority, _, path = rest.partition("/")
        host, mark, port = authority.rpartition(":") if ":" in authority else (authority, "", "")
        path = path.rstrip("/")
        wrong = f"{url!r} is no folder of a file system: write hdfs://host:port/path"
        if scheme not in FILE_SCHEMES or not host or not path or any(each in url for each in "?#@"):
            raise InvalidArgumentError(wrong)
        if mark and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise InvalidArgumentError(f"{wrong}; {port!r} is no port")
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


#: Opens the file system of a place. Waits for nothing, and asks nobody: the first call does. Raises
#: `InvalidArgumentError` for settings that cannot work, and when the libraries for it are not installed.
OpenFileStore = Callable[[FilePlace, FileStoreSettings, BlockingWork], FileStore]
