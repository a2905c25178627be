"""Checks of bytes, offsets and epochs: readers agree, and nothing goes back. Linear in the history and its bytes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from penstock_simulation.checks.history_events import (
    AppendBytes,
    EpochStarted,
    GetLength,
    History,
    OffsetSeen,
    Outcome,
    ReadRange,
)

_PAGE = 4096


class _Known:
    """Bytes of one segment that a client has read or has a reply about, in pages with a mask."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[bytearray, bytearray]] = {}

    def merge(self, offset: int, data: bytes) -> int | None:
        """Add bytes; return the offset of the first that contradicts what is known, None if there is none."""
        position = 0
        while position < len(data):
            number, inside = divmod(offset + position, _PAGE)
            piece = data[position : position + _PAGE - inside]
            content, mask = self._pages.setdefault(number, (bytearray(_PAGE), bytearray(_PAGE)))
            end = inside + len(piece)
            known = mask[inside:end]
            if any(known) and content[inside:end] != piece:
                for at, byte in enumerate(piece):
                    if known[at] and content[inside + at] != byte:
                        return offset + position + at
            content[inside:end] = piece
            mask[inside:end] = b"\1" * len(piece)
            position += len(piece)
        return None


def check_reads(history: History) -> list[str]:
    """Return where readers disagree: every byte of a segment has one value for all reads and acknowledged appends."""
    known: dict[str, _Known] = defaultdict(_Known)
    violations: list[str] = []
    for ended in sorted(history.calls(), key=lambda ended: ended.end_index):
        if ended.outcome is not Outcome.OK:
            continue
        match ended.invocation.call, ended.result:
            case ReadRange(segment=segment, offset=offset), bytes(data):
                where = known[segment].merge(offset, data)
            case AppendBytes(segment=segment, data=data), int(offset):
                where = known[segment].merge(offset, data)
            case _:
                continue
        if where is not None:
            violations.append(
                f"{segment}: byte {where} is {data[where - offset]:#04x} here, it was another before: "
                f"{len(data)} bytes at {offset} of client {ended.invocation.client}, "
                f"record {ended.invocation.index} at {ended.invocation.time_s:.6f} s"
            )
    return violations


def check_up_to_date(history: History) -> list[str]:
    """Return lengths and reads that miss data acknowledged to any client before they were requested.

    So does who owns a container no more and answers nevertheless. A read misses something if it finds nothing at all
    where bytes are known to be.
    """
    #: By segment: the records at which appends were acknowledged, and the farthest end known from each on.
    ends: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    calls = sorted(history.calls(), key=lambda ended: ended.end_index)
    for ended in calls:
        match ended.outcome, ended.invocation.call, ended.result:
            case Outcome.OK, AppendBytes(segment=segment, data=data), int(offset):
                records, farthest = ends[segment]
                records.append(ended.end_index)
                farthest.append(max(offset + len(data), farthest[-1] if farthest else 0))
    violations: list[str] = []
    for ended in calls:
        match ended.outcome, ended.invocation.call, ended.result:
            case Outcome.OK, GetLength(segment=segment), int(length):
                found = f"its length is {length}"
            case Outcome.OK, ReadRange(segment=segment, offset=length), b"":
                found = f"there is nothing at {length}"
            case _:
                continue
        records, farthest = ends[segment]
        before = bisect_left(records, ended.invocation.index)
        if before and length < farthest[before - 1]:
            violations.append(
                f"{segment}: {found} for client {ended.invocation.client} (record {ended.invocation.index} at "
                f"{ended.invocation.time_s:.6f} s), although bytes up to {farthest[before - 1]} were acknowledged "
                f"before it asked (record {records[before - 1]})"
            )
    return violations


def check_monotonic(history: History) -> list[str]:
    """Return what went back: offsets in replies to one client about one thing, and epochs of a container.

    Epochs grow strictly: no two incarnations serve with one.
    """
    offsets: dict[tuple[str, str], tuple[int, int]] = {}
    epochs: dict[int, tuple[int, int]] = {}
    violations: list[str] = []
    for record in history.observations():
        match record.observation:
            case OffsetSeen(what=what, offset=offset):
                last, at = offsets.get((record.client, what), (offset, record.index))
                if offset < last:
                    violations.append(
                        f"client {record.client}: {what} went from {last} (record {at}) back to {offset} "
                        f"(record {record.index} at {record.time_s:.6f} s)"
                    )
                offsets[record.client, what] = (max(offset, last), record.index)
            case EpochStarted(container=container, epoch=epoch):
                last, at = epochs.get(container, (epoch - 1, record.index))
                if epoch <= last:
                    violations.append(
                        f"container {container}: epoch {epoch} of {record.client} (record {record.index} at "
                        f"{record.time_s:.6f} s) does not follow {last} (record {at})"
                    )
                epochs[container] = (max(epoch, last), record.index)
    return violations
