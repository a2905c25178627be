"""The fault contract of `SimulatedDisk` (docs/fault-model.md), clause by clause."""

from __future__ import annotations

import errno
import random
from functools import partial
from pathlib import Path

import pytest

from penstock.model.errors import DataDirectoryInUseError, InvalidArgumentError, StorageFullError
from penstock_simulation.simulated.disk import SimulatedDisk, SimulatedFile
from penstock_simulation.simulated.disk_faults import (
    CrashKind,
    DiskCall,
    DiskFaults,
    FailedSync,
    NameOrder,
    ProcessGoneError,
    SyncFailedError,
)
from penstock_simulation.simulated.disk_nodes import FileNode
from penstock_simulation.simulated.disk_tree import CrashPlan

SECTOR = 4
SMALL = DiskFaults(sector_bytes=SECTOR)


def disk_with(files: dict[str, bytes] | None = None, faults: DiskFaults = SMALL, seed: int = 1) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), faults, files=files)


def contents_after_crash(disk: SimulatedDisk, path: str) -> set[bytes | None]:
    """Every content that `path` may have after losing power, by enumeration; None: the name is gone."""
    found: set[bytes | None] = set()
    nodes = disk.tree.unsynced_files()
    for names in disk.tree.name_choices():
        if not nodes:
            found.add(disk.after_crash(CrashPlan("", names, {})).files().get(path))
        for node in nodes:
            for outcome in node.outcomes():
                found.add(disk.after_crash(CrashPlan("", names, {node.number: outcome})).files().get(path))
    return found


def write(disk: SimulatedDisk, path: str, offset: int, data: bytes) -> SimulatedFile:
    file = disk.open(path, create=True)
    file.write(offset, [data])
    return file


# Files.


def test_unsynced_write_survives_sector_by_sector() -> None:
    """Two sectors overwritten: each is old or new, independently; bytes not written to stay."""
    disk = disk_with({"/f": b"aaaabbbbcccc"})
    write(disk, "/f", 0, b"AAAABBBB")
    assert contents_after_crash(disk, "/f") == {b"aaaabbbbcccc", b"AAAAbbbbcccc", b"aaaaBBBBcccc", b"AAAABBBBcccc"}


def test_writes_to_one_sector_keep_their_order() -> None:
    """The second of two writes to a sector never lands without the first: sectors are written whole, from the cache."""
    disk = disk_with({"/f": b"abcd"})
    write(disk, "/f", 0, b"1").write(1, [b"2"])
    assert contents_after_crash(disk, "/f") == {b"abcd", b"1bcd", b"12cd"}


def test_writes_to_different_sectors_are_reordered() -> None:
    disk = disk_with({"/f": b"aaaabbbb"})
    write(disk, "/f", 0, b"1111").write(4, [b"2222"])
    assert b"aaaa2222" in contents_after_crash(disk, "/f")


def test_length_and_data_of_an_extension_survive_apart() -> None:
    """Data without length (cut), length without data (zeros); never bytes that were not written."""
    disk = disk_with({"/f": b"ab"})
    write(disk, "/f", 2, b"cdef")
    found = contents_after_crash(disk, "/f")
    assert found == {b"ab", b"abcd", b"ab\0\0", b"abcdef", b"abcd\0\0", b"ab\0\0ef", b"ab\0\0\0\0"}


def test_synced_bytes_survive_everything() -> None:
    disk = disk_with({"/f": b""})
    file = write(disk, "/f", 0, b"synced!!")
    file.sync()
    assert contents_after_crash(disk, "/f") == {b"synced!!"}
    file.write(8, [b"more"])
    assert all(found is not None and found.startswith(b"synced!!") for found in contents_after_crash(disk, "/f"))


def test_unsynced_truncation_took_effect_or_not_and_hides_what_it_cut() -> None:
    """Bytes written after a cut are seen only if the cut happened; the bytes cut off never come back after it."""
    disk = disk_with({"/f": b"aaaabbbbcc"})
    file = disk.open("/f")
    file.truncate(6)
    assert contents_after_crash(disk, "/f") == {b"aaaabbbbcc", b"aaaabb"}
    file.write(8, [b"Z"])
    assert contents_after_crash(disk, "/f") == {
        b"aaaabbbbcc", b"aaaabb", b"aaaabb\0\0\0", b"aaaabb\0\0Z",
    }  # fmt: skip
    file.truncate(12)
    file.sync()
    assert contents_after_crash(disk, "/f") == {b"aaaabb\0\0Z\0\0\0"}


