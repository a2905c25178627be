"""Single frames read by the column: results and errors are the same as when reading frame by frame."""

from __future__ import annotations

import random

import pytest

from penstock.model.errors import CorruptionError
from penstock.segmentstore.columns import COLUMN_LENGTH_MAX
from penstock.segmentstore.tier1 import log_recovery
from penstock.segmentstore.tier1.frame_format import (
    BLOCK_LENGTH,
    FRAME_HEADER_LENGTH,
    FileHeader,
    FrameHeader,
    FrameKind,
    Link,
    encode_file_header,
    encode_frame,
    encode_link,
)
from penstock.segmentstore.tier1.log_recovery import FrameScanner, log_file_name, read_frames, recover
from penstock_simulation.simulated.disk import SimulatedDisk

DIRECTORY = "/log"
HEADER = FileHeader(0, 7, 1, 0x1234_5678_9ABC_DEF0, opens_incarnation=True)
PATH = f"{DIRECTORY}/{log_file_name(HEADER.epoch, HEADER.number)}"


class FileWriter:
    """Writes a log file, batch by batch."""

    def __init__(self, sequence: int = 1, header: FileHeader = HEADER) -> None:
        self.data = bytearray(encode_file_header(header))
        self.header = header
        self.sequence = sequence
        self.payloads: list[bytes] = []
        self.add([encode_link(Link(0, 0, 0))], FrameKind.LINK)

    def add(
        self,
        payloads: list[bytes],
        kind: FrameKind = FrameKind.DATA,
        *,
        epoch: int | None = None,
        skip: int = 0,
        synced_offset: int | None = None,
    ) -> None:
        """Write a batch."""
        synced = len(self.data) if synced_offset is None else synced_offset
        for index, payload in enumerate(payloads, 1):
            self.sequence += skip
            frame = FrameHeader(
                kind,
                index == len(payloads),
                kind is FrameKind.TRAILER,
                len(payload),
                len(self.data),
                self.header.epoch if epoch is None else epoch,
                self.sequence,
                synced,
            )
            out: list[bytes | bytearray | memoryview] = []
            encode_frame(self.header.salt, frame, [payload], out)
            self.data += b"".join(out)
            self.sequence += 1
            if kind is FrameKind.DATA:
                self.payloads.append(payload)


def random_file(rng: random.Random) -> FileWriter:
    """Return a file, mostly of single frames."""
    writer = FileWriter(rng.choice((1, 0xFFFF_FFFF - 30)))
    is_even = rng.random() < 0.5
    for _ in range(rng.randrange(20, 120)):
        count = 1 if rng.random() < 0.97 else rng.randrange(2, 4)
        longest = BLOCK_LENGTH - FRAME_HEADER_LENGTH + (rng.random() < 0.05)
        writer.add(
            [rng.randbytes(100 if is_even and rng.random() < 0.99 else rng.randint(0, longest)) for _ in range(count)]
        )
    return writer


def found(data: bytes) -> object:
    """Return what a recovery of one file finds: its end and all frames, or what is wrong."""
    disk = SimulatedDisk(random.Random(0), files={PATH: data})
    try:
        log = recover(disk, DIRECTORY, 0, 0, must_exist=True)
        file = log.files[0]
        frames: list[tuple[int, bytes]] = []
        offset, sequence = BLOCK_LENGTH, file.first_sequence
        while offset < file.end:
            runs, offset, sequence = read_frames(disk, DIRECTORY, file, offset, sequence, 20_000)
            for run in runs:
                frames += zip(run.addresses, run.data, strict=True)
    except CorruptionError as error:
        return str(error)
    return file, log.next_sequence, log.unsynced_offset, sequence, frames


def found_one_by_one(data: bytes) -> object:
    """The same without columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FrameScanner, "next_singles", lambda self, end: None)
        return found(data)


def counted_headers(patch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets an item for each header that is read by itself."""
    seen: list[int] = []
    original = log_recovery.decode_frame_header  # type: ignore[attr-defined]

    def count(data: bytes, salt: int, offset: int) -> FrameHeader | None:
        seen.append(offset)
        return original(data, salt, offset)

    patch.setattr(log_recovery, "decode_frame_header", count)
    return seen


