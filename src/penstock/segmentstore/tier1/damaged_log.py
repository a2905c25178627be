"""`DamagedLog`: reads the intact frames of a local log with damaged files, for salvage.

Recovery stops at the first damage. This reader continues after it: a frame carries its file's salt, its own offset and
a checksum, so each intact frame is recognised independently of the bytes before it. Bytes that are not intact are
reported as a `LostRange`. The files are only read. All functions block. How the frames are used: docs/recovery.md.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from penstock.model.errors import CorruptionError, LogIdentityError
from penstock.runtime.disk import Disk, DiskFile
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    decode_file_header,
    decode_frame_header,
    decode_link,
    frame_matches,
    frame_pattern,
)
from penstock.segmentstore.tier1.log_records import (
    EPOCH_FILE,
    TRUNCATION_FILE,
    EpochRecord,
    read_epoch,
    read_truncation,
)
from penstock.segmentstore.tier1.log_recovery import (
    LOG_FILE_NAME,
    READ_LENGTH,
    FrameScanner,
    address_file_number,
    find_frame,
    find_synced_after,
    log_file_name,
)

#: Frames of every file begin with this.
_ANY_FRAME = frame_pattern(0)[:4]
_SALT = slice(4, 12)


@dataclass(frozen=True, slots=True)
class LostRange:
    """Damaged bytes of a log file, or entries of a ledger: ``[start, end)``; both 0 if it is missing as a whole.

    `frame_count`: number of frames in the range; None if the log does not show it.
    """

    file: str
    start: int
    end: int
    problem: str
    frame_count: int | None = None
    unit: str = "bytes"


@dataclass(frozen=True, slots=True)
class _LogFile:
    """A file of the damaged log. `end`: its end as recorded by its successor; None for the newest."""

    name: str
    header: FileHeader | None
    end: int | None
    is_last: bool


class DamagedLog:
    """The log of one container in `directory`.

    Attributes:
        record: `log.epoch`; None if it is missing or damaged.
        epoch: the latest epoch that the log shows.
        first_epoch: the earliest epoch of its files; 0 if there are none.
        problems: errors found in the small files and in file headers.
    """

    def __init__(self, disk: Disk, directory: str, container_id: int, cluster_id: str) -> None:
        """Raises `LaterVersionError`, `LogIdentityError` for a log of another cluster."""
        self._disk = disk
        self._directory = directory
        self._container_id = container_id
        self._cluster_id = cluster_id
        self.problems: list[str] = []
        self.record: EpochRecord | None = None
        self._truncation_address = 0
        #: Number of the first file of the log, if it is known.
        self._first_number: int | None = None
        try:
            self.record = read_epoch(disk, directory)
            if self.record is None:
                self.problems.append(f"{directory}/{EPOCH_FILE} is missing")
        except CorruptionError as error:
            self.problems.append(str(error))
        record = self.record
        if record is not None and record.cluster_id and cluster_id and record.cluster_id != cluster_id:
            raise LogIdentityError(f"{directory}/{EPOCH_FILE}", found=record.cluster_id, expected=cluster_id)
        try:
            truncation = read_truncation(disk, directory)
            if truncation is None:
                self.problems.append(f"{directory}/{TRUNCATION_FILE} is missing")
            else:
                self._truncation_address = truncation.address
                self._first_number = max(address_file_number(truncation.address), 1)
        except CorruptionError as error:
            self.problems.append(str(error))
        first_number = address_file_number(self._truncation_address)
        found = [name for name in disk.list_directory(directory) if LOG_FILE_NAME.fullmatch(name)]
        self._names = [name for name in found if int(name[-8:], 16) >= first_number]
        epochs = [int(name[4:20], 16) for name in found]
        self.first_epoch: int = min(epochs, default=0)
        self.epoch: int = max([*epochs, 0 if record is None else record.epoch])
        if record is not None and epochs and max(epochs) > record.epoch:
            self.problems.append(
                f"{directory}/{EPOCH_FILE} says epoch {record.epoch}, but {max(found)} was written by a later epoch"
            )

    def read(self) -> Iterator[bytes | LostRange]:
        """Yield the payloads of intact data frames in the order of the log, and the lost ranges between them."""
        files = self._files()
        expected: int | None = None
        numbers = [int(file.name[-8:], 16) for file in files]
        closed = 0 if self.record is None else address_file_number(self.record.closed_address)
        due = self._first_number if self._first_number is not None else min(numbers, default=closed)
        for file, number in zip(files, numbers, strict=True):
            yield from self._missing(due, number)
            expected = yield from self._read_file(file, number, None if number > due else expected)
            due = number + 1
        yield from self._missing(due, closed + 1)

    def _missing(self, due: int, number: int) -> Iterator[LostRange]:
        for missing in range(due, number):
            yield LostRange(f"{self._directory}/log-*-{missing:08x}", 0, 0, "the file is missing")

    def _files(self) -> Sequence[_LogFile]:
        """Return the files of the log, oldest first: for each number the file that its successor links to."""
        by_number: dict[int, list[str]] = {}
        for name in self._names:
            by_number.setdefault(int(name[-8:], 16), []).append(name)
        chosen: list[_LogFile] = []
        link: Link | None = None
        for number in sorted(by_number, reverse=True):
            names = sorted(by_number[number], reverse=True)
            linked = None if link is None or link.number != number else log_file_name(link.epoch, number)
            name = linked if linked is not None and linked in names else self._newest_used(names)
            header = self._header(name)
            end = link.end if link is not None and linked == name else None
            is_used = header is not None and self._first_frame(name, header) is not None
            if not chosen and not is_used and header is not None and not header.opens_incarnation:
                continue  # Prepared ahead and never used.
            chosen.append(_LogFile(name, header, end, is_last=not chosen))
            link = None if header is None else self._link(name, header)
        return chosen[::-1]

    def _newest_used(self, names: Sequence[str]) -> str:
        for name in names:
            header = self._header(name, notes_problem=False)
            if header is not None and self._first_frame(name, header) is not None:
                return name
        return names[0]

    def _header(self, name: str, *, notes_problem: bool = True) -> FileHeader | None:
        """Return a file's header, or one derived from its name and its first intact frame; None if it has neither."""
        path = f"{self._directory}/{name}"
        epoch, number = int(name[4:20], 16), int(name[-8:], 16)
        file = self._disk.open(path, writable=False)
        try:
            try:
                header = decode_file_header(file.read(0, BLOCK_LENGTH), path)
            except CorruptionError as error:
                if notes_problem and str(error) not in self.problems:
                    self.problems.append(str(error))
                salt = _salt_of_frames(file, epoch)
                return None if salt is None else FileHeader(self._container_id, epoch, number, salt, True)
        finally:
            file.close()
        found = header.cluster_id.decode()
        if found and self._cluster_id and found != self._cluster_id:
            raise LogIdentityError(path, found=found, expected=self._cluster_id)
        if (header.container_id, header.epoch, header.number) != (self._container_id, epoch, number):
            problem = f"{path} is of container {header.container_id}, epoch {header.epoch}, file {header.number}"
            if notes_problem and problem not in self.problems:
                self.problems.append(problem)
            return None
        return header

    def _first_frame(self, name: str, header: FileHeader) -> FrameHeader | None:
        file = self._disk.open(f"{self._directory}/{name}", writable=False)
        try:
            return _next_frame(file, header, BLOCK_LENGTH)
        finally:
            file.close()

    def _link(self, name: str, header: FileHeader) -> Link | None:
        path = f"{self._directory}/{name}"
        file = self._disk.open(path, writable=False)
        try:
            found = FrameScanner(file, path, header, BLOCK_LENGTH, None).next()
        except CorruptionError:
            return None  # Reported when the file is read.
        finally:
            file.close()
        if found is None or found[0].kind is not FrameKind.LINK:
            return None
        try:
            return decode_link(found[1])
        except ValueError:
            return None

    def _read_file(
        self, file: _LogFile, number: int, expected: int | None
    ) -> Generator[bytes | LostRange, None, int | None]:
        """Yield the contents of a file; return the sequence number expected of the next file's first frame."""
        path = f"{self._directory}/{file.name}"
        handle = self._disk.open(path, writable=False)
        try:
            length = handle.length()
            if file.header is None:
                yield LostRange(path, 0, length, "no frame in it is intact")
                return None
            limit = length if file.end is None else file.end
            forgotten = self._truncation_address & 0xFFFFFFFF if self._is_first(number) else 0
            offset = BLOCK_LENGTH
            scanner = FrameScanner(handle, path, file.header, offset, None)
            while scanner.offset < limit:
                offset = scanner.offset
                single = scanner.next_singles(limit)
                if single is not None:
                    for payload in single.payloads:
                        if offset > forgotten:
                            yield payload
                        offset += BLOCK_LENGTH
                        expected = None if expected is None else expected + 1
                    continue
                found = self._scan(scanner)
                if found is not None and found[0].kind is not FrameKind.TRAILER:
                    frame, payload = found
                    if frame.kind is FrameKind.DATA and offset > forgotten:
                        yield payload
                    expected = frame.sequence + 1
                    continue
                if found is not None and (file.is_last or found[0].is_clean_close):
                    break
                # The batch after a trailer overwrites the trailer.
                following = _next_frame(handle, file.header, offset + 1)
                is_torn = file.is_last and find_synced_after(handle, file.header, offset) is None
                if following is None or following.offset >= limit or is_torn:
                    break
                lost_count = None if expected is None else following.sequence - expected
                if following.offset > forgotten:
                    yield LostRange(path, offset, following.offset, "frames are damaged", lost_count)
                expected = following.sequence
                scanner = FrameScanner(handle, path, file.header, following.offset, None)
            end = self._known_end(file, number)
            if scanner.offset < end:
                yield LostRange(path, scanner.offset, end, "frames are damaged")
                return None
            return expected
        finally:
            handle.close()

    def _is_first(self, number: int) -> bool:
        return bool(self._truncation_address) and number == address_file_number(self._truncation_address)

    def _known_end(self, file: _LogFile, number: int) -> int:
        """Return the certain end of the file: as its successor says, or as the last clean close recorded."""
        if file.end is not None:
            return file.end
        closed = 0 if self.record is None else self.record.closed_address
        return closed & 0xFFFFFFFF if address_file_number(closed) == number else 0

    @staticmethod
    def _scan(scanner: FrameScanner) -> tuple[FrameHeader, bytes] | None:
        try:
            return scanner.next()
        except CorruptionError:
            return None  # An intact frame in the wrong place of the sequence counts as damage.


def _next_frame(file: DiskFile, header: FileHeader, start: int) -> FrameHeader | None:
    """Return the first intact frame of the file's own epoch at or after `start`; None if there is none."""
    return find_frame(file, header, start, lambda frame: frame.epoch == header.epoch)


def _salt_of_frames(file: DiskFile, epoch: int) -> int | None:
    """Return the salt that the first intact frame of the file carries, for a file whose header is damaged."""
    length = file.length()
    for at in range(BLOCK_LENGTH, length, READ_LENGTH):
        window = file.read(at, READ_LENGTH + FRAME_HEADER_LENGTH)
        place = window.find(_ANY_FRAME)
        while place >= 0:
            head = window[place : place + FRAME_HEADER_LENGTH]
            salt = int.from_bytes(head[_SALT], "big")
            frame = decode_frame_header(head, salt, at + place)
            if frame is not None and frame.epoch == epoch and frame.end <= length:
                payload = file.read(frame.offset + FRAME_HEADER_LENGTH, frame.length)
                if frame_matches(head, payload):
                    return salt
            place = window.find(_ANY_FRAME, place + 1)
    return None
