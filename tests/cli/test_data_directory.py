"""`DataDirectory`: who may use a directory, and with what. On a real directory, through the runtime's disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.data_directory import DataDirectory, DataDirectoryError, Identity
from penstock.model.errors import CorruptionError, DataDirectoryInUseError, InvalidArgumentError, LaterVersionError
from penstock.runtime.runtime import Runtime, real_runtime


@pytest.fixture
def runtime() -> Runtime:
    """Return the real disk."""
    return real_runtime()


def test_a_new_directory_gets_an_identity_that_stays(tmp_path: Path, runtime: Runtime) -> None:
    """Also when its parents are missing."""
    root = str(tmp_path / "a" / "b")
    directory = DataDirectory(root, runtime)
    first = directory.open(4)
    directory.close()
    assert DataDirectory(root, runtime).open(4) == first
    assert first.container_count == 4


def test_two_at_a_time_are_refused(tmp_path: Path, runtime: Runtime) -> None:
    """Until the first is closed; closing twice is fine."""
    first = DataDirectory(str(tmp_path), runtime)
    first.open(4)
    second = DataDirectory(str(tmp_path), runtime)
    with pytest.raises(DataDirectoryInUseError, match="another process"):
        second.open(4)
    first.close()
    first.close()
    second.open(4)


def test_a_refusal_keeps_no_lock(tmp_path: Path, runtime: Runtime) -> None:
    """After the wrong number of containers the right one works."""
    DataDirectory(str(tmp_path), runtime).open(4)
    first = DataDirectory(str(tmp_path / "other"), runtime)
    first.open(4)
    first.close()
    with pytest.raises(DataDirectoryError, match="--containers 4, not 5"):
        DataDirectory(str(tmp_path / "other"), runtime).open(5)
    DataDirectory(str(tmp_path / "other"), runtime).open(4)


def test_what_a_crash_may_leave_is_no_hindrance(tmp_path: Path, runtime: Runtime) -> None:
    """A lock file and half an identity, without a whole one: the start never got further."""
    (tmp_path / "LOCK").touch()
    (tmp_path / "penstock.toml.new").write_text("# Written by Pen")
    assert DataDirectory(str(tmp_path), runtime).open(4).container_count == 4


@pytest.mark.parametrize("name", ["penstock.toml", "penstock.toml.new", "LOCK"])
def test_what_cannot_be_read_or_written_is_told(tmp_path: Path, runtime: Runtime, name: str) -> None:
    """A directory where a file belongs; the lock is given back."""
    (tmp_path / name).mkdir()
    with pytest.raises(DataDirectoryError, match="cannot be used as data directory: Is a directory"):
        DataDirectory(str(tmp_path), runtime).open(4)
    (tmp_path / name).rmdir()
    DataDirectory(str(tmp_path), runtime).open(4)


def test_data_without_an_identity_are_not_taken_over(tmp_path: Path, runtime: Runtime) -> None:
    """The number of containers would be a guess."""
    (tmp_path / "tier1").mkdir()
    with pytest.raises(DataDirectoryError, match=r"tier1.*no penstock\.toml"):
        DataDirectory(str(tmp_path), runtime).open(4)
    assert not (tmp_path / "LOCK").exists()


@pytest.mark.parametrize("position", [0, 30, 100, -3])
def test_each_changed_byte_of_the_identity_is_found(position: int) -> None:
    """The checksum covers all that stands before it."""
    data = bytearray(Identity("c", 4).encode())
    data[position] ^= 1
    with pytest.raises(CorruptionError):
        Identity.decode(bytes(data), "penstock.toml")


def test_an_identity_survives_its_encoding_and_a_later_format_is_refused() -> None:
    """A newer program's directory says which program to take."""
    identity = Identity("0b0e", 16)
    assert Identity.decode(identity.encode(), "p") == identity
    from penstock.model.checksum import crc32c
    body = identity.encode().rpartition(b"crc32c")[0].replace(b"format_version = 1", b"format_version = 2")
    later = body + b'crc32c = "%08x"\n' % crc32c(body, 0)
    with pytest.raises(LaterVersionError, match="format version 2, this version reads 1"):
        Identity.decode(later, "p")


def test_a_child_works_under_the_lock_that_it_has_inherited(tmp_path: Path, runtime: Runtime) -> None:
    """And the directory stays locked until both have closed it."""
    parent = DataDirectory(str(tmp_path), runtime)
    with pytest.raises(InvalidArgumentError, match="is not open"):
        _ = parent.lock_descriptor
    parent.open(4)
    child = DataDirectory(str(tmp_path), runtime)
    child.check_lock(os.dup(parent.lock_descriptor))
    parent.close()
    with pytest.raises(DataDirectoryInUseError):
        DataDirectory(str(tmp_path), runtime).open(4)
    child.close()
    DataDirectory(str(tmp_path), runtime).open(4)


def test_another_descriptor_than_that_of_the_lock_is_refused(tmp_path: Path, runtime: Runtime) -> None:
    """Of another file, of the same file opened again, of a lock that nobody holds, and one that is closed."""
    parent = DataDirectory(str(tmp_path), runtime)
    parent.open(4)
    child = DataDirectory(str(tmp_path), runtime)
    with (tmp_path / "penstock.toml").open("rb") as other, pytest.raises(DataDirectoryError, match=r"is not .*LOCK"):
        child.check_lock(other.fileno())
    with (tmp_path / "LOCK").open("r+b") as again:
        with pytest.raises(DataDirectoryError, match="not locked through"):
            child.check_lock(again.fileno())
        parent.close()
        with pytest.raises(DataDirectoryError, match="nobody holds"):
            child.check_lock(again.fileno())
    with pytest.raises(DataDirectoryError, match="only a server's own child"):
        child.check_lock(10_000)


def test_the_root_of_a_fresh_volume_is_an_empty_directory(tmp_path: Path, runtime: Runtime) -> None:
    """Each ext4 volume has a directory `lost+found` in its root, which nobody but root can list."""
    (tmp_path / "lost+found").mkdir(mode=0o000)
    directory = DataDirectory(str(tmp_path), runtime)
    assert directory.open(4).container_count == 4
    directory.close()
    (tmp_path / "penstock.toml").unlink()
    (tmp_path / "mine").touch()
    with pytest.raises(DataDirectoryError, match=r"is not empty \(mine\)"):
        DataDirectory(str(tmp_path), runtime).open(4)
