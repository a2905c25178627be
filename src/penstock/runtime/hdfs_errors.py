"""`hdfs_error`: translates errors of HDFS into Penstock's errors.

Errors come from two libraries, hdfs-native and the HTTP client. Both name the Java class, by which errors are
classified; for some classes the text counts, too. Errors without a Java class are connection errors, or panics of
hdfs-native, which do not derive from `Exception`.
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
#: Errors of a NameNode that is not active, or not yet.
_NOT_ACTIVE = ("StandbyException", "ObserverRetryOnActiveException")
_LEASED = ("AlreadyBeingCreatedException", "RecoveryInProgressException", "LeaseExpiredException")
_REFUSED = ("AccessControlException", "AuthorizationException", "SecretManager", "InvalidToken")
_NO_ROOM = ("No space left", "DiskOutOfSpace", "Not able to place enough replicas", "disk space is not available")
#: The text of an error for a block that could not be placed: no space, or no DataNode.
_NO_PLACE = re.compile(r"could only be (?:written|replicated) to 0.*?There are (\d+) datanode", re.DOTALL)
_BROKEN = (
    "DataTransferError", "OperationFailed", "RPC listener disconnected", "FatalRPCError", "IOError", "All nodes failed",
    "Connection refused", "os error", "Pipeline", "NotReplicatedYetException", "Could not obtain block",
    "BlockMissingException", "BlocksNotFound", "sufficiently replicated",
)  # fmt: skip
_LENGTH_MAX = 400
#: The class that hdfs-native raises for a panic. No module exports it, and its base is `BaseException`.
_PANIC = "PanicException"


@contextmanager
def told_in_our_words(place: str, path: str) -> Iterator[None]:
    """Translate errors that the libraries raise in this context by `hdfs_error`. `path`: the file, on `place`.

    Penstock's errors pass unchanged. Of exceptions that do not derive from `Exception` only panics are translated.
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
    """Return the error of `FileStore` for an error about the file `path` of `place`.

    `said`: replaces the error's text.
    """
    text = said or str(error)
    line = _short(text) or type(error).__name__
    names = _CLASS.findall(text)
    name = names[0] if names else ""
    if "SafeModeException" in text or "in safe mode" in text:
        return StorageSafeModeError(
            f"{place} is in safe mode and accepts no changes; after a start it leaves safe mode automatically, "
            f"otherwise run `hdfs dfsadmin -safemode leave`: {line}"
        )
    if "is not a directory" in text or "ParentNotDirectoryException" in text:
        return NoSuchRemoteFileError(path)
    if isinstance(error, PermissionError) or any(mark in text for mark in _REFUSED):
        return StorageCredentialsError(
            f"{place} does not permit this operation on {path}: set HADOOP_USER_NAME to the user that owns the "
            f"folder. Answer: {line}"
        )
    if isinstance(error, FileExistsError) or name in _LEASED or name == "FileAlreadyExistsException":
        if name in _LEASED or "lease" in text or "being created" in text or "recover" in text:
            return RemoteFileLeasedError(path, f"it is open for writing, or its writer crashed: {line}")
        return RemoteFileExistsError(path, line)
    if isinstance(error, (FileNotFoundError, IsADirectoryError)) or name == "FileNotFoundException":
        return NoSuchRemoteFileError(path)
    if "QuotaExceededException" in text or any(mark in text for mark in _NO_ROOM):
        return StorageFullError(f"no space is left in {place}, or a quota is reached: {line}")
    if (found := _NO_PLACE.search(text)) is not None:
        if found[1] == "0":
            return StorageUnreachableError(f"{place} has no running DataNode: {line}")
        return StorageFullError(f"no DataNode of {place} has room for another block: {line}")
    if isinstance(error, NotADirectoryError):
        return NoSuchRemoteFileError(path)
    if "ChecksumError" in text or "ChecksumException" in text or "checksums didn't match" in text:
        return CorruptionError(f"{place}: {path}", 0, f"bytes were corrupted in transfer: {line}")
    if name in _NOT_ACTIVE:
        return StorageUnreachableError(f"{place} has no active NameNode at present: {line}")
    if isinstance(error, TimeoutError) or "timed out" in text:
        return StorageNotRespondingError(f"{place} did not answer in time; the operation may still take effect: {line}")
    if isinstance(error, OSError) or any(mark in text for mark in _BROKEN):
        return StorageUnreachableError(
            f"{place} cannot be reached, or the connection broke, with an unknown outcome: {line}"
        )
    if not isinstance(error, Exception):
        return StorageError(
            f"{place}: the library panicked during an operation on {path}, with an unknown outcome: {line}"
        )
    return StorageError(f"{place} could not carry out the operation on {path}: {line}")


def _short(text: str) -> str:
    """Return the text of an error without Java's stack trace."""
    line = re.split(r"\n\s*at |\\n\\?t?at ", text, maxsplit=1)[0].replace("\n", " ").strip()
    return line if len(line) <= _LENGTH_MAX else line[:_LENGTH_MAX] + "..."
