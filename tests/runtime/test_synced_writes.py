"""`LocalFile.write_synced`: one system call, and what becomes of it where that is refused or cut short."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.model.errors import StorageFullError
from penstock.runtime.disk import LocalDisk, LocalFile

pytestmark = pytest.mark.skipif(not LocalFile.knows_synced_writes, reason="the system has no writes that sync")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The system calls that were made."""
    made: list[str] = []
    fdatasync = os.fdatasync

    def sync(descriptor: int) -> None:
        made.append("fdatasync")
        fdatasync(descriptor)

    monkeypatch.setattr(os, "fdatasync", sync)
    monkeypatch.setattr(LocalFile, "knows_synced_writes", True)
    return made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[LocalFile]:
    """An empty file."""
    made = LocalDisk().open(str(tmp_path / "file"), create=True)
    yield made
    made.close()


def answer_flags_with(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], error: int | None, length_max: int = 1 << 30
) -> None:
    """Let writes with flags fail, or be cut short."""
    pwritev = os.pwritev

    def write(descriptor: int, buffers: list[bytes], offset: int, flags: int = 0) -> int:
        calls.append("pwritev" + (" synced" if flags else ""))
        if flags and error is not None:
            raise OSError(error, os.strerror(error))
        data = b"".join(buffers)
        return pwritev(descriptor, [data[:length_max] if flags else data], offset, flags)

    monkeypatch.setattr(os, "pwritev", write)


def test_a_synced_write_is_one_system_call(monkeypatch: pytest.MonkeyPatch, calls: list[str], file: LocalFile) -> None:
    answer_flags_with(monkeypatch, calls, None)
    assert file.write_synced(0, [b"one", b"two"]) == 6
    assert calls == ["pwritev synced"]
    assert file.read(0, 10) == b"onetwo"


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_after_a_refusal_the_process_writes_and_syncs_in_two_calls(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], file: LocalFile, error: int
) -> None:
    answer_flags_with(monkeypatch, calls, error)
    assert file.write_synced(0, [b"one"]) == 3
    assert calls == ["pwritev synced", "pwritev", "fdatasync"]
    del calls[:]
    assert file.write_synced(3, [b"two"]) == 3
    assert calls == ["pwritev", "fdatasync"]
    assert file.read(0, 10) == b"onetwo"


def test_an_error_of_the_disk_is_not_taken_for_a_refusal(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], file: LocalFile
) -> None:
    """The bytes may be lost, and a second sync might succeed without them: there must be none."""
    answer_flags_with(monkeypatch, calls, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.write_synced(0, [b"one"])
    assert calls == ["pwritev synced"]
    assert LocalFile.knows_synced_writes


def test_a_full_disk_is_reported_as_such(monkeypatch: pytest.MonkeyPatch, calls: list[str], file: LocalFile) -> None:
    answer_flags_with(monkeypatch, calls, errno.ENOSPC)
    with pytest.raises(StorageFullError):
        file.write_synced(0, [b"one"])


def test_a_write_that_was_cut_short_is_written_and_synced_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, calls: list[str], file: LocalFile
) -> None:
    answer_flags_with(monkeypatch, calls, None, length_max=4)
    assert file.write_synced(0, [b"one", b"two"]) == 6
    assert calls == ["pwritev synced", "pwritev", "fdatasync"]
    assert file.read(0, 10) == b"onetwo"
    assert LocalFile.knows_synced_writes