def test_headers_of_single_frames_are_not_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 3000 single frames of different lengths few are read by themselves, and all are found."""
    writer = FileWriter()
    for number in range(3000):
        writer.add([b"x" * (number % 300)])
    seen = counted_headers(monkeypatch)
    result = found(bytes(writer.data))
    assert isinstance(result, tuple)
    assert [data for _, data in result[4]] == writer.payloads
    # Twice, to find the end and to read.
    assert len(seen) < 2 * 3000 // 10


@pytest.mark.parametrize("other", ["longer", "batch", "large"])
def test_what_comes_between_single_frames_is_read_by_itself_and_little_else(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame of another length, a batch of two, or one of several blocks, after each 150 single frames."""
    writer = FileWriter()
    for number in range(3000):
        writer.add([b"x" * 100])
        if number % 150 == 149:
            writer.add({"longer": [b"y" * 900], "batch": [b"y", b"z"], "large": [b"y" * 9000]}[other])
    seen = counted_headers(monkeypatch)
    result = found(bytes(writer.data))
    assert isinstance(result, tuple)
    assert [data for _, data in result[4]] == writer.payloads
    # Twice, to find the end and to read; and a few where a part that was read has its end.
    assert len(seen) < 2 * (20 * 3 + 150)


@pytest.mark.parametrize("seed", range(12))
def test_columns_find_what_frames_one_by_one_do_with_damage_at_any_place(seed: int) -> None:
    """Random files, whole, cut, with a byte changed, or a block from elsewhere: the same frames or the same error."""
    rng = random.Random(seed)
    for _ in range(4):
        whole = random_file(rng).data
        for damage in range(12):
            data = bytearray(whole)
            at = rng.randrange(BLOCK_LENGTH, len(data))
            if rng.random() < 0.6:
                # Headers are a small part of a file, and most of what matters.
                at = at // BLOCK_LENGTH * BLOCK_LENGTH + rng.randrange(FRAME_HEADER_LENGTH + 8)
            if damage % 4 == 1:
                data[at] ^= 1 << rng.randrange(8)
            elif damage % 4 == 2:
                del data[at:]
            elif damage % 4 == 3:
                block = at // BLOCK_LENGTH * BLOCK_LENGTH
                other = rng.randrange(len(data) // BLOCK_LENGTH) * BLOCK_LENGTH
                data[block : block + BLOCK_LENGTH] = data[other : other + BLOCK_LENGTH]
            if rng.random() < 0.5:
                data += bytes(rng.randrange(3 * BLOCK_LENGTH))
            assert found(bytes(data)) == found_one_by_one(bytes(data))


@pytest.mark.parametrize("wrong", ["epoch", "sequence", "trailer"])
def test_good_frames_in_the_wrong_place_are_reported_as_one_by_one(wrong: str) -> None:
    """A frame with a good checksum of another epoch, or that skips a number, is corruption; a trailer is the end."""
    writer = FileWriter()
    for _ in range(40):
        writer.add([b"before"])
    if wrong == "epoch":
        writer.add([b"wrong"], epoch=HEADER.epoch + 1)
    elif wrong == "sequence":
        writer.add([b"wrong"], skip=1)
    else:
        writer.add([b""], FrameKind.TRAILER)
    for _ in range(40):
        writer.add([b"behind"])
    result = found(bytes(writer.data))
    assert result == found_one_by_one(bytes(writer.data))
    if wrong == "trailer":
        assert isinstance(result, tuple)
        assert len(result[4]) == 40
    else:
        assert "expected frame 42 of epoch 7" in str(result)


def test_runs_are_short_enough_to_be_one_turn() -> None:
    writer = FileWriter()
    for _ in range(2500):
        writer.add([b"x"])
    disk = SimulatedDisk(random.Random(0), files={PATH: bytes(writer.data)})
    file = recover(disk, DIRECTORY, 0, 0, must_exist=True).files[0]
    runs, _, _ = read_frames(disk, DIRECTORY, file, BLOCK_LENGTH, 1, 1 << 30)
    assert max(len(run.data) for run in runs) <= COLUMN_LENGTH_MAX
    assert sum(len(run.data) for run in runs) == 2500
