"""`inspect_older_files`: reads the frames of a log before it is claimed, besides those of its newest file."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.runtime.disk import Disk
from penstock.segmentstore.tier1.durable_log import InspectFrame
from penstock.segmentstore.tier1.frame_format import BLOCK_LENGTH, FrameKind
from penstock.segmentstore.tier1.log_recovery import ChainFile, FrameScanner, inspect_frame

#: Bytes of older files that are read before the claim of a log: 0.2 s of CPU time at most. The replay reads the rest.
OLDER_BYTES_MAX = 256 * 1024 * 1024


def inspect_older_files(disk: Disk, directory: str, files: Sequence[ChainFile], inspect: InspectFrame) -> None:
    """Call `inspect` with the data frames of these files, the newest file first, of `OLDER_BYTES_MAX` bytes at most.

    `files`: oldest first. A damaged frame ends its file: the replay reports it. Raises `LaterVersionError`,
    `CorruptionError`.
    """
    left = OLDER_BYTES_MAX
    for file in reversed(files):
        left -= file.end
        if left < 0:
            return
        _inspect_file(disk, f"{directory}/{file.name}", file, inspect)


def _inspect_file(disk: Disk, path: str, file: ChainFile, inspect: InspectFrame) -> None:
    inspect(b"")
    handle = disk.open(path, writable=False)
    try:
        scanner = FrameScanner(handle, path, file.header, BLOCK_LENGTH, None)
        while (at := scanner.offset) < file.end:
            single = scanner.next_singles(file.end)
            if single is not None:
                for number, data in enumerate(single.payloads):
                    inspect_frame(inspect, data, path, at + number * BLOCK_LENGTH)
                continue
            found = scanner.next()
            if found is None or found[0].kind is FrameKind.TRAILER:
                return
            if found[0].kind is FrameKind.DATA:
                inspect_frame(inspect, found[1], path, at)
    finally:
        handle.close()
