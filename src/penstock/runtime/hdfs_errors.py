"""`hdfs_error`: what an error of HDFS means, in our words.

Two libraries tell them, hdfs-native and the HTTP service, and both name Java's class; so that is what is read, and of
some the text. What is none of Java's is about a connection, or is a panic of hdfs-native's, which no `Exception` is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.model.errors import (
    CorruptionError,
    NoSuchRemoteFileError,
    PenstockError,
    RemoteFileExistsError,
    RemoteFileLeasedError,
    StorageCredentialsError,
    StorageError,
    StorageFullError,
    StorageNotRespondingError,
    StorageSafeModeError,
    StorageUnreachableError,
)

_CLASS = re.compile(r"\b(?:org\.apache\.hadoop|java)\.[\w.$]*?(\w+Exception|\w+Error)\b")
#: A NameNode that answers while it is no active one yet, or no more.
_NOT_ACTIVE = ("StandbyException", "ObserverRetryOnActiveException")
_LEASED = ("AlreadyBeingCreatedException", "RecoveryInProgressException", "LeaseExpiredException")
_REFUSED = ("AccessControlException", "AuthorizationException", "SecretManager", "InvalidToken")
_NO_ROOM = ("No space left", "DiskOutOfSpace", "Not able to place enough replicas", "disk space is not available")
#: How a block without a place is told: no room, or no DataNode.
_NO_PLACE = re.compile(r"could only be (?:written|replicated) to 0.*?There are (\d+) datanode", re.DOTALL)
_BROKEN = (
    "DataTransferError", "OperationFailed", "RPC listener disconnected", "FatalRPCError", "IOError", "All nodes failed",
    "Connection refused", "os error", "Pipeline", "NotReplicatedYetException", "Could not obtain block",
    "BlockMissingException", "BlocksNotFound", "sufficiently replicated",
)  # fmt: skip
_LENGTH_MAX = 400
#: The class of what hdfs-native raises when it panics. No module gives it away, and its base is `BaseException`.
_PANIC = "PanicException"


@contextmanager
def told_in_our_words(place: str, path: str) -> Iterator[None]:
    """Raise `hdfs_error` of what the libraries raise meanwhile about the file `path` of `place`.

    Our errors pass, and so does what ends a thread or the program: of all that is no `Exception` only panics are told.
    """
    try:
        yield
    except PenstockError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
        raise hdfs_error(error, place, path) from error


def hdfs_error(error: BaseException, place: str, path: str, *, said: str = "") -> StorageError:
    """Return what an error about the file `path` of `place` means, as `FileStore` says.

    `said`: in place of its text.
    """
    text = said or str(error)
    line = _short(text) or type(error).__name__
    names = _CLASS.findall(text)
    name = names[0] if names else ""
    if "SafeModeException" in text or "in safe mode" in text:
        return StorageSafeModeError(
            f"{place} is in safe mode and takes no changes for now; after a start it leaves it by itself, else `hdfs "
            f"dfsadmin -safemode leave` does: {line}"
        )
    if "is not a directory" in text or "ParentNotDirectoryException" in text:
        return NoSuchRemoteFileError(path)
    if isinstance(error, PermissionError) or any(mark in text for mark in _REFUSED):
        return StorageCredentialsError(
            f"{place} does not permit this user what is asked about {path}: HADOOP_USER_NAME says who it is, and the "
            f"folder must be that user's. It said: {line}"
        )
    if isinstance(error, FileExistsError) or name in _LEASED or name == "FileAlreadyExistsException":
        if name in _LEASED or "lease" in text or "being created" in text or "recover" in text:
            return RemoteFileLeasedError(path, f"somebody writes to it, or did when his program died: {line}")
        return RemoteFileExistsError(path, line)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)) or name == "FileNotFoundException":
        return NoSuchRemoteFileError(path)
    if "QuotaExceededException" in text or any(mark in text for mark in _NO_ROOM):
        return StorageFullError(f"no space is left in {place}, or a quota is reached: {line}")
    if (found := _NO_PLACE.search(text)) is not None:
        if found[1] == "0":
            return StorageUnreachableError(f"{place} has no DataNode that runs: {line}")
        return StorageFullError(f"no DataNode of {place} has room for another block: {line}")
    if isinstance(error, NotADirectoryError):
        return NoSuchRemoteFileError(path)
    if "ChecksumError" in text or "ChecksumException" in text or "checksums didn't match" in text:
        return CorruptionError(f"{place}: {path}", 0, f"bytes did not arrive as they were written: {line}")
    if name in _NOT_ACTIVE:
        return StorageUnreachableError(f"{place} has no active NameNode for now: {line}")
    if isinstance(error, TimeoutError) or "timed out" in text:
        return StorageNotRespondingError(f"{place} did not answer in time; what was asked may still happen: {line}")
    if isinstance(error, OSError) or any(mark in text for mark in _BROKEN):
        return StorageUnreachableError(
            f"{place} cannot be reached, or the connection broke, with an unknown outcome: {line}"
        )
    if not isinstance(error, Exception):
        return StorageError(f"{place}: the library panicked about {path}, with an unknown outcome: {line}")
    return StorageError(f"{place} could not do what was asked about {path}: {line}")


def _short(text: str) -> str:
    """Return what is for people of an error: no stack of Java's."""
    line = re.split(r"\n\s*at |\\n\\?t?at ", text, maxsplit=1)[0].replace("\n", " ").strip()
    return line if len(line) <= _LENGTH_MAX else line[:_LENGTH_MAX] + "..."
