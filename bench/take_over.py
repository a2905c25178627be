"""How long each container gives no answer when its store is lost, or hands it over: distribution of the gaps.

    python bench/take_over.py
    python bench/take_over.py --kinds child planned --rounds 20
    python bench/take_over.py --kinds held --rounds 10 --first 10 --limit-s 800
    python bench/take_over.py --log bookkeeper            # the log is on four bookies instead of in the bucket

Three hosts with a segment store each, in network namespaces (root, nft, Java and versitygw are needed), two
controllers, three servers of ZooKeeper. Clients append to a segment of each container and read it back, 10 times a
second. Kinds: `child`, a store's process is killed; `host`, its host is lost; `held`, its processes are stopped for
`--held-s` seconds; `planned`, it is drained. The gaps are those of the containers that the store had. `errors` are
those of single appends without a writer's number, by class: their replies were lost, so the client must not repeat
them. An event writer would. A long measurement may be divided: `--first` is the number of the first round, which
decides on the store that is lost, and after `--limit-s` no further round begins.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from pathlib import Path

from _common import parser, percentiles_ms, raw_disk, report, work_directory

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from support.bookkeeper_server import BookiesUnavailableError
from support.cluster_faults import ClusterFault, child_killed, drained, host_held, host_lost, strike
from support.namespaces import NamespacesUnavailableError, Network
from support.network_cluster import LoadProcess, NetworkCluster

#: By kind, with the bound in seconds of ``docs/guide/cluster.md``.
KINDS = {
    "child": ClusterFault("a store's process killed", child_killed, bound_s=3.0),
    "host": ClusterFault("a store's host lost", host_lost, bound_s=20.0),
    "held": ClusterFault("a store's host held", host_held, bound_s=20.0, lasts_s=60.0),
    "planned": ClusterFault("a store drained", drained, bound_s=2.0, has_errors=False),
}

_BOOKIES = 4
#: Errors of which the whole text is printed, for each kind.
_TEXTS_MAX = 10
#: Stores over bookies have run for this long before the first loss, as in use: they rehearse take-overs then.
_SETTLED_S = 20.0


def measure(
    cluster: NetworkCluster, load: LoadProcess, kind: str, rounds: range, held_s: float, end_s: float
) -> dict[str, object]:
    """Return the distribution of gaps of one kind of loss. `end_s`: no round begins later."""
    gaps_s: list[float] = []
    texts: list[str] = []
    fault = KINDS[kind]
    done = 0
    for number in rounds:
        if time.monotonic() > end_s:
            break
        done += 1
        cluster.wait_even()
        before = {str(row["container"]): str(row["holder"]) for row in cluster.rows("containers")}
        # The same draw as the fault's.
        name = random.Random(number).choice(sorted(set(before.values())))
        lasts_s = held_s if fault.lasts_s else 0.0
        one = ClusterFault(fault.name, fault.produce, 10 * fault.bound_s, lasts_s)
        found = strike(one, cluster, load, random.Random(number))
        gaps = dict(found["gaps_s"])  # type: ignore[call-overload]
        gaps_s += [float(gaps[container]) for container, holder in before.items() if holder == name]
        texts += map(str, list(found["error_texts"]))  # type: ignore[call-overload]
    within = sum(gap_s <= fault.bound_s for gap_s in gaps_s)
    return {
        "first": rounds.start,
        "rounds": done,
        "gaps": len(gaps_s),
        "bound_s": fault.bound_s,
        "within_bound_share": round(within / len(gaps_s), 4) if gaps_s else None,
        "client_errors": len(texts),
        "errors": dict(Counter(text.split(": ")[1] for text in texts)),
        "error_texts": texts[:_TEXTS_MAX],
        **(percentiles_ms(gaps_s) if gaps_s else {}),
        "all_s": sorted(gaps_s),
    }


def main() -> None:
    """Measure, and print JSON."""
    options = parser(__doc__ or "")
    options.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--first", type=int, default=0)
    options.add_argument("--limit-s", type=float, default=86400.0)
    options.add_argument("--held-s", type=float, default=60.0)
    options.add_argument("--containers", type=int, default=12)
    options.add_argument("--log", choices=("bucket", "bookkeeper"), default="bucket")
    arguments = options.parse_args()
    end_s = time.monotonic() + arguments.limit_s
    if arguments.quick:
        arguments.rounds, arguments.kinds, arguments.containers = 1, ["child", "planned"], 3
    try:
        network = Network()
    except NamespacesUnavailableError as error:
        raise SystemExit(f"there is no cluster: {error}") from error
    try:
        with work_directory(arguments) as directory:
            disk = raw_disk(directory)
            bookies = _BOOKIES if arguments.log == "bookkeeper" else 0
            try:
                cluster = NetworkCluster(
                    directory.resolve(), network, containers=arguments.containers, stores=3, bookies=bookies
                )
            except BookiesUnavailableError as error:
                raise SystemExit(f"there are no bookies: {error}") from error
            try:
                cluster.start_all()
                with cluster.load("probes") as load:
                    time.sleep(_SETTLED_S if bookies else 0.0)
                    rounds = range(arguments.first, arguments.first + arguments.rounds)
                    kinds = {
                        kind: measure(cluster, load, kind, rounds, arguments.held_s, end_s) for kind in arguments.kinds
                    }
            finally:
                cluster.stop()
    finally:
        network.close()
    report(
        "take_over",
        {"raw_disk": disk, "log": arguments.log, "containers": arguments.containers, "stores": 3, "kinds": kinds},
    )


if __name__ == "__main__":
    main()
