"""A file system that several hosts have mounted: what each sees, what their deaths leave, whose faults strike."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.errors import DataDirectoryInUseError, StorageFullError
from penstock_simulation.simulated import Simulation
from penstock_simulation.simulated.disk_faults import NO_FAULTS, CrashKind
from penstock_simulation.simulated.host import Death
from penstock_simulation.simulated.shared_disk import SharedDisk

DROP = replace(NO_FAULTS, crash_kinds=(CrashKind.DROP,))


def simulate(check, seed=1):
    """Run `check` with the file server and two hosts, from outside of all of them."""
    with Simulation(seed) as simulation:
        server = SharedDisk(simulation, "file server", DROP)
        one, other = simulation.host("one"), simulation.host("other")

        async def scenario():
            return check(simulation, server, one, other)

        return simulation.run(scenario)


def as_host(simulation, host, function, *arguments):
    """Call as code of a host does."""
    before, simulation.loop.current = simulation.loop.current, host.process
    try:
        return function(*arguments)
    finally:
        simulation.loop.current = before


def test_unsynced_writes_are_visible_on_their_host_only() -> None:
    def check(simulation, server, one, other) -> None:
        mine, theirs = server.mounted(one), server.mounted(other)
        file = as_host(simulation, one, lambda: mine.open("/file", create=True))
        file.write(0, [b"aaaa"])
        file.write(2, [b"bb", b"b"])
        assert as_host(simulation, one, file.read, 0, 10) == b"aabbb"
        assert as_host(simulation, one, file.read, 3, 1) == b"b"
        assert file.length() == 5
        again = as_host(simulation, one, mine.open, "/file")
        assert as_host(simulation, one, again.read, 0, 10) == b"aabbb"
        seen = as_host(simulation, other, theirs.open, "/file")
        assert as_host(simulation, other, seen.read, 0, 10) == b""
        as_host(simulation, one, file.sync)
        assert as_host(simulation, other, seen.read, 0, 10) == b"aabbb"
        file.write(5, [b"c"])
        as_host(simulation, one, file.close)
        assert as_host(simulation, other, seen.read, 0, 10) == b"aabbbc"

    simulate(check)


@pytest.mark.parametrize("death", Death)
def test_a_dead_host_leaves_its_synced_files_and_releases_its_locks(death) -> None:
    left = set()

    def check(simulation, server, one, other) -> None:
        mine, theirs = server.mounted(one), server.mounted(other)
        file = as_host(simulation, one, lambda: mine.open("/file", create=True))
        file.write(0, [b"synced"])
        as_host(simulation, one, file.sync)
        file.write(6, [b" not"])
        as_host(simulation, one, mine.lock, "/lock")
        with pytest.raises(DataDirectoryInUseError):
            as_host(simulation, other, theirs.lock, "/lock")
        one.crash(death)
        as_host(simulation, other, theirs.lock, "/lock").release()
        left.add(server.disk.files()["/file"])

    for seed in range(10):
        simulate(check, seed)
    assert left == {b"synced", b"synced not"}


def test_names_are_the_same_for_all_at_once() -> None:
    def check(simulation, server, one, other) -> None:
        mine, theirs = server.mounted(one), server.mounted(other)
        file = as_host(simulation, one, lambda: mine.open("/file", create=True))
        as_host(simulation, other, theirs.rename, "/file", "/other")
        assert as_host(simulation, one, mine.list_directory, "/") == ["other"]
        assert file.is_linked()
        as_host(simulation, other, theirs.remove, "/other")
        assert not file.is_linked()

    simulate(check)


def test_directory_that_another_host_makes_while_one_is_held_is_the_same() -> None:
    """Both make a directory that neither has seen: what the other has put into it meanwhile stays there."""

    def check(simulation, server, one, other) -> None:
        mine, theirs = server.mounted(one), server.mounted(other)
        hook = server.disk.hook

        def hold(call, path) -> None:
            server.disk.hook = hook
            as_host(simulation, other, theirs.make_directory, "/data/other")

        server.disk.hook = hold
        as_host(simulation, one, mine.make_directory, "/data/one")
        assert as_host(simulation, one, mine.list_directory, "/data") == ["one", "other"]

    simulate(check)


def test_faults_are_those_of_the_host_that_calls() -> None:
    def check(simulation, server, one, other) -> None:
        mine, theirs = server.mounted(one), server.mounted(other)
        one.begin_trouble(lambda faults: replace(faults, capacity_bytes=0))
        file = as_host(simulation, other, lambda: theirs.open("/file", create=True))
        file.write(0, [b"a"])
        as_host(simulation, other, file.sync)
        mine_too = as_host(simulation, one, mine.open, "/file")
        mine_too.write(1, [b"b"])
        with pytest.raises(StorageFullError):
            as_host(simulation, one, mine_too.sync)

    simulate(check)


def test_only_the_server_loses_unsynced_data() -> None:
    def check(simulation, server, one, other) -> None:
        mine = server.mounted(one)
        file = as_host(simulation, one, lambda: mine.open("/file", create=True))
        file.write(0, [b"a"])
        as_host(simulation, one, file.sync)
        as_host(simulation, one, mine.sync_directory, "/")
        file.write(1, [b"b"])
        as_host(simulation, one, file.close)
        assert server.disk.files() == {"/file": b"ab"}
        one.crash(Death.POWER)
        other.crash(Death.POWER)
        server.crash()
        assert server.disk.files() == {"/file": b"a"}

    simulate(check)
