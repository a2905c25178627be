"""Errors about one segment, and about the container that it is in."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors.root import InvalidArgumentError, PenstockError

#: As `penstock.model.segments` has them, which builds on this module.
_VERSION_ABSENT = -1
_VERSION_UNKNOWN = -(1 << 63)


class SegmentError(PenstockError):
    """A request about one segment could not be done. `segment` is its full name."""

    def __init__(self, segment: str, message: str) -> None:
        super().__init__(f"{segment}: {message}")
        self.segment = segment


class NoSuchSegmentError(SegmentError):
    """The segment does not exist (never created, deleted, or merged away)."""

    def __init__(self, segment: str, message: str = "no such segment") -> None:
        super().__init__(segment, message)


class SegmentExistsError(SegmentError):
    """A segment of that name exists already."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment exists already")


class SegmentInactiveError(SegmentError):
    """The segment is not in its container's memory. It may exist: activate it, or learn that it does not."""

    is_retriable = True

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment is not in memory")


class AttributesNotLoadedError(SegmentError):
    """Attribute values that a request depends on (`attribute_ids`) are not in memory: load them and try again."""

    is_retriable = True

    def __init__(self, segment: str, attribute_ids: Sequence[bytes]) -> None:
        super().__init__(segment, f"{len(attribute_ids)} attributes are not in memory")
        self.attribute_ids = attribute_ids


class SegmentBackloggedError(SegmentError):
    """Too much of the segment waits for long-term storage, which does not take it. Nothing was done."""

    is_retriable = True

    def __init__(self, segment: str, *, byte_count: int, bytes_max: int, held_s: float) -> None:
        super().__init__(
            segment,
            f"{byte_count} bytes of it wait for long-term storage, at most {bytes_max} may, and none were accepted "
            f"within {held_s:g} s; see the segment store's log for why its flush fails; try again later",
        )
        self.byte_count = byte_count
        self.bytes_max = bytes_max


class SegmentStoreBusyError(SegmentError):
    """The segment store has no room for what was asked at the moment. Nothing was done; try again later."""

    is_retriable = True


class TooManyTransientSegmentsError(SegmentStoreBusyError):
    """`whose` has as many transient segments as it may have: large events that are being written. Nothing was done.

    `setting`: the name of the limit, `count_max`: its value.
    """

    def __init__(self, segment: str, *, whose: str, count_max: int, setting: str) -> None:
        super().__init__(
            segment,
            f"{whose} has {count_max} transient segments (large events that are being written), which is the limit "
            f"({setting}); try again after one is merged or deleted",
        )
        self.count_max = count_max
        self.setting = setting


class TooManyActiveSegmentsError(SegmentStoreBusyError):
    """The container has no room for another active segment, and none could be put away. Nothing was done."""

    def __init__(self, segment: str, *, active_count: int, active_max: int, reason: str) -> None:
        super().__init__(
            segment,
            f"{active_count} segments are active in its container, {active_max} are allowed, and none can be "
            f"unloaded: {reason}; try again after long-term storage has caught up",
        )
        self.active_count = active_count
        self.active_max = active_max


class SegmentSealedError(SegmentError):
    """The segment is sealed; ask the controller for its successors."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "the segment is sealed; continue with its successors")


class SegmentMergedError(SegmentError):
    """The segment was merged into another one and holds nothing of its own any more."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "segment was merged into another one")


class SegmentTruncatedError(SegmentError):
    """`offset` lies before `start_offset`, the first byte that still exists."""

    def __init__(self, segment: str, *, start_offset: int, offset: int) -> None:
        super().__init__(segment, f"offset {offset} is not available, the segment starts at {start_offset}")
        self.start_offset = start_offset
        self.offset = offset


class PositionBeyondEndError(SegmentError, InvalidArgumentError):
    """A `position` to read from lies beyond the `end` of the segment, both in bytes: the data before it are lost.

    What was read is durable, so the segment store was restored from an older backup, or the stream was deleted and
    created again under its name. Reading on there would begin inside an event once the segment is long enough.
    """

    def __init__(self, segment: str, *, position: int, end: int, message: str = "") -> None:
        super().__init__(
            segment,
            message
            or f"position {position} is after the end of the segment, byte {end}: the data before it was lost, as "
            "after a restore from an older backup, or the stream was deleted and created again. The position "
            "cannot be read, even after the segment grows. Start at a position that exists: reset the reader "
            "group, seek, or take a new "
            "stream cut",
        )
        self.position = position
        self.end = end


