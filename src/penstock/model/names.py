"""Names of scopes, streams and segments, and their rules.

A stream segment is called ``<scope>/<stream>/<number>.#epoch.<epoch>``; a transaction segment appends
``#transaction.<32 hex>``, a transient one ``#transient.<32 hex>.<32 hex>``.

Source: Pravega NameUtils; wire protocol, segment name grammar.
"""

from __future__ import annotations

import re
from typing import NewType

from penstock.model.errors import InvalidNameError

#: The upper half of a transaction id, shifted right by this, is the epoch that it was created in.
EPOCH_SHIFT = 32

#: Characters that make a name a pattern of names.
PATTERN_CHARACTERS = frozenset("*?[")
#: 64-bit id of a segment of a stream: (epoch << 32) | number.
SegmentId = NewType("SegmentId", int)
ContainerId = NewType("ContainerId", int)

SCOPE_NAME_LENGTH_MAX = 255
STREAM_NAME_LENGTH_MAX = 255
USER_NAME_LENGTH_MAX = 250

SYSTEM_SCOPE = "_system"
#: Prefix of the name of a stream of watermarks: the rest is the name of the stream that it belongs to.
MARK_STREAM_PREFIX = "_MARK"
#: Prefix of the name of a reader group's state stream: the rest is the name of the group.
STATE_STREAM_PREFIX = "_RG"
#: Prefix of names in the root of long-term storage that are reserved for the storage.
STORAGE_NAME_PREFIX = "penstock-storage."
#: Names reserved by a file system or an object store: HDFS and NFS servers have ``.snapshot``, HDFS has ``.reserved``,
#: Google's object store has ``.well-known``.
_FILE_SYSTEM_NAMES = frozenset({".", "..", ".snapshot", ".reserved", ".well-known"})
EPOCH_DELIMITER = ".#epoch."
TRANSACTION_DELIMITER = "#transaction."
TRANSIENT_DELIMITER = "#transient."
INDEX_SUFFIX = "#index"
KEY_VALUE_TABLE_SUFFIX = "_kvtable"
READER_GROUP_TABLE_SUFFIX = "_penstockrg"

_INTERNAL_NAME = re.compile(r"_?[A-Za-z0-9.-]+\Z")
_USER_NAME = re.compile(r"[A-Za-z0-9.-]+\Z")
_HEX32 = re.compile(r"[0-9a-f]{32}\Z")
#: Characters of a name shown in an error.
_SHOWN_LENGTH_MAX = 80


def _check(kind: str, name: str, pattern: re.Pattern[str], length_max: int) -> str:
    if not pattern.match(name) or len(name) > length_max:
        shown = name if len(name) <= _SHOWN_LENGTH_MAX else f"{name[:_SHOWN_LENGTH_MAX]}... ({len(name)} characters)"
        raise InvalidNameError(
            f"{kind} name {shown!r}: use 1 to {length_max} of the characters a-z, A-Z, 0-9, '.' and '-'"
        )
    return name


def _check_no_file_system_name(kind: str, name: str) -> None:
    if name in _FILE_SYSTEM_NAMES:
        raise InvalidNameError(
            f"{kind} name {name!r}: file systems or object stores used as long-term storage reserve it; choose "
            "another name"
        )


def check_new_scope_name(name: str) -> str:
    """Return `name` if a scope of that name can be created, with every kind of long-term storage.

    A scope is the first part of the names of files and objects, so it must not be reserved for the storage. One leading
    underscore is allowed. Raises `InvalidNameError`.
    """
    check_scope_name(name)
    _check_no_file_system_name("scope", name)
    if name.startswith(STORAGE_NAME_PREFIX):
        raise InvalidNameError(
            f"scope name {name!r}: names that begin with {STORAGE_NAME_PREFIX!r} are reserved for long-term storage; "
            "choose another name"
        )
    return name


