"""Recovery of a local log: find the chain of its files and its exact end, and read its frames.

The newest file with a good link frame is the tail; each link leads to the previous file. Only the tail may have a torn
end. Any other deviation is a `CorruptionError`, never skipped. All functions block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError, LogIdentityError
from penstock.runtime.disk import Disk, DiskFile
from penstock.segmentstore.columns import COLUMN_LENGTH_MIN, BatchSizer
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.tier1.durable_log import InspectFrame, LogAddress, LogFrameRun
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    check_frame_known,
    decode_file_header,
    decode_frame_header,
    decode_link,
    frame_matches,
    frame_pattern,
    later_frame_length,
)
from penstock.segmentstore.tier1.log_records import EPOCH_FILE, EpochRecord
from penstock.segmentstore.tier1.single_frames import SingleFrames, single_frames

READ_LENGTH = 4 * 1024 * 1024
#: Read length for columns of frames: memory of this size is reused, larger blocks are allocated again by the system.
_COLUMN_READ_LENGTH = 1024 * 1024
#: Enough to determine the kind of frames.
_FIRST_READ_LENGTH = 128 * 1024
#: Beyond any file's end.
_ANY_END = 1 << 62
LOG_FILE_NAME = re.compile(r"log-([0-9a-f]{16})-([0-9a-f]{8})")


def log_file_name(epoch: int, number: int) -> str:
    """Return the name of a log file. Names sort as (epoch, number)."""
    return f"log-{epoch:016x}-{number:08x}"


def log_address(number: int, offset: int) -> LogAddress:
    """Return the address of the frame at `offset` of file `number`."""
    return LogAddress(number << 32 | offset)


def address_file_number(address: int) -> int:
    """Return the number of the file that contains an address."""
    return address >> 32


@dataclass(frozen=True, slots=True)
class ChainFile:
    """A file of the log: its frames lie in ``[BLOCK_LENGTH, end)``, the first with `first_sequence`."""

    name: str
    header: FileHeader
    first_sequence: int
    end: int


@dataclass(frozen=True, slots=True)
class RecoveredLog:
    """A log as found on disk.

    Attributes:
        files: oldest first; empty for a log that was never opened completely.
        next_sequence: sequence number of the next frame.
        unsynced_offset: bytes of the last file from here to its end are not known to be durable.
        residue: names of log files with no part of the log: truncated, prepared but never used, or written by fenced
            owners.
    """

    files: Sequence[ChainFile]
    next_sequence: int
    unsynced_offset: int
    residue: Sequence[str]


class FrameScanner:
    """Reads the frames of one file in order, through a window of at most `READ_LENGTH` bytes."""

    def __init__(self, file: DiskFile, path: str, header: FileHeader, offset: int, sequence: int | None) -> None:
        """Start at `offset`, where a frame with `sequence` is expected (None: any)."""
        self._file = file
        self._path = path
        self._header = header
        self._sequence = sequence
        self._window = b""
        self._window_offset = 0
        self._pace = BatchSizer()
        #: Offset of the next frame.
        self.offset: int = offset

    def next(self) -> tuple[FrameHeader, bytes] | None:
        """Return the frame at `offset` and advance past it; None if there is no good frame there.

        Trailers are returned too, but not passed: the next call returns the trailer again. Raises `LaterVersionError`
        for an intact frame that only a later version can read, `CorruptionError` for a frame with a good checksum and a
        wrong sequence number.
        """
        head = self._bytes(self.offset, FRAME_HEADER_LENGTH)
        frame = decode_frame_header(head, self._header.salt, self.offset)
        if frame is None:
            self._check_later(head)
            return None
        payload = self._bytes(self.offset + FRAME_HEADER_LENGTH, frame.length)
        if len(payload) != frame.length or not frame_matches(head, payload):
            return None
        if frame.epoch != self._header.epoch or self._sequence not in (None, frame.sequence):
            raise CorruptionError(
                self._path,
                self.offset,
                f"expected frame {self._sequence} of epoch {self._header.epoch}, "
                f"found frame {frame.sequence} of epoch {frame.epoch}",
            )
        if frame.kind is not FrameKind.TRAILER:
            self._sequence = frame.sequence + 1
            self.offset = frame.next_offset
        return frame, payload

    def _check_later(self, head: bytes) -> None:
        """Raise `LaterVersionError` if there is an intact frame at `offset` that was added by a later version."""
        length = later_frame_length(head, self._header.salt, self.offset)
        if length is None:
            return
        payload = self._bytes(self.offset + FRAME_HEADER_LENGTH, length)
        if len(payload) == length and frame_matches(head, payload):
            try:
                check_frame_known(head)
            except LaterFormatError as error:
                raise error.at(f"{self._path}, frame at byte {self.offset},") from error

    def next_singles(self, end: int) -> SingleFrames | None:
        """Return the frames of the next blocks before `end`, if each block has one frame, and advance past them.

        None if there are too few of them, or anything else: then `next` determines what it is.
        """
        sequence, pace = self._sequence, self._pace
        if sequence is None or pace.takes_single() or self.offset % BLOCK_LENGTH:
            return None
        count_max = min((end - self.offset) // BLOCK_LENGTH, pace.length)
        in_window = (self._window_offset + len(self._window) - self.offset) // BLOCK_LENGTH
        # Frames of this kind are likely to be followed by more after the window.
        if in_window < COLUMN_LENGTH_MIN <= count_max and pace.length > COLUMN_LENGTH_MIN:
            self._fill_window(self.offset, BLOCK_LENGTH)
            in_window = len(self._window) // BLOCK_LENGTH
        count = min(in_window, count_max)
        if count < COLUMN_LENGTH_MIN:
            return None
        start = self.offset - self._window_offset
        found = single_frames(self._window, start, self.offset, self._header, sequence, count)
        pace.note(0 if found is None else len(found.payloads), count)
        if found is None:
            return None
        self._sequence = sequence + len(found.payloads)
        self.offset += len(found.payloads) * BLOCK_LENGTH
        return found

    def _bytes(self, offset: int, length: int) -> bytes:
        start = offset - self._window_offset
        if start < 0 or start + length > len(self._window):
            if length > READ_LENGTH:
                return self._file.read(offset, min(length, max(self._file.length() - offset, 0)))
            self._fill_window(offset, length)
            start = 0
        return self._window[start : start + length]

    def _fill_window(self, offset: int, length: int) -> None:
        """Reload the window from `offset` on, with at least `length` bytes."""
        self._window = self._file.read(offset, self._read_length(length))
        self._window_offset = offset

    def _read_length(self, length: int) -> int:
        """Return how much to read when `length` bytes are needed."""
        if length > BLOCK_LENGTH:
            return READ_LENGTH
        if not self._window:
            return _FIRST_READ_LENGTH
        return _COLUMN_READ_LENGTH if self._pace.length > COLUMN_LENGTH_MIN else READ_LENGTH


def recover(
    disk: Disk,
    directory: str,
    container_id: int,
    truncation_address: int,
    *,
    must_exist: bool,
    cluster_id: str = "",
    inspect: InspectFrame | None = None,
) -> RecoveredLog:
    """Find the log's files and its end. Changes nothing. Raises as `read_file_header`.

    `must_exist`: an empty directory is corrupt, because the log is known to have had a file. `inspect` is called with
    each data frame of the last file, see `DurableLog.open`.
    """
    first_number = address_file_number(truncation_address)
    names = [name for name in disk.list_directory(directory) if LOG_FILE_NAME.fullmatch(name)]
    unused: tuple[str, FileHeader] | None = None
    for name in reversed(names):
        if int(name[-8:], 16) < first_number:
            continue
        if unused is not None and name != _predecessor(unused[0]):
            break
        header = read_file_header(disk, directory, name, container_id, cluster_id)
        tail = _scan_tail(disk, f"{directory}/{name}", name, header, inspect)
        if tail is not None:
            if unused is not None and not tail.is_clean:
                # After a clean close of the tail nothing can follow it. Otherwise check that the file was never used.
                _check_nothing_synced_after(disk, f"{directory}/{unused[0]}", unused[1], BLOCK_LENGTH)
            chain = _chain(disk, directory, container_id, first_number, tail, cluster_id)
            live = {file.name for file in chain}
            return RecoveredLog(
                chain, tail.next_sequence, tail.unsynced_offset, [name for name in names if name not in live]
            )
        if header.opens_incarnation or unused is not None:
            # The link of such a file was synced before the file was named, or before the next file was created.
            raise CorruptionError(f"{directory}/{name}", BLOCK_LENGTH, "the link frame is damaged")
        unused = (name, header)
    if unused is not None:
        raise CorruptionError(
            f"{directory}/{_predecessor(unused[0])}", 0, "the file is missing, although a later one was prepared"
        )
    if must_exist:
        raise CorruptionError(f"{directory}/{log_file_name(0, first_number)}", 0, "all log files are missing")
    return RecoveredLog([], 1, BLOCK_LENGTH, names)


def read_file_header(disk: Disk, directory: str, name: str, container_id: int, cluster_id: str = "") -> FileHeader:
    """Read a log file's header. `cluster_id`: the expected one; empty: any.

    Raises `CorruptionError` if it is damaged or belongs to another file, `LogIdentityError` if it belongs to another
    cluster, `LaterVersionError`.
    """
    path = f"{directory}/{name}"
    header = decode_file_header(_read_header_block(disk, path), path)
    found = header.cluster_id.decode()
    if found and cluster_id and found != cluster_id:
        raise LogIdentityError(path, found=found, expected=cluster_id)
    if header.container_id != container_id or log_file_name(header.epoch, header.number) != name:
        raise CorruptionError(
            path,
            0,
            f"the header says container {header.container_id}, epoch {header.epoch}, file {header.number}, "
            f"but the file lies in the log of container {container_id}",
        )
    return header


def check_file_versions(disk: Disk, directory: str) -> None:
    """Raise `LaterVersionError` if the header of any log file has a later format version. Changes nothing.

    An incarnation writes only to files that it created. So the header of a file announces the formats of all of its
    frames, and one block of each file is enough, at any length of the log. Damaged headers are left to `recover`.
    """
    for name in disk.list_directory(directory):
        if not LOG_FILE_NAME.fullmatch(name):
            continue
        path = f"{directory}/{name}"
        try:
            decode_file_header(_read_header_block(disk, path), path)
        except (CorruptionError, FileNotFoundError):
            continue


def _read_header_block(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.read(0, BLOCK_LENGTH)
    finally:
        file.close()


def check_log(disk: Disk, directory: str, record: EpochRecord, cluster_id: str) -> None:
    """Check that a log's files match the record of its epoch and the cluster. Reads no frames, changes nothing.

    Raises `CorruptionError` if a file is of a later epoch than the record: then the record is an old copy.
    `LogIdentityError`, `LaterVersionError`. `cluster_id`: empty: any.
    """
    if record.cluster_id and cluster_id and record.cluster_id != cluster_id:
        raise LogIdentityError(f"{directory}/{EPOCH_FILE}", found=record.cluster_id, expected=cluster_id)
    names = [name for name in disk.list_directory(directory) if LOG_FILE_NAME.fullmatch(name)]
    if not names:
        return
    newest = max(names)
    epoch = int(newest[4:20], 16)
    if epoch > record.epoch:
        raise CorruptionError(
            f"{directory}/{EPOCH_FILE}",
            16,
            f"it says epoch {record.epoch}, but {newest} was written by epoch {epoch}: the record is an old copy",
        )
    try:
        read_file_header(disk, directory, newest, record.container_id, cluster_id)
    except CorruptionError:
        pass  # Recovery reports it after the claim, so that the log can be disabled.


def check_end(directory: str, recovered: RecoveredLog, closed_address: int) -> None:
    """Raise `CorruptionError` when the log ends before the address at which it was closed cleanly."""
    end = 0
    name = log_file_name(0, address_file_number(closed_address))
    if recovered.files:
        tail = recovered.files[-1]
        end, name = log_address(tail.header.number, tail.end), tail.name
    if end < closed_address:
        raise CorruptionError(
            f"{directory}/{name}",
            end & 0xFFFFFFFF,
            f"the log ends in file {end >> 32} at byte {end & 0xFFFFFFFF}, but it was closed cleanly in file "
            f"{closed_address >> 32} at byte {closed_address & 0xFFFFFFFF}: its newest file was removed or overwritten",
        )


def read_frames(
    disk: Disk, directory: str, file: ChainFile, offset: int, sequence: int, length_max: int
) -> tuple[list[LogFrameRun], int, int]:
    """Read data frames of `file` from `offset` (of frame `sequence`) until `length_max` bytes or its end.

    Return the frames, and the offset and sequence number to continue from. Raises `CorruptionError`.
    """
    path = f"{directory}/{file.name}"
    number = file.header.number
    handle = disk.open(path, writable=False)
    try:
        scanner = FrameScanner(handle, path, file.header, offset, sequence)
        runs: list[LogFrameRun] = []
        addresses: list[LogAddress] = []
        payloads: list[bytes] = []
        total = 0
        while scanner.offset < file.end and total < length_max:
            at = scanner.offset
            single = scanner.next_singles(file.end)
            if single is not None:
                if payloads:
                    runs.append(LogFrameRun(addresses, payloads))
                    addresses, payloads = [], []
                first, after = log_address(number, at), log_address(number, scanner.offset)
                runs.append(LogFrameRun(range(first, after, BLOCK_LENGTH), single.payloads))
                sequence += len(single.payloads)
                # Count bytes read, not bytes kept, so that reading the next frames overlaps with the replay of these.
                total += BLOCK_LENGTH * len(single.payloads)
                continue
            found = scanner.next()
            if found is None or found[0].kind is FrameKind.TRAILER or scanner.offset > file.end:
                raise CorruptionError(path, at, f"a frame is damaged; the file was valid up to byte {file.end}")
            frame, payload = found
            sequence = frame.sequence + 1
            total += FRAME_HEADER_LENGTH + frame.length
            if frame.kind is FrameKind.DATA:
                addresses.append(log_address(number, at))
                payloads.append(payload)
        if payloads:
            runs.append(LogFrameRun(addresses, payloads))
        return runs, scanner.offset, sequence
    finally:
        handle.close()


@dataclass(frozen=True, slots=True)
class _Tail:
    file: ChainFile
    is_clean: bool
    link: Link
    next_sequence: int
    unsynced_offset: int


def _predecessor(name: str) -> str:
    return log_file_name(int(name[4:20], 16), int(name[-8:], 16) - 1)


def _scan_tail(
    disk: Disk, path: str, name: str, header: FileHeader, inspect: InspectFrame | None = None
) -> _Tail | None:
    """Scan a file to its end; None if it does not begin with a link, that is, was never used."""
    handle = disk.open(path, writable=False)
    try:
        scanner = FrameScanner(handle, path, header, BLOCK_LENGTH, None)
        link: Link | None = None
        first_sequence = next_sequence = 0
        synced = BLOCK_LENGTH
        is_clean = False
        while True:
            at = scanner.offset
            single = scanner.next_singles(_ANY_END)
            if single is not None:
                if inspect is not None:
                    for number, data in enumerate(single.payloads):
                        inspect_frame(inspect, data, path, at + number * BLOCK_LENGTH)
                synced = max(synced, single.synced_offset)
                next_sequence += len(single.payloads)
                continue
            found = scanner.next()
            if found is None:
                break
            frame, payload = found
            synced = max(synced, frame.synced_offset)
            if link is None:
                if frame.kind is not FrameKind.LINK:
                    raise CorruptionError(path, BLOCK_LENGTH, "the first frame is not a link")
                link = _decode_link(path, payload)
                first_sequence = frame.sequence
            if frame.kind is FrameKind.TRAILER:
                is_clean = frame.is_clean_close
                break
            if inspect is not None and frame.kind is FrameKind.DATA:
                inspect_frame(inspect, payload, path, at)
            next_sequence = frame.sequence + 1
    finally:
        handle.close()
    if link is None:
        return None
    if not is_clean:
        _check_nothing_synced_after(disk, path, header, scanner.offset)
    return _Tail(ChainFile(name, header, first_sequence, scanner.offset), is_clean, link, next_sequence, synced)


def inspect_frame(inspect: InspectFrame, data: bytes, path: str, offset: int) -> None:
    """Call `inspect` with a frame; name the file and the offset in what it raises."""
    try:
        inspect(data)
    except LaterFormatError as error:
        raise error.at(f"{path}, frame at byte {offset},") from error


def _check_nothing_synced_after(disk: Disk, path: str, header: FileHeader, bad_offset: int) -> None:
    """Raise `CorruptionError` if a good frame after `bad_offset` says that the file was synced beyond it."""
    file = disk.open(path, writable=False)
    try:
        found = find_synced_after(file, header, bad_offset)
    finally:
        file.close()
    if found is not None:
        raise CorruptionError(
            path,
            bad_offset,
            f"a frame is damaged, but the good one at byte {found.offset} "
            f"says that the file had been synced up to {found.synced_offset}",
        )


def find_synced_after(file: DiskFile, header: FileHeader, bad_offset: int) -> FrameHeader | None:
    """Return the first intact frame after `bad_offset` that says the file was synced beyond it, if any."""
    return find_frame(file, header, bad_offset, lambda frame: bad_offset < frame.synced_offset <= frame.offset)


def find_frame(
    file: DiskFile, header: FileHeader, start: int, is_wanted: Callable[[FrameHeader], bool]
) -> FrameHeader | None:
    """Return the first intact frame at or after `start` that `is_wanted` accepts; None if there is none."""
    pattern = frame_pattern(header.salt)
    length = file.length()
    for at in range(start, length, READ_LENGTH):
        # Windows overlap by a header, so that no header is split.
        window = file.read(at, READ_LENGTH + FRAME_HEADER_LENGTH)
        place = window.find(pattern)
        while place >= 0:
            head = window[place : place + FRAME_HEADER_LENGTH]
            frame = decode_frame_header(head, header.salt, at + place)
            if frame is not None and frame.end <= length and is_wanted(frame):
                payload = file.read(frame.offset + FRAME_HEADER_LENGTH, frame.length)
                if frame_matches(head, payload):
                    return frame
            place = window.find(pattern, place + 1)
    return None


def _chain(
    disk: Disk, directory: str, container_id: int, first_number: int, tail: _Tail, cluster_id: str
) -> list[ChainFile]:
    chain = [tail.file]
    link = tail.link
    while link.number and chain[-1].header.number > first_number:
        name = log_file_name(link.epoch, link.number)
        path = f"{directory}/{name}"
        if link.number != chain[-1].header.number - 1 or link.epoch > chain[-1].header.epoch:
            raise CorruptionError(
                f"{directory}/{chain[-1].name}",
                BLOCK_LENGTH,
                f"the link refers to {name}, which cannot be its predecessor",
            )
        if not disk.exists(path):
            raise CorruptionError(path, 0, f"the file is missing; {chain[-1].name} follows it")
        header = read_file_header(disk, directory, name, container_id, cluster_id)
        handle = disk.open(path, writable=False)
        try:
            found = FrameScanner(handle, path, header, BLOCK_LENGTH, None).next()
        finally:
            handle.close()
        if found is None or found[0].kind is not FrameKind.LINK:
            raise CorruptionError(path, BLOCK_LENGTH, "the link frame is damaged")
        chain.append(ChainFile(name, header, found[0].sequence, link.end))
        link = _decode_link(path, found[1])
    if chain[-1].header.number > max(first_number, 1) and not link.number:
        raise CorruptionError(
            f"{directory}/{chain[-1].name}", BLOCK_LENGTH, f"the log should start with file {max(first_number, 1)}"
        )
    chain.reverse()
    return chain


def _decode_link(path: str, payload: bytes) -> Link:
    try:
        return decode_link(payload)
    except ValueError as error:
        raise CorruptionError(path, BLOCK_LENGTH, str(error)) from error