class BadOffsetError(SegmentError):
    """A conditional request named an offset (`expected`) that is not the current one (`actual`)."""

    def __init__(self, segment: str, *, expected: int, actual: int) -> None:
        super().__init__(segment, f"expected offset {expected}, found {actual}")
        self.expected = expected
        self.actual = actual


class BadEventNumberError(SegmentError):
    """The writer's stored event number is not the one this connection remembers: another connection wrote."""

    def __init__(self, segment: str, *, writer_id: bytes, event_number: int, stored: int) -> None:
        super().__init__(
            segment, f"event number {event_number} of writer {writer_id.hex()} does not follow the stored {stored}"
        )
        self.writer_id = writer_id
        self.event_number = event_number
        self.stored = stored


class BadAttributeError(SegmentError):
    """A conditional attribute update found another value (`actual`) than it demanded (`expected`)."""

    def __init__(self, segment: str, *, attribute_id: bytes, expected: int, actual: int) -> None:
        super().__init__(segment, f"attribute {attribute_id.hex()} is {actual}, expected {expected}")
        self.attribute_id = attribute_id
        self.expected = expected
        self.actual = actual


def _shown(key: bytes) -> str:
    """Return a key as messages show it: without the zeros that fill it up to its table's length, as text if it is."""
    stripped = key.rstrip(b"\0")
    try:
        text = stripped.decode()
    except UnicodeDecodeError:
        return repr(stripped)
    return repr(text) if text.isprintable() else repr(stripped)


class TableNotEmptyError(SegmentError):
    """A table segment that must be empty to be deleted still holds keys."""

    def __init__(self, segment: str) -> None:
        super().__init__(segment, "table segment is not empty")


class TableConditionError(SegmentError):
    """What a change of a table was conditional on did not hold. Nothing was changed.

    `key`: of several, the first with a condition; a server does not say which did not hold.
    """

    def __init__(self, segment: str, message: str, *, key: bytes) -> None:
        super().__init__(segment, message)
        self.key = key


class TableKeyMissingError(TableConditionError, KeyError):
    """A key that had to exist does not: a change demanded a version of it, or it was asked for as ``table[key]``.

    Also a `KeyError`.
    """

    def __init__(self, segment: str, *, key: bytes) -> None:
        super().__init__(segment, f"key {_shown(key)} does not exist", key=key)

    def __str__(self) -> str:
        # A `KeyError` would show its message in quotes.
        return Exception.__str__(self)


class TableKeyVersionError(TableConditionError):
    """A conditional table update found another version (`actual`) than it demanded (`expected`).

    -1 means "no such key". `actual` is -2**63 where it is not known: a server does not say it.
    """

    def __init__(self, segment: str, *, key: bytes, expected: int, actual: int) -> None:
        wanted = "not to exist" if expected == _VERSION_ABSENT else f"to have version {expected}"
        found = "another one" if actual == _VERSION_UNKNOWN else f"version {actual}"
        super().__init__(segment, f"key {_shown(key)} was expected {wanted}, but has {found}", key=key)
        self.expected = expected
        self.actual = actual


class ContainerNotFoundError(PenstockError):
    """The segment's container is not run by this segment store; ask the controller for its host."""

    is_retriable = True

    def __init__(self, container_id: int | None, message: str = "container is not hosted here") -> None:
        """`container_id`: None where it is not known."""
        super().__init__(message if container_id is None else f"container {container_id}: {message}")
        self.container_id = container_id


class ContainerOfflineError(PenstockError):
    """The container has stopped, or has not finished its recovery. Nothing was applied; try again."""

    is_retriable = True

    def __init__(self, container_id: int, message: str = "container is offline") -> None:
        super().__init__(f"container {container_id}: {message}")
        self.container_id = container_id


class OwnershipUnconfirmedError(ContainerOfflineError):
    """The container could not confirm the ownership of its log for too long: its state may be out of date."""

    def __init__(self, container_id: int, *, confirmed_before_s: float, lease_s: float) -> None:
        super().__init__(
            container_id,
            f"its log has not confirmed its ownership for {confirmed_before_s:.1f} s, more than {lease_s:g} s "
            "(ownership_lease_s): its state may be out of date",
        )
