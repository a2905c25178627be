"""`ClusterFault`: what is lost in a cluster, and for how long clients may get no answer from a container.

Each begins under load, lasts for a while and ends. The bounds are those of the table in ``docs/guide/cluster.md``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.bookkeeper_server import Bookies
from support.cluster_processes import kill_process
from support.namespaces import Direction
from support.network_cluster import LoadProcess, NetworkCluster

#: Tests run beside other work: a bound is exceeded if it is by more than this, ...
SLACK_SHARE = 0.25
SLACK_S = 1.0
#: ... and this for each process that waits for a core: then every step of a take-over takes longer.
SLACK_PER_LOAD_S = 1.5


def limit_s(bound_s: float) -> float:
    """Return what a measured time must not exceed now, for a bound of the table."""
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    return bound_s * (1 + SLACK_SHARE) + SLACK_PER_LOAD_S * load + SLACK_S


@dataclass(frozen=True, slots=True)
class ClusterFault:
    """One kind of fault.

    Attributes:
        name: for reports.
        produce: a context manager: the fault lasts for its block. It gets the cluster, and a generator for choices.
        lasts_s: length of the block.
        bound_s: longest time without an answer of any container, from the beginning until `lasts_s` after it.
        after_s: the same from the end of the block on, if that is another bound; None: it is not.
        has_errors: whether calls may fail, with an outcome that is not known.
        moves: whether containers may be opened again. If not, all are in the same epoch afterwards.
    """

    name: str
    produce: Callable[[NetworkCluster, random.Random], object]
    bound_s: float
    lasts_s: float = 0.0
    after_s: float | None = None
    has_errors: bool = True
    moves: bool = True


def strike(fault: ClusterFault, cluster: NetworkCluster, load: LoadProcess, rng: random.Random) -> dict[str, object]:
    """Produce a fault under load, and check its bounds. Return the measured times, in s.

    They are also appended to ``measured.jsonl`` in the directory of the cluster.
    """
    epochs = {str(row["container"]): row["epoch"] for row in cluster.rows("containers")}
    load.reset()
    begin_s = time.monotonic()
    with contextmanager(fault.produce)(cluster, rng):  # type: ignore[arg-type]
        if fault.after_s is None:
            load.wait_answered()
        time.sleep(max(fault.lasts_s - (time.monotonic() - begin_s), 0.0))
        during = load.gaps_s()
        if fault.after_s is not None:
            load.reset()
    waited_s = load.wait_answered()
    after = load.gaps_s()
    if fault.after_s is None:
        assert max(after.values()) <= limit_s(fault.bound_s), f"{fault.name}: {after}"
    else:
        assert max(during.values()) <= limit_s(fault.bound_s), f"{fault.name}: {during}"
        assert waited_s <= limit_s(fault.after_s), f"{fault.name}: answered {waited_s:.1f} s after its end: {after}"
    errors = load.errors()
    if not fault.has_errors:
        assert errors == [], f"{fault.name}: {errors}"
    if not fault.moves:
        assert epochs == {str(row["container"]): row["epoch"] for row in cluster.rows("containers")}, fault.name
    found = {
        "fault": fault.name, "longest_s": round(max(during.values()), 2), "after_s": round(waited_s, 2),
        "errors": len(errors), "error_texts": errors, "load_average": round(os.getloadavg()[0], 1),
        "gaps_s": {name: round(gap, 2) for name, gap in after.items()},
    }  # fmt: skip
    with (cluster.directory / "measured.jsonl").open("a") as measured:
        measured.write(json.dumps(found) + "\n")
    return found


def settle(cluster: NetworkCluster) -> None:
    """End all faults that are left, start what does not run, and wait until all containers are served."""
    cluster.network.heal()
    cluster.bucket_server.resume()
    if cluster.bookies is not None:
        cluster.bookies.restore()
    for number in range(cluster.zookeepers.count):
        if cluster.zookeepers.is_running(number):
            cluster.zookeepers.release(number)
        else:
            cluster.zookeepers.launch(number)
    for number in range(cluster.zookeepers.count):
        assert cluster.zookeepers.wait_until_ready(number)
    for name, process in cluster.processes.items():
        if process.is_running:
            process.signal_all(signal.SIGCONT)
        else:
            cluster.start(name)
    for process in cluster.processes.values():
        process.wait_ready()
    for name in cluster.status()["drains"]:  # type: ignore[attr-defined]
        cluster.command("undrain", str(name))
    cluster.wait_stores()
    cluster.wait_even()


# -- stores -----------------------------------------------------------------------------------------------------------


def _store(cluster: NetworkCluster, rng: random.Random) -> str:
    return rng.choice(cluster.store_names)


def _child(cluster: NetworkCluster, rng: random.Random) -> int:
    return rng.choice(cluster.processes[_store(cluster, rng)].store_pids())


def child_killed(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill one store's process; its parent starts it again."""
    kill_process(_child(cluster, rng))
    yield