def test_extension_by_truncate_does_not_void_what_was_written() -> None:
    disk = disk_with({"/f": b""})
    file = write(disk, "/f", 0, b"abcd")
    file.truncate(8)
    assert {b"", b"abcd", b"\0" * 8, b"abcd\0\0\0\0"} <= contents_after_crash(disk, "/f")
    assert file.read(0, 9) == b"abcd\0\0\0\0"


@pytest.mark.parametrize("seed", range(60))
def test_any_drawn_crash_state_is_a_legal_one(seed: int) -> None:
    """Random writes, cuts and syncs of one file; whatever kind of crash is drawn, enumeration has it."""
    rng = random.Random(seed)
    disk = disk_with({"/f": rng.randbytes(rng.randrange(10))}, seed=seed)
    file = disk.open("/f")
    for _ in range(rng.randint(1, 4)):
        match rng.choice("wwwts"):
            case "w":
                file.write(rng.randrange(12), [rng.randbytes(rng.randint(1, 7))])
            case "t":
                file.truncate(rng.randrange(12))
            case "s":
                file.sync()
    (node,) = disk.tree.unsynced_files() or [FileNode(1, SECTOR)]
    legal = contents_after_crash(disk, "/f")
    for _ in range(20):
        plan = disk.draw_crash_plan()
        found = disk.after_crash(plan).files()["/f"]
        # Drawn lengths may also be sector boundaries between those enumerated.
        assert any(other is not None and other[: len(found)] == found for other in legal), plan
        if node.pending:
            node.content_after(node.kept())
    kept = disk.after_crash(disk.tree.keep_plan()).files()["/f"]
    assert kept == file.read(0, 100)


# Names.


@pytest.mark.parametrize("order", list(NameOrder))
def test_creation_needs_a_directory_sync_and_a_file_sync_is_none(order: NameOrder) -> None:
    disk = disk_with(faults=DiskFaults(sector_bytes=SECTOR, name_order=order))
    disk.make_directory("/d")
    write(disk, "/d/f", 0, b"x").sync()
    assert contents_after_crash(disk, "/d/f") == {None, b"x"}
    disk.sync_directory("/d")
    assert contents_after_crash(disk, "/d/f") == {b"x"}


@pytest.mark.parametrize("order", list(NameOrder))
def test_rename_is_atomic_and_durable_with_the_directory(order: NameOrder) -> None:
    disk = disk_with({"/d/f": b"old"}, faults=DiskFaults(sector_bytes=SECTOR, name_order=order))
    write(disk, "/d/t", 0, b"new").sync()
    disk.rename("/d/t", "/d/f")
    assert contents_after_crash(disk, "/d/f") == {b"old", b"new"}
    disk.sync_directory("/d")
    assert contents_after_crash(disk, "/d/f") == {b"new"}
    assert disk.list_directory("/d") == ["f"]


def test_renamed_but_unsynced_file_may_be_empty() -> None:
    """The classic: write, rename, sync of the directory, no sync of the file."""
    disk = disk_with({"/d/f": b"old"})
    write(disk, "/d/t", 0, b"new")
    disk.rename("/d/t", "/d/f")
    disk.sync_directory("/d")
    assert contents_after_crash(disk, "/d/f") == {b"", b"new", b"\0\0\0"}


def test_journal_keeps_a_prefix_of_names_and_the_bare_contract_any_subset() -> None:
    prefix, subset = (disk_with(faults=DiskFaults(name_order=order)) for order in (NameOrder.PREFIX, NameOrder.SUBSET))
    seen = []
    for disk in (prefix, subset):
        disk.open("/a", create=True)
        disk.open("/b", create=True)
        found = set()  # type: ignore[var-annotated]
        for _ in range(60):
            found.add(tuple(disk.after_crash(disk.tree.reorder_plan(random.Random(len(found)))).files()))
        for names in disk.tree.name_choices():
            found.add(tuple(disk.after_crash(CrashPlan("", names, {})).files()))
        seen.append(found)
    assert seen == [{(), ("/a",), ("/a", "/b")}, {(), ("/a",), ("/b",), ("/a", "/b")}]


def test_sync_of_one_directory_covers_older_names_elsewhere_only_with_a_journal() -> None:
    for order, expected in ((NameOrder.PREFIX, ["/a/f", "/b/g"]), (NameOrder.SUBSET, ["/b/g"])):
        disk = disk_with(faults=DiskFaults(name_order=order))
        disk.make_directory("/a")
        disk.make_directory("/b")
        disk.open("/a/f", create=True)
        disk.open("/b/g", create=True)
        disk.sync_directory("/b")
        assert sorted(disk.after_crash(CrashPlan("", frozenset(), {})).files()) == expected


