"""The stored form of a reader group's record: its key in the group's table, its parts, and reading it."""

from __future__ import annotations

from penstock.client.groups.group_packing import part_count, unpack_record
from penstock.client.groups.group_state import GroupState
from penstock.model.errors import NoSuchReaderGroupError
from penstock.model.segments import Segments

#: Key of the record, or of its first part.
RECORD_KEY = b"state"


def part_key(number: int) -> bytes:
    """Return the key of a further part of the record, from 1 on."""
    return b"%s/%d" % (RECORD_KEY, number)


async def read_group(segments: Segments, table: str) -> tuple[GroupState, int] | None:
    """Return the record in the table segment `table` and its version; None if it changed while its parts were read.

    Raises `NoSuchReaderGroupError` if there is none, `NoSuchSegmentError`, and `LaterVersionError` for a record of a
    later version.
    """
    (entry,) = await segments.table_get(table, [RECORD_KEY])
    if entry is None:
        raise NoSuchReaderGroupError(f"table {table} has no state of a reader group")
    parts = [entry.value]
    for number in range(1, part_count(entry.value)):
        (part,) = await segments.table_get(table, [part_key(number)])
        if part is None:
            return None
        parts.append(part.value)
    if len(parts) > 1:
        (again,) = await segments.table_get(table, [RECORD_KEY])
        if again is None or again.version != entry.version:
            return None
    return GroupState.decode(unpack_record(parts)), entry.version