def child_held(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop one store's process from running; its parent kills it after a while."""
    name = _store(cluster, rng)
    pid = rng.choice(cluster.processes[name].store_pids())
    os.kill(pid, signal.SIGSTOP)
    yield
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def host_lost(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Lose a store's host; replace it later."""
    name = _store(cluster, rng)
    cluster.lose(name)
    yield
    cluster.replace(name)


def host_held(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop all processes of a store's host from running, as a machine that is moved."""
    process = cluster.processes[_store(cluster, rng)]
    process.signal_all(signal.SIGSTOP)
    yield
    process.signal_all(signal.SIGCONT)


def host_cut_off(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut a store's host off from all others."""
    yield from _cut(cluster, _store(cluster, rng), Direction.BOTH)


def host_deaf(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Nothing reaches a store's host; what it sends arrives."""
    yield from _cut(cluster, _store(cluster, rng), Direction.IN)


def host_mute(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """What a store's host sends is lost."""
    yield from _cut(cluster, _store(cluster, rng), Direction.OUT)


def _cut(cluster: NetworkCluster, name: str, direction: Direction) -> Iterator[None]:
    host = cluster.host(name)
    host.cut(direction=direction)
    yield
    host.heal()


def cut_from_zookeeper(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut a store's host off from ZooKeeper only."""
    host = cluster.host(_store(cluster, rng))
    host.cut(cluster.zookeeper_hosts)
    yield
    host.heal()


def cut_from_bucket(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut a store's host off from the bucket only."""
    host = cluster.host(_store(cluster, rng))
    host.cut([cluster.host("bucket")])
    yield
    host.heal()


def cut_from_controllers(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut a store's host off from the controllers only."""
    host = cluster.host(_store(cluster, rng))
    host.cut([cluster.host(name) for name in cluster.controller_names])
    yield
    host.heal()


# -- ZooKeeper --------------------------------------------------------------------------------------------------------


def zookeeper_leader_killed(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill the server of ZooKeeper that leads; start it again later."""
    leader = cluster.zookeepers.leader
    assert leader is not None
    yield from _kill_zookeepers(cluster, [leader])


def zookeeper_server_silent(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut one server of ZooKeeper off."""
    host = rng.choice(cluster.zookeeper_hosts)
    host.cut()
    yield
    host.heal()


def zookeeper_minority_left(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill all servers of ZooKeeper but one."""
    yield from _kill_zookeepers(cluster, rng.sample(range(cluster.zookeepers.count), cluster.zookeepers.count - 1))


def zookeeper_down(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill all servers of ZooKeeper."""
    yield from _kill_zookeepers(cluster, list(range(cluster.zookeepers.count)))


def zookeeper_held(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop all servers of ZooKeeper from running."""
    for number in range(cluster.zookeepers.count):
        cluster.zookeepers.hold(number)
    yield
    for number in range(cluster.zookeepers.count):
        cluster.zookeepers.release(number)


def _kill_zookeepers(cluster: NetworkCluster, numbers: list[int]) -> Iterator[None]:
    for number in numbers:
        cluster.zookeepers.kill(number)
    yield
    for number in numbers:
        cluster.zookeepers.launch(number)
    for number in numbers:
        assert cluster.zookeepers.wait_until_ready(number)


# -- controllers ------------------------------------------------------------------------------------------------------


def leader_killed(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill the controller that leads; start it again later."""
    leader = str(cluster.status()["leader"])
    cluster.processes[leader].kill()
    yield
    cluster.replace(leader)


def leader_cut_off(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut the controller that leads off from all others."""
    yield from _cut(cluster, str(cluster.status()["leader"]), Direction.BOTH)


def leader_and_store_lost(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Lose the host of the controller that leads, and then the host of a store."""
    leader, store = str(cluster.status()["leader"]), _store(cluster, rng)
    cluster.lose(leader)
    cluster.lose(store)
    yield
    cluster.replace(leader)
    cluster.replace(store)


# -- the bucket -------------------------------------------------------------------------------------------------------


def bucket_held(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """The bucket takes requests and does not answer."""
    cluster.bucket_server.hold()
    yield
    cluster.bucket_server.resume()


def bucket_refuses(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """The bucket answers 503 to everything."""
    server = cluster.bucket_server
    server.kill()
    script = str(Path(__file__).with_name("refusing_bucket.py"))
    refusing = subprocess.Popen(
        cluster.host("bucket").command(sys.executable, script, server.address, str(server.port))
    )
    try:
        yield
    finally:
        refusing.kill()
        refusing.wait()
    server.start()


# -- bookies ----------------------------------------------------------------------------------------------------------


def _bookies(cluster: NetworkCluster) -> Bookies:
    assert cluster.bookies is not None
    return cluster.bookies


def bookie_killed(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill one bookie; start it again later."""
    yield from _kill_bookies(_bookies(cluster), 1, rng)


def two_bookies_killed(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Kill two bookies; start them again later."""
    yield from _kill_bookies(_bookies(cluster), 2, rng)


def _kill_bookies(bookies: Bookies, count: int, rng: random.Random) -> Iterator[None]:
    numbers = rng.sample(range(len(bookies.ports)), count)
    for number in numbers:
        bookies.kill(number)
    yield
    for number in numbers:
        bookies.launch(number)
    for number in numbers:
        bookies.wait_until_ready(number)


def bookie_held(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop one bookie from running."""
    bookies = _bookies(cluster)
    number = rng.randrange(len(bookies.ports))
    bookies.hold(number)
    yield
    bookies.release(number)


def cut_from_bookies(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Cut a store's host off from all bookies only."""
    host = cluster.host(_store(cluster, rng))
    host.cut(cluster.bookie_hosts)
    yield
    host.heal()


# -- planned ----------------------------------------------------------------------------------------------------------


def drained(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Drain a store by command; end that later."""
    name = rng.choice(sorted({str(row["assigned"]) for row in cluster.rows("containers")}))
    done = cluster.command("drain", name)
    assert done.returncode == 0, done.stderr
    cluster.wait_emptied(name)
    yield
    done = cluster.command("undrain", name)
    assert done.returncode == 0, done.stderr


def store_restarted(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop a store's parent by SIGTERM, and start it again."""
    name = _store(cluster, rng)
    assert cluster.processes[name].terminate() == 0
    yield
    cluster.replace(name)


def controller_restarted(cluster: NetworkCluster, rng: random.Random) -> Iterator[None]:
    """Stop a controller by SIGTERM, and start it again."""
    name = rng.choice(cluster.controller_names)
    assert cluster.processes[name].terminate() == 0
    yield
    cluster.replace(name)


#: All faults. The last ones are no faults: a planned change.
FAULTS = (
    ClusterFault("a store's process killed", child_killed, bound_s=3.0),
    ClusterFault("a store's process held", child_held, bound_s=20.0, lasts_s=20.0),
    ClusterFault("a store's host lost", host_lost, bound_s=20.0),
    ClusterFault("a store's host held", host_held, bound_s=20.0, lasts_s=60.0),
    ClusterFault("a store's host cut off", host_cut_off, bound_s=20.0, lasts_s=25.0),
    ClusterFault("nothing reaches a store's host", host_deaf, bound_s=20.0, lasts_s=25.0),
    ClusterFault("what a store's host sends is lost", host_mute, bound_s=20.0, lasts_s=25.0),
    ClusterFault("a store's host cut off from ZooKeeper", cut_from_zookeeper, bound_s=20.0, lasts_s=25.0),
    ClusterFault("a store's host cut off from the bucket", cut_from_bucket, bound_s=30.0, lasts_s=40.0),
    ClusterFault("a store's host cut off from the controllers", cut_from_controllers, 20.0, lasts_s=15.0, after_s=20.0),
    ClusterFault("ZooKeeper's leader killed", zookeeper_leader_killed, bound_s=2.0, lasts_s=10.0, moves=False),
    ClusterFault("a server of ZooKeeper cut off", zookeeper_server_silent, bound_s=2.0, lasts_s=15.0, moves=False),
    ClusterFault(
        "most servers of ZooKeeper killed", zookeeper_minority_left, bound_s=2.0, lasts_s=20.0, after_s=5.0, moves=False
    ),
    ClusterFault("ZooKeeper killed", zookeeper_down, bound_s=2.0, lasts_s=30.0, after_s=5.0, moves=False),
    ClusterFault("ZooKeeper held", zookeeper_held, bound_s=2.0, lasts_s=30.0, after_s=5.0, moves=False),
    ClusterFault("the leader killed", leader_killed, bound_s=2.0, lasts_s=15.0, moves=False),
    ClusterFault("the leader cut off", leader_cut_off, bound_s=10.0, lasts_s=20.0, moves=False),
    ClusterFault("the leader and a store lost", leader_and_store_lost, bound_s=30.0),
    ClusterFault("the bucket held", bucket_held, bound_s=15.0, lasts_s=12.0, after_s=5.0),
    ClusterFault("the bucket held for long", bucket_held, bound_s=33.0, lasts_s=30.0, after_s=5.0, moves=False),
    ClusterFault("the bucket refuses", bucket_refuses, bound_s=15.0, lasts_s=12.0, after_s=2.0),
    ClusterFault("a store drained", drained, bound_s=2.0, has_errors=False),
    ClusterFault("a store restarted", store_restarted, bound_s=2.0, has_errors=False),
    ClusterFault("a controller restarted", controller_restarted, bound_s=2.0, has_errors=False),
)
#: Those of a cluster with its log in BookKeeper.
BOOKIE_FAULTS = (
    ClusterFault("a bookie killed", bookie_killed, bound_s=5.0, lasts_s=20.0, has_errors=False, moves=False),
    ClusterFault("a bookie held", bookie_held, bound_s=5.0, lasts_s=20.0, has_errors=False, moves=False),
    ClusterFault("two bookies killed", two_bookies_killed, bound_s=15.0, lasts_s=30.0),
    ClusterFault("a store's host cut off from the bookies", cut_from_bookies, bound_s=30.0, lasts_s=40.0),
)
