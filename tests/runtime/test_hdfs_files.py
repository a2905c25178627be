"""`HdfsFiles` and `hdfs_error` without an HDFS: what its errors mean, forks, and settings that cannot work."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from penstock.model.errors import (
    CorruptionError,
    InvalidArgumentError,
    NoSuchRemoteFileError,
    RemoteFileCopiesError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageSafeModeError,
    StorageUnreachableError,
)
from penstock.runtime.files import FilePlace, FileStoreSettings
from penstock.runtime.hdfs_errors import hdfs_error, told_in_our_words
from penstock.runtime.hdfs_files import open_file_store
from penstock.runtime.runtime import real_runtime

PLACE = FilePlace.parse("hdfs://127.0.0.1:1/root")
HDFS = "org.apache.hadoop.hdfs"


class _PanicError(BaseException):
    """As the library's panics, no `Exception`."""


def rpc(name: str, text: str) -> RuntimeError:
    """Return an error of the NameNode's, as hdfs-native 0.14.7 tells it."""
    return RuntimeError(f'RPCError("{name}", "{text}")')


NO_PLACE = "File /root/x could only be written to 0 of the 1 minReplication nodes. There are %d datanode(s) running."
SAFE = f"{HDFS}.server.namenode.SafeModeException"
RETRIABLE = "org.apache.hadoop.ipc.RetriableException"
DENIED = "org.apache.hadoop.security.AccessControlException"
#: As Hadoop 3.4.3 says it, shortened.
SAID: list[tuple[BaseException, type[StorageError]]] = [
    (rpc(SAFE, "Cannot create file/root/x. Name node is in safe mode."), StorageSafeModeError),
    (rpc(RETRIABLE, f"{SAFE}: Cannot append to file/root/x. Name node is in safe mode."), StorageSafeModeError),
    (rpc(DENIED, "Permission denied: user=alice, access=WRITE, inode=/root:root:supergroup"), StorageCredentialsError),
    (rpc(DENIED, "/root/x (is not a directory)"), NoSuchRemoteFileError),
    (rpc("org.apache.hadoop.fs.ParentNotDirectoryException", "/root/x (is not a directory)"), NoSuchRemoteFileError),
    (FileNotFoundError("File does not exist: /root/x"), NoSuchRemoteFileError),
    (IsADirectoryError("/root"), NoSuchRemoteFileError),
    (FileExistsError("/root/x for client 127.0.0.1 already exists"), RemoteFileExistsError),
    (FileExistsError("/root/x: this file lease is currently owned by another"), RemoteFileLeasedError),
    (rpc(f"{HDFS}.protocol.RecoveryInProgressException", "/root/x: in recovery"), RemoteFileLeasedError),
    (rpc(f"{HDFS}.protocol.DSQuotaExceededException", "The DiskSpace quota of /root is exceeded"), StorageFullError),
    (rpc(f"{HDFS}.protocol.NSQuotaExceededException", "The NameSpace quota of /root is exceeded"), StorageFullError),
    (rpc("java.io.IOException", NO_PLACE % 2), StorageFullError),
    (rpc("java.io.IOException", NO_PLACE % 0), StorageUnreachableError),
    (rpc("org.apache.hadoop.ipc.StandbyException", "not supported in state standby"), StorageUnreachableError),
    (rpc(RETRIABLE, f"{HDFS}.server.namenode.NotReplicatedYetException: /root/x"), StorageUnreachableError),
    (OSError("Connection refused (os error 111)"), StorageUnreachableError),
    (RuntimeError('DataTransferError("Datanode connection closed while waiting for ack")'), StorageUnreachableError),
    (TimeoutError("timed out"), StorageNotRespondingError),
    (RuntimeError("ChecksumError"), CorruptionError),
    (_PanicError("Cannot read past end of the file"), StorageError),
    (RuntimeError('InternalError("something else")'), StorageError),
]


@pytest.mark.parametrize(("error", "meaning"), SAID, ids=lambda value: str(value)[:60])
def test_each_hdfs_error_has_its_own_class(error: BaseException, meaning: type[StorageError]) -> None:
    found = hdfs_error(error, "hdfs://node:8020", "/root/x")
    assert type(found) is meaning
    assert "/root/x" in str(found) or "hdfs://node:8020" in str(found)
    assert len(str(found)) < 1000