def check_new_stream_name(name: str) -> str:
    """Return `name` if a stream of that name, and all names derived from it, can be created.

    One leading underscore is allowed, for the state streams of reader groups; streams of watermarks are never created
    on their own. Raises `InvalidNameError`.
    """
    check_stream_name(name)
    _check_no_file_system_name("stream", name)
    if name.startswith(MARK_STREAM_PREFIX):
        raise InvalidNameError(
            f"stream name {name!r}: streams of watermarks are created with the streams that they belong to; choose a "
            f"name that does not begin with {MARK_STREAM_PREFIX!r}"
        )
    if not name.startswith("_") and len(name) > USER_NAME_LENGTH_MAX:
        raise InvalidNameError(
            f"stream name {name[:_SHOWN_LENGTH_MAX]!r}... has {len(name)} characters, {USER_NAME_LENGTH_MAX} are "
            f"possible: the stream of its watermarks is called {MARK_STREAM_PREFIX} and its name, with "
            f"{STREAM_NAME_LENGTH_MAX} characters at most; choose a shorter name"
        )
    return name


def check_users_new_scope_name(name: str) -> str:
    """Return `name` if a user can create a scope of that name: `check_new_scope_name`, and no leading underscore."""
    _check_not_internal("scope", name)
    return check_new_scope_name(name)


def check_users_new_stream_name(name: str) -> str:
    """Return `name` if a user can create a stream of that name: `check_new_stream_name`, and no leading underscore."""
    _check_not_internal("stream", name)
    return check_new_stream_name(name)


def check_written_stream_name(name: str) -> str:
    """Return `name` unless that stream belongs to another stream or to a reader group.

    User data would make the watermarks, or the state of the group, unreadable. Raises `InvalidNameError`.
    """
    for prefix, owner in ((MARK_STREAM_PREFIX, "the watermarks of stream"), (STATE_STREAM_PREFIX, "reader group")):
        if name.startswith(prefix):
            raise InvalidNameError(
                f"stream {name!r} holds what belongs to {owner} {name.removeprefix(prefix)!r}: users cannot write to it"
            )
    return name


def _check_not_internal(kind: str, name: str) -> None:
    if name.startswith("_"):
        raise InvalidNameError(
            f"{kind} name {name!r}: names that begin with '_' are reserved for the system's own {kind}s; choose a name "
            "without it"
        )


def check_scope_name(name: str) -> str:
    """Return `name` if a scope can have it (one leading underscore is allowed), else raise `InvalidNameError`.

    New scopes have additional rules: `check_new_scope_name`.
    """
    return _check("scope", name, _INTERNAL_NAME, SCOPE_NAME_LENGTH_MAX)


def check_stream_name(name: str) -> str:
    """Return `name` if a stream can have it (one leading underscore is allowed), else raise `InvalidNameError`.

    New streams have additional rules: `check_new_stream_name`.
    """
    return _check("stream", name, _INTERNAL_NAME, STREAM_NAME_LENGTH_MAX)


def check_user_name(kind: str, name: str) -> str:
    """Return `name` if it may name a reader group, reader, writer or table; `kind` appears in the error."""
    return _check(kind, name, _USER_NAME, USER_NAME_LENGTH_MAX)


def reader_group_table(scope: str, group_id: str) -> str:
    """Return the full name of the table segment with the record of the Python reader group of this id (a UUID).

    Each life of a group's name has its own table, so remains of an earlier one are harmless.
    """
    return segment_name(scope, group_id.replace("-", "") + READER_GROUP_TABLE_SUFFIX, 0)


def split_scoped_name(scoped: str) -> tuple[str, str]:
    """Split ``scope/stream`` into its two checked names."""
    scope, slash, stream = scoped.partition("/")
    if not slash:
        raise InvalidNameError(f"stream {scoped!r}: write it as 'scope/stream'")
    return check_scope_name(scope), check_stream_name(stream)


def segment_id(number: int, epoch: int) -> SegmentId:
    """Pack a segment's number and the epoch that created it."""
    return SegmentId((epoch << 32) | number)


