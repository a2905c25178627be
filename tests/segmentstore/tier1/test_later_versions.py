"""Files of a local log that a later version of Penstock has written: refused before the claim, and left as they are.

Each test changes one file as a later version would, its checksum included. The log of today's version that is opened in
the end shows that nothing else kept it from being opened.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pytest

from penstock.model.checksum import crc32c
from penstock.model.errors import CorruptionError, LaterVersionError
from penstock.model.segments import Buffer
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.later_format import LaterFormatError, check_version
from penstock.segmentstore.tier1 import older_frames
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FrameHeader,
    FrameKind,
    decode_file_header,
    encode_frame,
)
from penstock.segmentstore.tier1.local_log import LocalLog
from penstock.segmentstore.tier1.local_log_factory import LocalLogFactory
from penstock.segmentstore.tier1.log_recovery import recover
from penstock.segmentstore.tier1.log_settings import LocalLogSettings
from penstock_simulation.simulated.disk import SimulatedDisk
from support.inline_work import InlineWork

TIER1, MADE = "/mount/tier1", "/data/logs"
LOG = f"{TIER1}/0"
SETTINGS = LocalLogSettings(
    frame_length_max_bytes=8 * 1024,
    first_file_length_bytes=16 * 1024,
    file_length_bytes=16 * 1024,
    trailer_delay_s=0.0,
    reserve_file_count=0,
    reserve_record_count=0,
)
Files = dict[str, bytes]


def make_log(disk: SimulatedDisk, seed: int = 0) -> LocalLog:
    runtime = Runtime(disk=disk, work=InlineWork(), rng=random.Random(seed), wall_clock_ms=lambda: 0)
    factory = LocalLogFactory(TIER1, runtime, SETTINGS, cluster_id="cluster-a", made_logs_directory=MADE)
    return factory.create(0)


def disk_of(files: Files) -> SimulatedDisk:
    return SimulatedDisk(random.Random(0), files=files)


async def written_files() -> Files:
    """Return the files of a log of three files that was closed cleanly."""
    disk = SimulatedDisk(random.Random(0))
    log = make_log(disk)
    await log.open()
    for number in range(3):
        data = bytes([number]) * 5_000
        await log.append([data], len(data))
    await log.close()
    files = disk.files()
    assert len(log_names(files)) >= 2
    return files


async def data_of(files: Files) -> list[bytes]:
    log = make_log(disk_of(files), seed=1)
    await log.open()
    found = [frame.data async for frame in log.frames()]
    await log.close()
    return found


def log_names(files: Files) -> list[str]:
    return sorted(path for path in files if "/log-" in path)


def of_later_version(data: bytes, length: int) -> bytes:
    """Raise the version of a record of `length` bytes at the start of `data`."""
    body = data[:8] + (int.from_bytes(data[8:10], "big") + 1).to_bytes(2, "big") + data[10:length]
    return body + struct.pack(">I", crc32c(body, 0)) + data[length + 4 :]


def later_text(data: bytes) -> bytes:
    body = data.rpartition(b"crc32c = ")[0].replace(b"format_version = 1\n", b"format_version = 2\n")
    return body + b'crc32c = "%08x"\n' % crc32c(body, 0)


def with_frame(data: bytes, offset: int, *, kind: int, flags: int = 1, reserved: int = 0, sequence: int) -> bytes:
    """Put a frame with these fields and a good checksum at `offset` of a log file."""
    header = decode_file_header(data, "file")
    frame = FrameHeader(FrameKind.DATA, True, False, 9, offset, header.epoch, sequence, offset)
    out: list[Buffer] = []
    encode_frame(header.salt, frame, [b"something"], out)
    head = bytearray(out[0])
    head[12], head[13], head[14:16] = kind, flags, reserved.to_bytes(2, "big")
    head[44:48] = struct.pack(">I", crc32c(b"something", crc32c(bytes(head[:44]), 0)))
    assert len(head) == FRAME_HEADER_LENGTH
    block = (bytes(head) + b"something").ljust(BLOCK_LENGTH, b"\0")
    return data[:offset] + block + data[offset + BLOCK_LENGTH :]


def frame_at_the_end(**fields: int) -> Callable[[Files], Files]:
    def change(files: Files) -> Files:
        found = recover(disk_of(files), LOG, 0, 0, must_exist=True)
        tail = found.files[-1]
        path = f"{LOG}/{tail.name}"
        return {path: with_frame(files[path], tail.end, sequence=found.next_sequence, **fields)}

    return change


def frame_in_the_first_file(files: Files) -> Files:
    """In the place of the second frame of the file, the first behind the link."""
    path = log_names(files)[0]
    header = decode_file_header(files[path], path)
    assert header.number == 1
    return {path: with_frame(files[path], 2 * BLOCK_LENGTH, kind=4, sequence=2)}


def changed(name: str, change: Callable[[bytes], bytes]) -> Callable[[Files], Files]:
    return lambda files: {path: change(data) for path, data in files.items() if path.startswith(name)}


BEFORE_THE_CLAIM = {
    "record of the epoch": (changed(f"{LOG}/log.epoch", lambda data: of_later_version(data, 96)), "format version 5"),
    "record of the truncation": (
        changed(f"{LOG}/log.truncation", lambda data: of_later_version(data, 24)),
        "format version 2",
    ),
    "record of the creation": (changed(f"{MADE}/0", later_text), "format version 2"),
    "newest file": (
        lambda files: {log_names(files)[-1]: of_later_version(files[log_names(files)[-1]], 84)},
        "format version 3",
    ),
    "oldest file": (
        lambda files: {log_names(files)[0]: of_later_version(files[log_names(files)[0]], 84)},
        "format version 3",
    ),
    "kind of frame": (frame_at_the_end(kind=4), "frame kind 4, this version reads 1 to 3"),
    "flag of a frame": (frame_at_the_end(kind=1, flags=1 | 4), "frame flags 5"),
    "kind of frame in the oldest file": (frame_in_the_first_file, "frame kind 4"),
    "reserved field of a frame": (frame_at_the_end(kind=1, reserved=1), "reserved field of a frame 1"),
}


@pytest.mark.parametrize("case", BEFORE_THE_CLAIM)
async def test_what_a_later_version_wrote_is_refused_before_the_claim(case: str) -> None:
    change, message = BEFORE_THE_CLAIM[case]
    files = await written_files()
    later = files | change(files)
    assert later != files
    for _ in range(2):
        disk = disk_of(later)
        log = make_log(disk, seed=1)
        with pytest.raises(LaterVersionError, match=message) as refusal:
            await log.open()
        await log.close()
        assert any(refusal.value.path.startswith(path) for path in later), "it names the file"
        assert disk.files() == later, "every byte is as it was"
    assert len(await data_of(files)) == 3


async def log_of_many_files() -> Files:
    disk = SimulatedDisk(random.Random(0))
    for seed in range(3):
        log = make_log(disk, seed)
        await log.open()
        for number in range(4):
            data = bytes([number]) * 5_000
            await log.append([data], len(data))
        await log.close()
    return disk.files()


@pytest.mark.parametrize("damage", ["none", "newest file", "truncation", "missing file"])
async def test_each_file_of_a_later_version_is_found_before_the_claim_at_any_length_of_the_log(
    damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block of each file is read, however long the log is, and damage of other files does not hide it."""
    monkeypatch.setattr(older_frames, "OLDER_BYTES_MAX", 0)
    files = await log_of_many_files()
    names = log_names(files)
    assert len(names) >= 6
    for path in names[:-1]:
        later = files | {path: of_later_version(files[path], 84)}
        if damage == "newest file":
            tail = later[names[-1]]
            later[names[-1]] = tail[:BLOCK_LENGTH] + b"X" + tail[BLOCK_LENGTH + 1 :]
        elif damage == "truncation":
            later[f"{LOG}/log.truncation"] = b"damaged"
        elif damage == "missing file":
            del later[names[-2 if path != names[-2] else 0]]
        disk = disk_of(later)
        log = make_log(disk, seed=9)
        with pytest.raises(LaterVersionError, match="format version 3") as refusal:
            await log.open()
        await log.close()
        assert refusal.value.path == path
        assert disk.files() == later, "every byte is as it was"