def test_changes_of_one_file_keep_their_order_in_any_subset() -> None:
    """Create, rename, rename: a later name never comes without the earlier changes, so a file has one name."""
    disk = disk_with(faults=DiskFaults(name_order=NameOrder.SUBSET))
    disk.open("/a", create=True)
    disk.rename("/a", "/b")
    disk.open("/x", create=True)
    disk.rename("/b", "/c")
    for seed in range(50):
        names = set(disk.after_crash(disk.tree.reorder_plan(random.Random(seed))).files())
        assert len(names - {"/x"}) <= 1


def test_removed_name_may_come_back_until_the_directory_is_synced() -> None:
    disk = disk_with({"/f": b"x"})
    disk.remove("/f")
    assert contents_after_crash(disk, "/f") == {None, b"x"}
    disk.sync_directory("/")
    assert contents_after_crash(disk, "/f") == {None}


def test_made_directories_are_durable_at_once_unless_the_process_dies_in_between() -> None:
    disk = disk_with()
    disk.make_directory("/a/b")
    assert disk.after_crash(CrashPlan("", frozenset(), {})).directories() == ["/a", "/a/b"]

    def stop(call: str, path: str) -> None:
        if call == DiskCall.SYNC_DIRECTORY and path == "/a/b":
            raise OSError(errno.EIO, "killed")

    disk.hook = stop
    with pytest.raises(OSError):
        disk.make_directory("/a/b/c")
    disk.process_kill()
    disk.make_directory("/a/b/c")  # It is there, so nothing is synced.
    assert disk.exists("/a/b/c")
    assert disk.after_crash(CrashPlan("", frozenset(), {})).directories() == ["/a", "/a/b"]


# Crash, kill.


def test_each_crash_kind_has_its_documented_effect() -> None:
    for kind, expected in ((CrashKind.DROP, {}), (CrashKind.KEEP, {"/f": b"abcdefgh"})):
        disk = disk_with(faults=DiskFaults(sector_bytes=SECTOR, crash_kinds=(kind,)))
        write(disk, "/f", 0, b"abcdefgh")
        disk.crash()
        assert disk.files() == expected
    seen = set()
    for seed in range(200):
        disk = disk_with({"/f": b""}, DiskFaults(sector_bytes=SECTOR, crash_kinds=(CrashKind.TEAR,)), seed)
        write(disk, "/f", 0, b"abcd").write(4, [b"efghijkl"])
        disk.crash()
        seen.add(disk.files()["/f"])
    assert seen == {b"", b"abcd", b"abcdefgh", b"abcdefghijkl"}


def test_crash_and_kill_end_handles_and_locks_and_a_kill_keeps_the_page_cache() -> None:
    for is_crash in (True, False):
        disk = disk_with({"/f": b"old"}, DiskFaults(crash_kinds=(CrashKind.DROP,)))
        file = write(disk, "/f", 0, b"new")
        lock = disk.lock("/LOCK")
        disk.hook = lambda call, path: None
        (disk.crash if is_crash else disk.process_kill)()
        for call in (file.length, file.sync, file.is_linked, partial(file.read, 0, 1), partial(file.write, 0, [b"z"])):
            with pytest.raises(ProcessGoneError):
                call()
        file.close()
        again = disk.lock("/LOCK")
        lock.release()  # That of the dead process: it takes nothing from the living one.
        with pytest.raises(DataDirectoryInUseError):
            disk.lock("/LOCK")
        again.release()
        assert disk.files()["/f"] == (b"old" if is_crash else b"new")
        disk.crash()
        assert disk.files()["/f"] == b"old"


def test_only_synced_writes_are_durable() -> None:
    """Its sectors as the page cache has them, and the length; other unsynced writes stay so, cut where it lies."""
    disk = disk_with({"/f": b"o" * 2048}, DiskFaults(sector_bytes=512, crash_kinds=(CrashKind.DROP,)))
    file = write(disk, "/f", 0, b"a" * 1536)
    file.write_synced(600, [b"b" * 100])
    file.write(3000, [b"unsynced"])
    file.write_synced(2500, [b"c" * 100])
    shown = disk.files()["/f"]
    disk.crash()
    sectors = b"o" * 512 + b"a" * 88 + b"b" * 100 + b"a" * 324 + b"o" * 1024
    assert disk.files()["/f"] == sectors + bytes(2500 - 2048) + b"c" * 100
    assert shown[2500:2600] == b"c" * 100