class PanicException(BaseException):  # The library's name.
    pass


def test_a_panic_is_reported_and_exits_pass_through() -> None:
    place, path = "hdfs://node:8020", "/root/x"
    wanted = "the library panicked during an operation on /root/x"
    with pytest.raises(StorageError, match=wanted), told_in_our_words(place, path):
        raise PanicException("Cannot read past end of the file")
    for error in (SystemExit(3), KeyboardInterrupt(), NoSuchRemoteFileError("/root/y")):
        with pytest.raises(type(error)) as caught, told_in_our_words(place, path):
            raise error
        assert caught.value is error


def test_a_forked_child_is_refused() -> None:
    """The library would hang in it."""
    runtime = real_runtime(1)
    files = open_file_store(PLACE, FileStoreSettings(), runtime.work)
    process_id = os.fork()
    if not process_id:
        try:
            files._translated("/root/x", lambda: os._exit(1))
        except StorageError as error:
            os._exit(42 if "forked" in str(error) else 2)
        os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]) == 42

    async def close() -> None:
        await files.close()
        with pytest.raises(StorageError, match="closed"):
            await files.stat("/root/x")
        await runtime.work.close()

    asyncio.run(close())


async def test_an_append_waits_for_all_copies_and_is_refused_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataNode that took the bytes reports them late, or not in time; what was changed long ago is not asked.

    What WebHDFS answers is what a NameNode does that has not heard of a copy.
    """
    runtime = real_runtime(1)
    files = open_file_store(PLACE, FileStoreSettings(copies_wait_s=0.3), runtime.work)

    class Client:
        def get_file_info(self, path: str) -> object:
            return type("Info", (), {"replication": 2, "isdir": False, "length": 3})

        def append(self, path: str) -> object:
            raise FileNotFoundError(path)  # It has come so far.

    answers: list[int | None] = []
    asked: list[int | None] = []

    def ask(method: str, path: str, query: dict[str, str]) -> object:
        assert query == {"op": "GET_BLOCK_LOCATIONS"}
        asked.append(answers.pop(0) if len(answers) > 1 else answers[0])
        last = None if asked[-1] is None else {"locations": [{}] * asked[-1]}  # type: ignore[var-annotated]
        blocks = {"LocatedBlocks": {"lastLocatedBlock": last}}
        return type("Answer", (), {"json": lambda self: blocks})()

    monkeypatch.setattr(files, "_client", Client())
    monkeypatch.setattr(files._web, "_ask", ask)
    answers[:] = [1, 1, 2]
    files._note_change("/root/x")
    with pytest.raises(NoSuchRemoteFileError):
        await files.append("/root/x", 3, b"more")
    assert asked == [1, 1, 2]
    # It is empty: there is nothing to be lost.
    answers[:] = [None]
    files._note_change("/root/x")
    with pytest.raises(NoSuchRemoteFileError):
        await files.append("/root/x", 3, b"more")
    answers[:] = [1]
    files._note_change("/root/x")
    with pytest.raises(RemoteFileCopiesError) as raised:
        await files.append("/root/x", 3, b"more")
    assert (raised.value.known, raised.value.wanted) == (1, 2)
    asked.clear()
    with pytest.raises(NoSuchRemoteFileError):
        await files.append("/root/x", 3, b"more")
    assert asked == []
    await files.close()
    await runtime.work.close()


async def test_two_users_in_one_process_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes the user from the environment alone."""
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    runtime = real_runtime(1)
    await open_file_store(PLACE, FileStoreSettings(user="alice"), runtime.work).close()
    with pytest.raises(InvalidArgumentError, match="HADOOP_USER_NAME"):
        open_file_store(PLACE, FileStoreSettings(user="bob"), runtime.work)
    await runtime.work.close()


@pytest.mark.parametrize("module", ["hdfs_native", "httpx"])
async def test_without_its_libraries_hdfs_is_refused(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """As in the core install."""
    monkeypatch.setitem(sys.modules, module, None)
    runtime = real_runtime(1)
    with pytest.raises(InvalidArgumentError, match=r"the extra 'hdfs' of Penstock"):
        open_file_store(PLACE, FileStoreSettings(), runtime.work)
    await runtime.work.close()
