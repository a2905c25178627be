"""`Disk`: one suite that the local disk, the simulated one and the recording wrapper pass."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from penstock.model.errors import DataDirectoryInUseError
from penstock.runtime.disk import Disk, LocalDisk, LockState
from penstock_simulation.crash_states import RecordingDisk
from penstock_simulation.simulated.disk import SimulatedDisk


@pytest.fixture(params=["local", "simulated", "recording"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and an empty directory on it."""
    disk: Disk
    if request.param == "local":
        disk = LocalDisk()
    elif request.param == "simulated":
        disk = SimulatedDisk(random.Random(1))
    else:
        disk = RecordingDisk(SimulatedDisk(random.Random(1)))
    root = str(tmp_path / "root")
    disk.make_directory(root)
    return disk, root


Place = tuple[Disk, str]


def create(disk: Disk, path: str, content: bytes = b"") -> None:
    file = disk.open(path, create=True)
    file.write(0, [content])
    file.close()


def content_of(disk: Disk, path: str) -> bytes:
    file = disk.open(path, writable=False)
    try:
        return file.read(0, 1 << 20)
    finally:
        file.close()


def test_what_was_written_is_read_back_in_order_of_the_buffers(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    assert file.path == f"{root}/a"
    assert file.write(0, [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""]) == 6
    assert file.write(3, [b"XY"]) == 2
    assert (file.read(0, 100), file.read(2, 3), file.read(5, 1)) == (b"abcXYf", b"cXY", b"f")
    assert file.length() == 6
    file.sync()
    file.close()
    assert content_of(disk, f"{root}/a") == b"abcXYf"


def test_reads_at_and_beyond_the_end_are_empty_and_gaps_are_zeros(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    assert (file.read(0, 10), file.read(10, 10), file.length()) == (b"", b"", 0)
    file.write(5, [b"x"])
    assert (file.read(0, 10), file.read(6, 1), file.read(7, 1)) == (b"\0\0\0\0\0x", b"", b"")
    assert file.write(100, [b""]) == 0
    assert file.length() == 6
    file.close()


def test_a_synced_write_is_a_write_of_any_number_of_buffers(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    assert file.write_synced(0, [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""]) == 6
    assert file.write_synced(8, [b"%d" % (number % 10) for number in range(3000)]) == 3000
    assert file.length() == 3008
    assert file.read(0, 12) == b"abcdef\0\x000123"
    assert file.read(3000, 100) == b"23456789"
    file.close()
    with pytest.raises((OSError, ValueError)):
        file.write_synced(0, [b"x"])


def test_a_shared_byte_shows_every_write_at_once_whatever_becomes_of_the_name(place: Place) -> None:
    disk, root = place
    create(disk, f"{root}/a", bytes(1536))
    mine = disk.open(f"{root}/a")
    byte = mine.share(1024)
    assert byte is not None
    assert byte.value() == 0
    other = disk.open(f"{root}/a")
    other.write(1023, [b"\1\2\3"])
    assert byte.value() == 2
    create(disk, f"{root}/b", bytes(1536))
    disk.rename(f"{root}/b", f"{root}/a")
    assert byte.value() == 2
    other.write_synced(1024, [b"\7"])
    other.close()
    assert byte.value() == 7
    byte.close()
    mine.close()


def test_a_link_is_a_second_name_and_replaces_nothing(place: Place) -> None:
    disk, root = place
    create(disk, f"{root}/a", b"content")
    create(disk, f"{root}/b", b"other")
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/a", f"{root}/b")
    with pytest.raises(FileNotFoundError):
        disk.link(f"{root}/none", f"{root}/c")
    disk.link(f"{root}/a", f"{root}/c")
    assert disk.list_directory(root) == ["a", "b", "c"]
    file = disk.open(f"{root}/c")
    disk.remove(f"{root}/a")
    assert file.is_linked()
    disk.sync_directory(root)
    assert (content_of(disk, f"{root}/b"), content_of(disk, f"{root}/c")) == (b"other", b"content")
    disk.remove(f"{root}/c")
    assert not file.is_linked()
    file.close()


def test_truncate_cuts_and_extends_with_zeros(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    file.write(0, [b"abcdef"])
    file.truncate(2)
    assert (file.length(), file.read(0, 10)) == (2, b"ab")
    file.truncate(4)
    assert file.read(0, 10) == b"ab\0\0"
    file.write(6, [b"z"])
    assert file.read(0, 10) == b"ab\0\0\0\0z"
    file.close()


def test_two_handles_see_one_file(place: Place) -> None:
    disk, root = place
    first = disk.open(f"{root}/a", create=True)
    second = disk.open(f"{root}/a")
    first.write(0, [b"one"])
    assert second.read(0, 3) == b"one"
    second.truncate(1)
    assert first.length() == 1
    first.close()
    assert second.read(0, 3) == b"o"
    second.close()


def test_open_follows_its_flags(place: Place) -> None:
    disk, root = place
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing/a", create=True)
    create(disk, f"{root}/a", b"x")
    with pytest.raises(FileExistsError):
        disk.open(f"{root}/a", create=True, exclusive=True)
    disk.open(f"{root}/a", create=True).close()
    assert content_of(disk, f"{root}/a") == b"x"
    with pytest.raises(IsADirectoryError):
        disk.open(root)
    with pytest.raises(NotADirectoryError):
        disk.open(f"{root}/a/b", create=True)
    with pytest.raises(OSError):
        disk.open(f"{root}/a", writable=False).write(0, [b"y"])
    disk.open(f"{root}/new", create=True, exclusive=True).close()
    assert disk.exists(f"{root}/new")


def test_closed_file_refuses_everything_but_close(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    file.close()
    file.close()
    for call in (file.length, file.sync, lambda: file.read(0, 1), lambda: file.write(0, [b"x"])):
        with pytest.raises((OSError, ValueError)):
            call()


def test_negative_offsets_are_refused(place: Place) -> None:
    disk, root = place
    file = disk.open(f"{root}/a", create=True)
    for call in (lambda: file.read(-1, 1), lambda: file.truncate(-1)):
        with pytest.raises(OSError):
            call()
    file.close()


def test_rename_replaces_the_target_and_open_files_follow_their_file(place: Place) -> None:
    disk, root = place
    create(disk, f"{root}/target", b"old")
    old = disk.open(f"{root}/target")
    create(disk, f"{root}/source", b"new")
    new = disk.open(f"{root}/source")
    assert old.is_linked()
    disk.rename(f"{root}/source", f"{root}/target")
    assert (old.is_linked(), new.is_linked()) == (False, True)
    assert (old.read(0, 3), new.read(0, 3)) == (b"old", b"new")
    assert disk.list_directory(root) == ["target"]
    assert content_of(disk, f"{root}/target") == b"new"
    disk.rename(f"{root}/target", f"{root}/target")
    assert new.is_linked()
    old.close()
    new.close()
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/source", f"{root}/other")
    disk.make_directory(f"{root}/folder")
    with pytest.raises(IsADirectoryError):
        disk.rename(f"{root}/target", f"{root}/folder")
    disk.rename(f"{root}/target", f"{root}/folder/inside")
    assert content_of(disk, f"{root}/folder/inside") == b"new"


def test_directories_move_with_what_is_in_them(place: Place) -> None:
    disk, root = place
    disk.make_directory(f"{root}/a/b")
    create(disk, f"{root}/a/b/file", b"x")
    disk.make_directory(f"{root}/empty")
    disk.rename(f"{root}/a", f"{root}/empty")
    assert content_of(disk, f"{root}/empty/b/file") == b"x"
    disk.make_directory(f"{root}/c")
    with pytest.raises(OSError):
        disk.rename(f"{root}/c", f"{root}/empty")
    with pytest.raises(OSError):
        disk.rename(f"{root}/empty", f"{root}/empty/b/inside")
    create(disk, f"{root}/file")
    with pytest.raises(NotADirectoryError):
        disk.rename(f"{root}/c", f"{root}/file")


def test_a_removed_file_exists_until_its_last_handle_is_closed(place: Place) -> None:
    disk, root = place
    create(disk, f"{root}/a", b"x")
    file = disk.open(f"{root}/a")
    disk.remove(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    assert not file.is_linked()
    file.write(1, [b"y"])
    file.sync()
    assert file.read(0, 5) == b"xy"
    create(disk, f"{root}/a", b"other")
    assert not file.is_linked()
    file.close()
    assert content_of(disk, f"{root}/a") == b"other"
    with pytest.raises(FileNotFoundError):
        disk.remove(f"{root}/b")
    with pytest.raises(OSError):
        disk.remove(root)


def test_directories_are_made_with_their_parents_and_listed_sorted(place: Place) -> None:
    disk, root = place
    disk.make_directory(f"{root}/x/y/z")
    disk.make_directory(f"{root}/x/y/z")
    for name in ("b", "a", "C"):
        create(disk, f"{root}/x/{name}")
    assert disk.list_directory(f"{root}/x") == ["C", "a", "b", "y"]
    assert disk.list_directory(f"{root}/x/y/z") == []
    with pytest.raises(FileNotFoundError):
        disk.list_directory(f"{root}/none")
    with pytest.raises(NotADirectoryError):
        disk.list_directory(f"{root}/x/a")
    with pytest.raises(NotADirectoryError):
        disk.make_directory(f"{root}/x/a/deeper")
    assert not disk.exists(f"{root}/x/a/deeper")


def test_only_empty_directories_are_removed(place: Place) -> None:
    disk, root = place
    disk.make_directory(f"{root}/x/y")
    with pytest.raises(OSError):
        disk.remove_directory(f"{root}/x")
    disk.remove_directory(f"{root}/x/y")
    disk.remove_directory(f"{root}/x")
    assert not disk.exists(f"{root}/x")
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(f"{root}/x")
    create(disk, f"{root}/file")
    with pytest.raises(NotADirectoryError):
        disk.remove_directory(f"{root}/file")


def test_directory_sync_needs_a_directory(place: Place) -> None:
    disk, root = place
    disk.sync_directory(root)
    create(disk, f"{root}/file")
    disk.sync_directory(root)
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(f"{root}/none")
    with pytest.raises(NotADirectoryError):
        disk.sync_directory(f"{root}/file")


def test_lock_is_exclusive_makes_its_file_and_can_be_taken_again(place: Place) -> None:
    disk, root = place
    lock = disk.lock(f"{root}/LOCK")
    assert disk.exists(f"{root}/LOCK")
    with pytest.raises(DataDirectoryInUseError):
        disk.lock(f"{root}/LOCK")
    other = disk.lock(f"{root}/OTHER")
    lock.release()
    lock.release()
    again = disk.lock(f"{root}/LOCK")
    lock.release()
    with pytest.raises(DataDirectoryInUseError):
        disk.lock(f"{root}/LOCK")
    again.release()
    other.release()


def test_a_lock_says_whether_its_path_leads_to_it(place: Place) -> None:
    """Also after its file was removed, created again and locked by another, and its directory renamed and replaced."""
    disk, root = place
    disk.make_directory(f"{root}/data")
    path = f"{root}/data/LOCK"
    lock = disk.lock(path)
    assert lock.state() is LockState.IN_PLACE
    disk.rename(path, f"{root}/data/OTHER")
    assert lock.state() is LockState.FILE_GONE
    disk.rename(f"{root}/data/OTHER", path)
    assert lock.state() is LockState.IN_PLACE
    disk.remove(path)
    assert lock.state() is LockState.FILE_GONE
    other = disk.lock(path)
    assert (lock.state(), other.state()) == (LockState.FILE_GONE, LockState.IN_PLACE)
    lock.release()
    with pytest.raises(DataDirectoryInUseError):
        disk.lock(path)
    disk.rename(f"{root}/data", f"{root}/moved")
    assert other.state() is LockState.DIRECTORY_GONE
    disk.make_directory(f"{root}/data")
    assert other.state() is LockState.DIRECTORY_GONE
    create(disk, path)
    assert other.state() is LockState.DIRECTORY_GONE
    disk.remove(path)
    disk.remove_directory(f"{root}/data")
    disk.rename(f"{root}/moved", f"{root}/data")
    assert other.state() is LockState.IN_PLACE
    other.release()
