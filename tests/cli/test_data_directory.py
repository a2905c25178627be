"""`DataDirectory`: who may use a directory, and with what. On a real directory, through the runtime's disk."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import (
    CorruptionError,
    DataDirectoryInUseError,
    DataDirectoryLostError,
    InvalidArgumentError,
    LaterVersionError,
)
from penstock.runtime.disk import LocalDisk
from penstock.runtime.runtime import Runtime, real_runtime
from penstock.server.data_directory import DataDirectory, Identity
from penstock.server.errors import DataDirectoryError


@pytest.fixture
def runtime() -> Runtime:
    """Return the real disk."""
    return real_runtime()


def test_a_new_directory_gets_a_permanent_identity(tmp_path: Path, runtime: Runtime) -> None:
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


def test_files_left_by_a_crash_do_not_prevent_a_start(tmp_path: Path, runtime: Runtime) -> None:
    """A lock file and half an identity, without a whole one: the start never got further."""
    (tmp_path / "LOCK").touch()
    (tmp_path / "penstock.toml.new").write_text("# Written by Pen")
    assert DataDirectory(str(tmp_path), runtime).open(4).container_count == 4


@pytest.mark.parametrize("name", ["penstock.toml", "penstock.toml.new", "LOCK"])
def test_unreadable_and_unwritable_files_are_reported(tmp_path: Path, runtime: Runtime, name: str) -> None:
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
    """A descriptor of another file, a second one of the same file, a lock that is not held, a closed descriptor."""
    parent = DataDirectory(str(tmp_path), runtime)
    parent.open(4)
    child = DataDirectory(str(tmp_path), runtime)
    with (tmp_path / "penstock.toml").open("rb") as other, pytest.raises(DataDirectoryError, match=r"is not .*LOCK"):
        child.check_lock(other.fileno())
    with (tmp_path / "LOCK").open("r+b") as again:
        with pytest.raises(DataDirectoryError, match="not locked through"):
            child.check_lock(again.fileno())
        parent.close()
        with pytest.raises(DataDirectoryError, match="is not locked"):
            child.check_lock(again.fileno())
    with pytest.raises(DataDirectoryError, match="only a server's own child"):
        child.check_lock(10_000)


def test_the_root_of_a_fresh_volume_is_an_empty_directory(tmp_path: Path, runtime: Runtime) -> None:
    """Each ext4 volume has a directory `lost+found` in its root, which only root can list."""
    (tmp_path / "lost+found").mkdir(mode=0o000)
    directory = DataDirectory(str(tmp_path), runtime)
    assert directory.open(4).container_count == 4
    directory.close()
    (tmp_path / "penstock.toml").unlink()
    (tmp_path / "mine").touch()
    with pytest.raises(DataDirectoryError, match=r"is not empty \(mine\)"):
        DataDirectory(str(tmp_path), runtime).open(4)


def opened(root: Path, runtime: Runtime) -> DataDirectory:
    directory = DataDirectory(str(root), runtime)
    directory.open(4)
    return directory


def test_no_log_of_a_closed_directory_is_claimed(tmp_path: Path, runtime: Runtime) -> None:
    directory = DataDirectory(str(tmp_path), runtime)
    with pytest.raises(DataDirectoryLostError, match="has not locked the directory"):
        directory.check_held()
    with pytest.raises(InvalidArgumentError, match="is not open"):
        directory.retake()
    directory.open(4)
    directory.check_held()
    directory.close()
    with pytest.raises(DataDirectoryLostError, match="has closed it"):
        directory.check_held()


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_lock_whose_file_was_removed_is_taken_again(tmp_path: Path, runtime: Runtime, is_replaced: bool) -> None:
    """Until then the directory is not held. Afterwards no other process can lock it."""
    directory = opened(tmp_path / "data", runtime)
    for _ in range(2):
        assert directory.retake() is None
        (tmp_path / "data" / "LOCK").unlink()
        if is_replaced:
            (tmp_path / "data" / "LOCK").touch()
        with pytest.raises(DataDirectoryLostError, match=r"LOCK was removed or replaced.*claims no log until"):
            directory.check_held()
        former = directory.retake()
        assert former is not None
        directory.check_held()
        former.release()
        directory.check_held()
        with pytest.raises(DataDirectoryInUseError):
            opened(tmp_path / "data", runtime)
    directory.close()
    opened(tmp_path / "data", runtime).close()


def test_a_directory_that_another_process_has_locked_is_lost_permanently(tmp_path: Path, runtime: Runtime) -> None:
    """Also when the other one closes it again; that one notices nothing."""
    earlier = opened(tmp_path, runtime)
    (tmp_path / "LOCK").unlink()
    later = opened(tmp_path, runtime)
    for act in (earlier.check_held, earlier.retake):
        with pytest.raises(DataDirectoryLostError):
            act()
    with pytest.raises(DataDirectoryLostError, match="another process has locked the new one") as lost:
        earlier.retake()
    assert lost.value.path == str(tmp_path)
    later.check_held()
    assert later.retake() is None
    later.close()
    for act in (earlier.check_held, earlier.retake):
        with pytest.raises(DataDirectoryLostError, match="another process has locked the new one"):
            act()
    earlier.close()
    opened(tmp_path, runtime).close()


def removed(data: Path) -> None:
    shutil.rmtree(data)


def renamed(data: Path) -> None:
    data.rename(data.with_name("renamed"))


def exchanged_for_a_copy(data: Path) -> None:
    data.rename(data.with_name("renamed"))
    shutil.copytree(data.with_name("renamed"), data)


def made_again(data: Path) -> None:
    shutil.rmtree(data)
    data.mkdir()


def exchanged_for_a_file(data: Path) -> None:
    shutil.rmtree(data)
    data.touch()


def led_elsewhere(data: Path) -> None:
    exchanged_for_a_copy(data)
    data.rename(data.with_name("copy"))
    data.symlink_to(data.with_name("copy"))


@pytest.mark.parametrize(
    "change", [removed, renamed, exchanged_for_a_copy, made_again, exchanged_for_a_file, led_elsewhere]
)
def test_a_replaced_directory_counts_as_lost(tmp_path: Path, runtime: Runtime, change: Callable[[Path], None]) -> None:
    """Nothing is made in its place."""
    directory = opened(tmp_path / "data", runtime)
    change(tmp_path / "data")
    before = sorted(tmp_path.rglob("*"))
    for act in (directory.check_held, directory.retake, directory.retake):
        with pytest.raises(DataDirectoryLostError, match="renamed, replaced or unmounted"):
            act()
    assert sorted(tmp_path.rglob("*")) == before
    directory.close()


def test_a_replaced_directory_is_never_modified_by_path(tmp_path: Path, runtime: Runtime) -> None:
    """Reads and open files continue. A lock file that is gone stops nothing; nor does a directory that is not open."""
    root = tmp_path / "data"
    directory = DataDirectory(str(root), runtime)
    disk = directory.held.disk
    directory.open(4)
    (root / "LOCK").unlink()
    disk.make_directory(f"{root}/tier2")
    written = disk.open(f"{root}/tier2/a", create=True)
    written.write(0, [b"before"])
    exchanged_for_a_copy(root)
    changes: list[Callable[[], object]] = [
        lambda: disk.open(f"{root}/tier2/b", create=True),
        lambda: disk.open(f"{root}/tier2/a"),
        lambda: disk.make_directory(f"{root}/tier2/c"),
        lambda: disk.rename(f"{root}/tier2/a", f"{root}/tier2/b"),
        lambda: disk.link(f"{root}/tier2/a", f"{root}/tier2/b"),
        lambda: disk.remove(f"{root}/tier2/a"),
        lambda: disk.remove_directory(f"{root}/tier2"),
        lambda: disk.lock(f"{root}/tier2/log.lock"),
    ]
    for change in changes:
        with pytest.raises(DataDirectoryLostError, match="renamed, replaced or unmounted"):
            change()
    assert disk.list_directory(f"{root}/tier2") == ["a"]
    assert disk.open(f"{root}/tier2/a", writable=False).read(0, 10) == b"before"
    written.write(0, [b"behind"])
    assert (tmp_path / "renamed" / "tier2" / "a").read_bytes() == b"behind"
    directory.close()
    disk.remove(f"{root}/tier2/a")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "penstock.toml is gone"),
        (Identity("7d1b0a52-0000-4000-8000-000000000000", 4).encode(), "penstock.toml is another store's"),
        (b"damaged", "checksum does not match"),
    ],
)
def test_a_directory_with_replaced_contents_counts_as_lost(
    tmp_path: Path, runtime: Runtime, content: bytes | None, why: str
) -> None:
    """As when it is emptied and filled from another one, the directory itself being the same."""
    directory = opened(tmp_path, runtime)
    (tmp_path / "LOCK").unlink()
    if content is None:
        (tmp_path / "penstock.toml").unlink()
    else:
        (tmp_path / "penstock.toml").write_bytes(content)
    with pytest.raises(DataDirectoryLostError, match=why):
        directory.retake()
    assert not (tmp_path / "LOCK").exists()
    with pytest.raises(DataDirectoryLostError, match=why):
        directory.check_held()


def test_a_lock_that_cannot_be_taken_now_is_taken_later(tmp_path: Path, runtime: Runtime) -> None:
    """A directory has the name of the lock file until it is removed. No log is claimed before that."""
    directory = opened(tmp_path, runtime)
    (tmp_path / "LOCK").unlink()
    (tmp_path / "LOCK").mkdir()
    with pytest.raises(IsADirectoryError):
        directory.retake()
    with pytest.raises(DataDirectoryLostError, match="claims no log until"):
        directory.check_held()
    (tmp_path / "LOCK").rmdir()
    assert directory.retake() is not None
    directory.check_held()


def test_a_child_claims_no_log_before_it_has_the_new_lock(tmp_path: Path, runtime: Runtime) -> None:
    """Then the directory stays locked until both have closed that one."""
    parent = opened(tmp_path, runtime)
    child = DataDirectory(str(tmp_path), runtime)
    child.check_lock(os.dup(parent.lock_descriptor))
    child.check_held()
    (tmp_path / "LOCK").unlink()
    assert parent.retake() is not None
    with pytest.raises(DataDirectoryLostError):
        child.check_held()
    child.check_lock(os.dup(parent.lock_descriptor))
    child.check_held()
    parent.close()
    child.check_held()
    with pytest.raises(DataDirectoryInUseError):
        opened(tmp_path, runtime)
    child.close()
    opened(tmp_path, runtime).close()


@pytest.mark.parametrize("is_always", [False, True])
def test_a_lock_file_removed_while_locked_is_created_and_locked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_always: bool
) -> None:
    """Or two processes would have locked two files of the same name."""
    path = tmp_path / "LOCK"
    flock = fcntl.flock
    calls = 0

    def remove_and_lock(descriptor: int, operation: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1 or is_always:
            path.unlink()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    if is_always:
        with pytest.raises(DataDirectoryInUseError, match="removed or replaced each of 10 times"):
            LocalDisk().lock(str(path))
        return
    lock = LocalDisk().lock(str(path))
    assert calls == 2
    with pytest.raises(DataDirectoryInUseError, match="locked by another process"):
        LocalDisk().lock(str(path))
    lock.release()