async def test_an_incarnation_writes_only_to_files_that_it_created() -> None:
    """So the header of a file announces the formats of all frames in it."""
    files = await log_of_many_files()
    disk = disk_of(files)
    log = make_log(disk, seed=9)
    await log.open()
    for _ in range(4):
        await log.append([bytes(5_000)], 5_000)
    await log.close()
    after = disk.files()
    assert {path: after[path] for path in log_names(files)} == {path: files[path] for path in log_names(files)}
    assert len(log_names(after)) > len(log_names(files))


async def test_a_frame_of_a_later_version_far_back_does_not_disable_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The length of older files that are read before the claim is limited. The replay finds the rest."""
    monkeypatch.setattr(older_frames, "OLDER_BYTES_MAX", 16 * 1024)
    files = await written_files()
    later = files | frame_in_the_first_file(files)
    disk = disk_of(later)
    for _ in range(2):
        log = make_log(disk, seed=1)
        await log.open()
        with pytest.raises(LaterVersionError, match="frame kind 4"):
            _ = [frame async for frame in log.frames()]
        await log.close()
    assert {path: disk.files()[path] for path in log_names(later)} == {path: later[path] for path in log_names(later)}


@pytest.mark.parametrize("kind", [0, 4, 255])
async def test_a_frame_of_unknown_kind_without_its_checksum_is_a_write_that_was_cut_off(kind: int) -> None:
    disk = SimulatedDisk(random.Random(0))
    log = make_log(disk)
    await log.open()
    await log.append([b"acknowledged"], 12)
    files = disk.files()  # As a kill leaves them: no clean end.
    change = frame_at_the_end(kind=kind)(files)
    (path, data), *_ = change.items()
    at = data.index(b"something")
    torn = files | {path: data[:at] + b"some" + bytes(5) + data[at + 9 :]}
    assert await data_of(torn) == [b"acknowledged"]
    await log.close()


@pytest.mark.parametrize("change", [lambda data: b"X" + data[1:], lambda data: data[:8] + b"\0\2" + data[10:]])
async def test_damage_and_formats_that_are_too_old_are_no_later_version(change: Callable[[bytes], bytes]) -> None:
    files = await written_files()
    path = f"{LOG}/log.epoch"
    with pytest.raises(CorruptionError):
        await data_of(files | {path: change(files[path])})


def test_versions_are_distinguished() -> None:
    check_version(2, (1, 2))
    with pytest.raises(LaterFormatError, match="format version 3 is of a later version, this one reads 1 to 2"):
        check_version(3, (1, 2))
    with pytest.raises(ValueError, match="is not read by this version") as early:
        check_version(0, (1, 2))
    assert not isinstance(early.value, LaterFormatError)
    error = LaterFormatError("record kind", found=9, known=4).at("the record 'a'")
    assert str(error) == (
        "the record 'a' was written by a later version of Penstock: record kind 9, this version reads 1 to 4. "
        "Nothing in it was changed: use the version that wrote it, or a later one"
    )