def segment_number(segment: int) -> int:
    """Return the number part of a segment id."""
    return segment & 0xFFFFFFFF


def segment_epoch(segment: int) -> int:
    """Return the epoch part of a segment id."""
    return segment >> 32


def segment_name(scope: str, stream: str, segment: int) -> str:
    """Return the full name of a stream segment on the segment store."""
    return f"{scope}/{stream}/{segment_number(segment)}{EPOCH_DELIMITER}{segment_epoch(segment)}"


def transaction_segment_name(parent: str, high_bits: int, low_bits: int) -> str:
    """Return the name of a transaction's segment beside `parent`."""
    return f"{parent}{TRANSACTION_DELIMITER}{high_bits & (2**64 - 1):016x}{low_bits & (2**64 - 1):016x}"


def transient_segment_name(parent: str, writer_id: bytes, nonce: bytes) -> str:
    """Return the name of a transient segment of `writer_id`; `nonce` is 16 random bytes."""
    return f"{parent}{TRANSIENT_DELIMITER}{writer_id.hex()}.{nonce.hex()}"


def parse_segment_name(name: str) -> tuple[str, str, SegmentId]:
    """Split a stream segment's full name into scope, stream and segment id.

    A name without an epoch reads as epoch 0.
    """
    parts = name.split("/")
    if len(parts) != 3:
        raise InvalidNameError(f"segment {name!r}: write it as 'scope/stream/number{EPOCH_DELIMITER}epoch'")
    number, _, epoch = parts[2].partition(EPOCH_DELIMITER)
    if not number.isdecimal() or (epoch and not epoch.isdecimal()):
        raise InvalidNameError(f"segment {name!r}: number and epoch must be decimal")
    return parts[0], parts[1], segment_id(int(number), int(epoch or 0))


def parent_segment_name(name: str) -> str:
    """Return the segment that a transaction, transient or index segment belongs to; other names as they are."""
    for delimiter in (TRANSACTION_DELIMITER, TRANSIENT_DELIMITER):
        at = name.rfind(delimiter)
        if at >= 0 and len(name) - at - len(delimiter) >= 32 and _HEX32.match(name[at + len(delimiter) :][:32]):
            return name[:at]
    return name.removesuffix(INDEX_SUFFIX)


def is_transient_segment(name: str) -> bool:
    """Return whether `name` names a transient segment (a large event under construction)."""
    at = name.rfind(TRANSIENT_DELIMITER)
    return at >= 0 and len(name) - at - len(TRANSIENT_DELIMITER) >= 32


def index_segment_name(segment: str) -> str:
    """Return the name of the segment that stores append boundaries of `segment`."""
    return f"{segment}{INDEX_SUFFIX}"


def is_index_segment(name: str) -> bool:
    """Return whether `name` names an index segment: an internal segment beside a segment of a stream."""
    return name.endswith(INDEX_SUFFIX)


def has_index_segment(name: str) -> bool:
    """Return whether a segment of this name may have an index segment: permanent segments with a stream's events."""
    return parent_segment_name(name) == name


def is_written_for_readers(name: str) -> bool:
    """Return whether a segment is internal or holds reader coordination: its writes continue when users' writes wait.

    These are the system scope, streams that Pravega creates itself (their names begin with ``_``), and tables of reader
    groups.
    """
    scope, _, rest = name.partition("/")
    stream = rest.partition("/")[0]
    return scope == SYSTEM_SCOPE or stream.startswith("_") or stream.endswith(READER_GROUP_TABLE_SUFFIX)


def is_mark_segment(name: str) -> bool:
    """Return whether `name` names a segment of a stream of watermarks."""
    return name.partition("/")[2].startswith(MARK_STREAM_PREFIX)


def primary_name(name: str) -> str:
    """Return the part of a segment's name that selects its container: no transaction or transient suffix, no epoch."""
    return parent_segment_name(name).partition(EPOCH_DELIMITER)[0]