def test_any_sector_of_unsynced_data_may_survive_a_crash() -> None:
    disk = disk_with({"/f": b"o" * 1536}, DiskFaults(sector_bytes=512))
    file = write(disk, "/f", 0, b"a" * 1536)
    file.write_synced(512, [b"b" * 512])
    found = contents_after_crash(disk, "/f")
    assert found == {first * 512 + b"b" * 512 + last * 512 for first in (b"o", b"a") for last in (b"o", b"a")}


@pytest.mark.parametrize("outcome", list(FailedSync))
def test_a_synced_write_whose_sync_fails_raises_and_may_be_lost(outcome: FailedSync) -> None:
    disk = disk_with({"/f": b"o" * 512}, DiskFaults(crash_kinds=(CrashKind.DROP,)))
    file = disk.open("/f")

    def fail(call: str, path: str) -> None:
        if call == "sync":
            raise SyncFailedError(outcome)

    disk.hook = fail
    with pytest.raises(SyncFailedError):
        file.write_synced(0, [b"new"])
    disk.hook = lambda call, path: None
    assert disk.files()["/f"][:3] == b"new"
    disk.crash()
    assert disk.files()["/f"][:3] in ((b"ooo", b"new") if outcome is FailedSync.TEAR else (b"ooo",))


def test_a_crash_during_a_synced_write_may_tear_it() -> None:
    disk = disk_with({"/f": b"o" * 1024}, DiskFaults(sector_bytes=512))
    file = disk.open("/f")
    torn: set[bytes | None] = set()

    def note(call: str, path: str) -> None:
        if call == "sync":
            torn.update(contents_after_crash(disk, "/f"))

    disk.hook = note
    file.write_synced(0, [b"n" * 1024])
    assert torn == {first * 512 + last * 512 for first in (b"o", b"n") for last in (b"o", b"n")}
    assert contents_after_crash(disk, "/f") == {b"n" * 1024}


def test_after_crash_leaves_the_disk_as_it_was_and_fork_is_independent() -> None:
    disk = disk_with({"/d/f": b"old"})
    file = write(disk, "/d/f", 0, b"new")
    disk.rename("/d/f", "/d/g")
    before = disk.fingerprint()
    disk.after_crash(CrashPlan("", frozenset(), {}))
    copy = disk.fork()
    copy.open("/d/g").write(0, [b"xxx"])
    copy.remove("/d/g")
    assert disk.fingerprint() == before
    assert file.is_linked()
    assert contents_after_crash(disk, "/d/g") == {None, b"old", b"new"}
    assert contents_after_crash(copy, "/d/f") == {None, b"old", b"new", b"xxx"}


def test_removed_but_open_file_is_gone_after_a_crash() -> None:
    disk = disk_with({"/f": b"x"})
    file = disk.open("/f")
    disk.remove("/f")
    disk.sync_directory("/")
    file.write(0, [b"y"])
    file.sync()
    disk.crash()
    assert disk.files() == {}


def test_one_seed_gives_one_disk() -> None:
    def run(seed: int) -> bytes:
        faults = DiskFaults(write_error_rate=0.1, sync_error_rate=0.2, read_error_rate=0.1)
        disk = disk_with(faults=faults, seed=seed)
        rng = random.Random(0)
        for number in range(50):
            try:
                file = write(disk, f"/{number % 7}", rng.randrange(2000), rng.randbytes(900))
                file.sync()
                disk.sync_directory("/")
            except OSError:
                pass
        disk.crash()
        return disk.fingerprint()

    assert run(1) == run(1) != run(2)


# Failing calls.


def test_failed_sync_loses_keeps_or_tears_the_unsynced_bytes() -> None:
    """After LOSE the bytes are readable, count as clean, a second sync succeeds without them: the fsync trap."""
    for outcome, first, second in (
        (FailedSync.LOSE, {b"aaaa"}, {b"aaaa"}),
        (FailedSync.KEEP, {b"aaaa", b"AAAA"}, {b"AAAA"}),
    ):
        disk = disk_with({"/f": b"aaaa"})
        file = write(disk, "/f", 0, b"AAAA")

        def fail(call: str, path: str, outcome: FailedSync = outcome) -> None:
            if call == DiskCall.SYNC:
                raise SyncFailedError(outcome)

        disk.hook = fail
        with pytest.raises(OSError) as caught:
            file.sync()
        assert caught.value.errno == errno.EIO
        assert file.read(0, 4) == b"AAAA"
        assert contents_after_crash(disk, "/f") == first
        disk.hook = lambda call, path: None
        file.sync()
        assert contents_after_crash(disk, "/f") == second
    seen = set()
    for seed in range(40):
        faults = DiskFaults(SECTOR, sync_error_rate=1, failed_syncs=(FailedSync.TEAR,))
        disk = disk_with({"/f": b"aaaabbbb"}, faults, seed)
        with pytest.raises(OSError):
            write(disk, "/f", 0, b"AAAABBBB").sync()
        seen |= contents_after_crash(disk, "/f")
        assert disk.fault_counts == {"sync error": 1}
    assert seen == {b"aaaabbbb", b"AAAAbbbb", b"aaaaBBBB", b"AAAABBBB"}


def test_bytes_lost_by_a_failed_sync_come_back_with_a_later_write_to_their_sector() -> None:
    """The page is written whole, from the cache."""
    disk = disk_with({"/f": b"aaaa"})
    file = write(disk, "/f", 0, b"A")
    disk.faults = DiskFaults(SECTOR, sync_error_rate=1, failed_syncs=(FailedSync.LOSE,))
    with pytest.raises(OSError):
        file.sync()
    disk.faults = SMALL
    file.write(1, [b"B"])
    file.sync()
    assert contents_after_crash(disk, "/f") == {b"ABaa"}


def test_full_disk_cuts_the_write_short() -> None:
    disk = disk_with({"/f": b"12345"}, DiskFaults(capacity_bytes=8))
    file = disk.open("/f")
    with pytest.raises(StorageFullError, match="3 were written"):
        file.write(5, [b"abcdef"])
    assert file.read(0, 100) == b"12345abc"
    file.write(0, [b"overwriting is fine"[:8]])
    file.truncate(2)
    assert file.write(2, [b"room"]) == 4
    disk.remove("/f")
    assert disk.used_bytes == 0
    write(disk, "/g", 0, b"12345678")


def test_failed_write_leaves_a_prefix() -> None:
    lengths = set()
    for seed in range(30):
        disk = disk_with({"/f": b""}, DiskFaults(write_error_rate=1), seed)
        with pytest.raises(OSError):
            disk.open("/f").write(0, [b"abcd"])
        content = disk.files()["/f"]
        assert b"abcd".startswith(content)
        lengths.add(len(content))
    assert lengths == {0, 1, 2, 3, 4}


def test_read_errors_at_random_and_of_bad_sectors() -> None:
    disk = disk_with({"/f": b"aaaabbbbcccc"})
    file = disk.open("/f")
    disk.break_sector("/f", 5)
    assert file.read(0, 4) == b"aaaa"
    assert file.read(8, 4) == b"cccc"
    with pytest.raises(OSError) as caught:
        file.read(3, 2)
    assert caught.value.errno == errno.EIO
    file.write(4, [b"B"])
    assert file.read(3, 2) == b"aB"
    disk.faults = DiskFaults(SECTOR, read_error_rate=1)
    with pytest.raises(OSError):
        file.read(0, 1)
    assert disk.fault_counts == {"read error": 1}


def test_directory_sync_that_fails_leaves_the_names_unsynced() -> None:
    disk = disk_with(faults=DiskFaults(SECTOR, sync_error_rate=1))
    disk.open("/f", create=True)
    with pytest.raises(OSError):
        disk.sync_directory("/")
    assert contents_after_crash(disk, "/f") == {None, b""}
    disk.faults = SMALL
    disk.sync_directory("/")
    assert contents_after_crash(disk, "/f") == {b""}


def test_flipped_bit_is_read_and_stays_and_flips_back() -> None:
    disk = disk_with({"/f": b"\0\0"})
    disk.flip("/f", 1, 3)
    assert disk.open("/f").read(0, 2) == b"\0\x08"
    disk.crash()
    assert disk.files() == {"/f": b"\0\x08"}
    disk.flip("/f", 1, 3)
    assert disk.files() == {"/f": b"\0\0"}
    with pytest.raises(IndexError):
        disk.flip("/f", 2, 0)
    with pytest.raises(FileNotFoundError):
        disk.flip("/g", 0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"sector_bytes": 0},
        {"capacity_bytes": -1},
        {"crash_kinds": ()},
        {"failed_syncs": ()},
        {"read_error_rate": 1.5},
        {"sync_error_rate": -0.1},
    ],
)
def test_impossible_faults_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        DiskFaults(**changes)  # type: ignore[arg-type]


def test_contract_is_written_down() -> None:
    """Every kind of fault that the code knows has its place in the document."""
    text = (Path(__file__).parents[2] / "docs" / "fault-model.md").read_text()
    for enum in (CrashKind, NameOrder, FailedSync):
        for member in enum:
            assert f"`{enum.__name__}.{member.name}`" in text
