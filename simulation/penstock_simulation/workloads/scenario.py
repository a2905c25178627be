"""`Scenario`: everything that is drawn from a seed: the cluster, its settings, the workloads, the faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock_simulation.simulated.cluster import ClusterSettings, SimulatedCluster
from penstock_simulation.simulated.faults import FaultPlan, PlannedFault
from penstock_simulation.simulated.host import Host
from penstock_simulation.workloads.added_calls import AddedCalls
from penstock_simulation.workloads.attributes import AttributeClient
from penstock_simulation.workloads.connection_crowd import ConnectionCrowd
from penstock_simulation.workloads.crowd import MergeClient, SegmentCrowd
from penstock_simulation.workloads.drawn_cluster import draw_cluster
from penstock_simulation.workloads.events import GroupReader, StreamKeeper, Writer, WriterCrowd
from penstock_simulation.workloads.followers import Followers
from penstock_simulation.workloads.group_changes import GroupChanges
from penstock_simulation.workloads.handed_transactions import HandedTransactions
from penstock_simulation.workloads.intruder import Intruder
from penstock_simulation.workloads.kept_transactions import KeptTransactions
from penstock_simulation.workloads.key_rotation import KeyRotation
from penstock_simulation.workloads.limited_subscribers import LimitedSubscribers
from penstock_simulation.workloads.long_days import LongDays
from penstock_simulation.workloads.many_keys import KEY_LENGTH, ManyKeys
from penstock_simulation.workloads.member_plans import ALL_MEMBER_KINDS, MemberHosts, draw_member_faults
from penstock_simulation.workloads.mortal_readers import MortalReader
from penstock_simulation.workloads.offline_container import OfflineContainer
from penstock_simulation.workloads.plans import draw_controller_faults, draw_owner_changes, draw_plan
from penstock_simulation.workloads.prepared_transactions import PreparedTransactions
from penstock_simulation.workloads.profile import EVERYTHING, Profile
from penstock_simulation.workloads.reincarnations import Reincarnations
from penstock_simulation.workloads.retained_streams import RetainedStreams
from penstock_simulation.workloads.segments import ByteAppender, ByteReader, SegmentLives
from penstock_simulation.workloads.sinks import Sinks
from penstock_simulation.workloads.steady_calls import SteadyCalls
from penstock_simulation.workloads.stream_lives import StreamLives
from penstock_simulation.workloads.subscribers import Subscribers
from penstock_simulation.workloads.tables import CounterClient, TableClient
from penstock_simulation.workloads.transactions import TransactionWriter, WholeReader
from penstock_simulation.workloads.transient_flood import TransientFlood
from penstock_simulation.workloads.user_calls import UserCalls
from penstock_simulation.workloads.user_groups import UserGroups
from penstock_simulation.workloads.user_tables import UserStates, UserTables
from penstock_simulation.workloads.user_writers import UserTransactions, UserWriter
from penstock_simulation.workloads.users import UserReader
from penstock_simulation.workloads.world import SCOPE, Workload, World

_KIB = 1024
MAIN_STREAM = f"{SCOPE}/events"
TRIMMED_STREAM = f"{SCOPE}/trimmed"
USER_STREAM = f"{SCOPE}/user-events"

#: Expensive workloads: they take part less often than others, unless all workloads do.
_RARE = ("names", "mortals", "user writers", "group changes", "transients", "followers")
#: Workloads that were added later.
_LATER = (
    "streams", "user writers", "users", "user tables", "user states", "group changes", "connections", "transients",
    "followers", "kept transactions", "retained streams", "offline container",
    "long days", "key rotation", "intruder",
)  # fmt: skip
#: Clients with open transactions on one stream, enough for several to be committed together.
TRANSACTION_CROWD_SIZE = 5
_RARE_SHARE = 0.4

#: Users that take part only in profiles of their own, see `mutations.promises`.
_OF_USERS: Mapping[
    str,
    type[UserGroups | UserCalls | HandedTransactions | PreparedTransactions | Sinks | Subscribers | LimitedSubscribers],
] = {
    "subscribers": Subscribers,
    "limited subscribers": LimitedSubscribers,
    "user groups": UserGroups,
    "user calls": UserCalls,
    "handed transactions": HandedTransactions,
    "prepared transactions": PreparedTransactions,
    "sinks": Sinks,
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """See the module. `plan` may be replaced, when a failure is being shrunk."""

    seed: int
    profile: Profile
    cluster: ClusterSettings
    workloads: tuple[str, ...]
    writer_count: int
    reader_count: int
    segment_count: int
    rollover_bytes: int
    mean_gap_s: float
    payload_bytes_max: int
    crowd_size: int
    has_memory_flips: bool
    has_scales: bool
    plan: FaultPlan

    @classmethod
    def draw(cls, seed: int, profile: Profile | None = None) -> Scenario:
        """Draw a seed's scenario."""
        profile = profile or EVERYTHING
        rng = random.Random(f"{seed}/scenario/{profile.name}")
        # Separate generators, so that the other draws of a seed stay the same.
        own = {name: random.Random(f"{seed}/{name}/{profile.name}") for name in _LATER}
        workloads = tuple(
            name
            for name in profile.workloads
            if name == "events" or own.get(name, rng).random() < _share(name, profile)
        )
        if "users" in workloads and "user writers" not in workloads:
            workloads += ("user writers",)  # Users read what these write.
        cluster = draw_cluster(seed, profile, rng, is_crowded="connections" in workloads)
        names = [f"store-{number}" for number in range(1, cluster.store_count + 1)]
        if cluster.controller_count > 1:
            names += [*_controllers(cluster), *(["coordinator"] if cluster.members is None else [])]
        elif not cluster.is_combined:
            names.append("controller")
        clients = ["client-1", "client-2", *(_machines(profile) if "users" in workloads else ())]
        changes = _draw_owner_changes(random.Random(f"{seed}/owners/{profile.name}"), cluster, profile)
        changes += _draw_controller_faults(random.Random(f"{seed}/controller faults/{profile.name}"), cluster, profile)
        if cluster.members is not None:
            changes += _draw_member_faults(random.Random(f"{seed}/member faults/{profile.name}"), cluster, profile)
        return cls(
            seed=seed,
            profile=profile,
            cluster=cluster,
            workloads=workloads,
            writer_count=rng.randint(1, 3),
            reader_count=rng.randint(1, 2),
            segment_count=rng.randint(1, 3),
            rollover_bytes=rng.choice((0, 4 * _KIB, 16 * _KIB)),
            mean_gap_s=rng.choice((0.7, 1.0, 2.0)) / profile.pace,
            payload_bytes_max=rng.choice((50, 500, 3000)),
            crowd_size=_crowd_size(profile, seed),
            has_memory_flips=random.Random(f"{seed}/memory/{profile.name}").random() < profile.memory_flip_rate,
            has_scales=random.Random(f"{seed}/scales/{profile.name}").random() < profile.scale_rate,
            plan=(draw_plan(rng, names, clients, profile.plan) if profile.plan.kinds else FaultPlan()).with_faults(
                changes
            ),
        )

    def __str__(self) -> str:
        """Return a summary for failure reports."""
        cluster = self.cluster
        return (
            f"seed {self.seed}, profile {self.profile.name}: {cluster.store_count} stores, "
            f"{cluster.segment_store.container_count} containers, "
            f"{_described_controllers(cluster)}{', logs in a bucket' if cluster.bucket_log is not None else ''}; "
            f"{', '.join(self.workloads)}; "
            f"{self.writer_count} writers, {self.reader_count} readers, {self.segment_count} segments; "
            f"{len(self.plan.faults)} faults"
        )

    def make_workloads(self, world: World, hosts: list[Host]) -> list[Workload]:
        """Create the workloads, spread over the clients' hosts. They verify in this order."""
        made: list[Workload] = []
        taken: dict[tuple[str, int], str] = {}

        def place(name: str) -> tuple[World, Host, str, random.Random]:
            return world, hosts[len(made) % len(hosts)], name, world.cluster.simulation.rng(f"workload {name}")

        def keeper(name: str, stream: str, *, is_truncated: bool = False) -> StreamKeeper:
            return StreamKeeper(
                *place(name), stream=stream, segment_count=self.segment_count, rollover_bytes=self.rollover_bytes,
                is_truncated=is_truncated, is_scaled=not is_truncated and self.has_scales,
                scale_gap_s=self.profile.scale_gap_s,
            )  # fmt: skip

        made.append(keeper("keeper", MAIN_STREAM))
        for number in range(self.writer_count):
            # Two keys of its own and one shared by all writers.
            keys = (f"k{number}-a", f"k{number}-b", "shared")
            made.append(
                Writer(*place(f"writer-{number}"), stream=MAIN_STREAM, keys=keys, events_per_s=3.0 / self.mean_gap_s)
            )
        if "transactions" in self.workloads:
            lease_s = world.rng.choice((10.0, 20.0))
            made.append(
                TransactionWriter(
                    *place("transactions"), stream=MAIN_STREAM, lease_s=lease_s, mean_gap_s=3 * self.mean_gap_s
                )
            )
        if "readers" in self.workloads:
            for number in range(self.reader_count):
                made.append(
                    GroupReader(*place(f"reader-{number}"), stream=MAIN_STREAM, group="group", is_leader=number == 0)
                )
        if "trimmed" in self.workloads:
            made.append(keeper("trimmer", TRIMMED_STREAM, is_truncated=True))
            made.append(
                Writer(*place("trimmed-writer"), stream=TRIMMED_STREAM, keys=("t",), events_per_s=1.5 / self.mean_gap_s)
            )
        if "tables" in self.workloads:
            for number in range(2):
                made.append(
                    TableClient(
                        *place(f"table-{number}"), table=f"{SCOPE}/table/0.#epoch.0", key_count=5,
                        mean_gap_s=self.mean_gap_s,
                    )
                )  # fmt: skip
        if "counters" in self.workloads:
            for number in range(2):
                made.append(
                    CounterClient(
                        *place(f"counter-{number}"), segment=f"{SCOPE}/counter/0.#epoch.0", taken=taken,
                        mean_gap_s=self.mean_gap_s,
                    )
                )  # fmt: skip
        if "bytes" in self.workloads:
            segment = f"{SCOPE}/bytes/0.#epoch.0"
            for number in range(2):
                made.append(
                    ByteAppender(
                        *place(f"appender-{number}"), segment=segment, mean_gap_s=self.mean_gap_s,
                        rollover_bytes=self.rollover_bytes, truncates=number == 0,
                    )
                )  # fmt: skip
            made.append(ByteReader(*place("byte-reader"), segment=segment))
        if "lives" in self.workloads:
            made.append(SegmentLives(*place("lives"), prefix=f"{SCOPE}/life", mean_gap_s=2 * self.mean_gap_s))
        self._add_crowds(made, place)
        self._add_short_lives(made, place)
        self._add_users(made, place)
        self._add_table_users(made, place)
        if "connections" in self.workloads:
            made.append(
                ConnectionCrowd(
                    *place("connections"), segment=f"{SCOPE}/pushed/0.#epoch.0",
                    connection_count=min(24, self.crowd_size),
                )
            )  # fmt: skip
        if "streams" in self.workloads:
            made.append(StreamLives(*place("streams"), prefix=f"{SCOPE}/stream", mean_gap_s=self.mean_gap_s))
            for number in range(2, self.profile.stream_lives_count + 1):
                name = f"streams-{number}"
                made.append(StreamLives(*place(name), prefix=f"{SCOPE}/{name}", mean_gap_s=self.mean_gap_s))
        for number in range(TRANSACTION_CROWD_SIZE if "transaction crowd" in self.workloads else 0):
            made.append(
                TransactionWriter(
                    *place(f"transactions-{number}"), stream=MAIN_STREAM, lease_s=10.0, mean_gap_s=self.mean_gap_s / 4,
                    mean_open_s=self.mean_gap_s / 2,
                )
            )  # fmt: skip
        if "transaction crowd" in self.workloads:
            made.append(WholeReader(*place("whole-reader"), stream=MAIN_STREAM))
        if "kept transactions" in self.workloads:
            made.append(KeptTransactions(*place("kept-transactions"), stream=MAIN_STREAM))
        if "added calls" in self.workloads:
            made.append(AddedCalls(*place("added-calls"), stream=MAIN_STREAM))
        if "retained streams" in self.workloads:
            made.append(RetainedStreams(*place("retained-streams")))
        if "long days" in self.workloads:
            made.append(LongDays(*place("long-days")))
        if "offline container" in self.workloads:
            made.append(OfflineContainer(*place("offline-container")))
        if "key rotation" in self.workloads:
            made.append(KeyRotation(*place("key-rotation")))
        if "intruder" in self.workloads:
            made.append(Intruder(*place("intruder")))
        if "steady calls" in self.workloads:
            made.append(SteadyCalls(*place("steady-calls")))
        if "group changes" in self.workloads:
            made.append(GroupChanges(*place("group-changes"), habits=self.profile.habits))
        for name, kind in _OF_USERS.items():
            if name in self.workloads:
                made.append(kind(*place(name.replace(" ", "-")), habits=self.profile.habits))
        if "transients" in self.workloads:
            made.append(TransientFlood(*place("transients"), parent=f"{SCOPE}/flooded/0.#epoch.0"))
        if "followers" in self.workloads:
            made.append(Followers(*place("followers"), prefix=f"{SCOPE}/followed"))
        return made

    def _add_users(self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]) -> None:
        """Add a separate stream with users that write to it, and a group of users that read it."""
        if "user writers" not in self.workloads:
            return
        habits = self.profile.habits
        made.append(
            StreamKeeper(
                *place("user-keeper"), stream=USER_STREAM, segment_count=self.segment_count,
                rollover_bytes=self.rollover_bytes, is_scaled=self.has_scales,
            )
        )  # fmt: skip
        for number in range(2):
            keys = (f"u{number}-a", f"u{number}-b")
            made.append(UserWriter(*place(f"user-writer-{number}"), stream=USER_STREAM, keys=keys, habits=habits))
        made.append(UserTransactions(*place("user-transactions"), stream=USER_STREAM, habits=habits))
        for number, machine in enumerate(_machines(self.profile) if "users" in self.workloads else ()):
            made.append(
                UserReader(
                    *place(f"user-{number}"), stream=USER_STREAM, group="users", is_leader=number == 0,
                    machine=machine, habits=habits,
                )
            )  # fmt: skip

    def _add_table_users(
        self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]
    ) -> None:
        """Add users of a key-value table, and of a shared state."""
        habits, mean_gap_s = self.profile.habits, self.mean_gap_s / 2
        counted: Counter[str] = Counter()
        for number in range(2 if "user tables" in self.workloads else 0):
            made.append(
                UserTables(
                    *place(f"table-user-{number}"), table=f"{SCOPE}/user-table", counted=counted, habits=habits,
                    mean_gap_s=mean_gap_s,
                )
            )  # fmt: skip
        for number in range(3 if "user states" in self.workloads else 0):
            made.append(
                UserStates(
                    *place(f"state-user-{number}"), stream=f"{SCOPE}/user-state", habits=habits, mean_gap_s=mean_gap_s
                )
            )

    def _add_short_lives(
        self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]
    ) -> None:
        """Add names that are reused, and readers that die."""
        if "names" in self.workloads:
            made.append(Reincarnations(*place("names"), prefix=f"{SCOPE}/again", mean_gap_s=self.mean_gap_s))
        if "mortals" in self.workloads:
            for number in range(2):
                made.append(
                    MortalReader(*place(f"mortal-{number}"), stream=MAIN_STREAM, group="mortals", is_leader=number == 0)
                )

    def _add_crowds(self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]) -> None:
        """Add workloads that need more segments, attributes and keys than fit into memory."""
        if "crowd" in self.workloads:
            made.append(
                SegmentCrowd(
                    *place("crowd"), prefix=f"{SCOPE}/crowd", segment_count=self.crowd_size,
                    mean_gap_s=self.mean_gap_s / 4,
                )
            )  # fmt: skip
        if "writers" in self.workloads:
            made.append(
                WriterCrowd(
                    *place("writers"), stream=MAIN_STREAM, writer_count=min(12, self.crowd_size),
                    events_per_s=2.0 / self.mean_gap_s,
                )
            )  # fmt: skip
        if "merges" in self.workloads:
            made.append(MergeClient(*place("merges"), target=f"{SCOPE}/merged/0.#epoch.0", mean_gap_s=self.mean_gap_s))
        if "attributes" in self.workloads:
            for number in range(2):
                made.append(
                    AttributeClient(
                        *place(f"attributes-{number}"), segment=f"{SCOPE}/attributes/0.#epoch.0", number=number,
                        mean_gap_s=self.mean_gap_s / 2,
                    )
                )  # fmt: skip
        if "keys" in self.workloads:
            values: dict[tuple[str, bytes, int], bytes] = {}
            for number in range(2):
                for key_length in (0, KEY_LENGTH):
                    made.append(
                        ManyKeys(
                            *place(f"keys-{key_length}-{number}"), table=f"{SCOPE}/keys{key_length}/0.#epoch.0",
                            key_length=key_length, key_count=self.crowd_size, values=values,
                            mean_gap_s=self.mean_gap_s,
                        )
                    )  # fmt: skip


def _share(name: str, profile: Profile) -> float:
    return profile.share * (_RARE_SHARE if name in _RARE and profile.share < 1.0 else 1.0)


def _crowd_size(profile: Profile, seed: int) -> int:
    return random.Random(f"{seed}/crowd/{profile.name}").choice((30, 60, 90))


def _draw_owner_changes(rng: random.Random, cluster: ClusterSettings, profile: Profile) -> list[PlannedFault]:
    if not profile.takeover_gap_s:
        return []
    return draw_owner_changes(
        rng,
        [f"store-{number}" for number in range(1, cluster.store_count + 1)],
        cluster.segment_store.container_count,
        move_share=profile.move_share if cluster.has_shared_storage else 0.0,
        mean_gap_s=profile.takeover_gap_s,
        duration_s=profile.writing_s,
    )


def _controllers(cluster: ClusterSettings) -> list[str]:
    """Return the names of the hosts of several controllers."""
    return [f"controller-{number}" for number in range(1, cluster.controller_count + 1)]


def _described_controllers(cluster: ClusterSettings) -> str:
    if cluster.controller_count > 1:
        return f"{cluster.controller_count} controllers"
    return "combined controller" if cluster.is_combined else "separate controller"


def _draw_controller_faults(rng: random.Random, cluster: ClusterSettings, profile: Profile) -> list[PlannedFault]:
    if cluster.controller_count == 1 or not profile.controller_fault_gap_s:
        return []
    return draw_controller_faults(
        rng,
        _controllers(cluster),
        "coordinator",
        [f"store-{number}" for number in range(1, cluster.store_count + 1)],
        session_timeout_s=cluster.coordination.session_timeout_s,
        mean_gap_s=profile.controller_fault_gap_s,
        duration_s=profile.plan.duration_s,
    )


def _draw_plan(rng: random.Random, servers: list[str], clients: list[str], profile: Profile) -> FaultPlan:
    return draw_plan(rng, servers, clients, profile.plan) if profile.plan.kinds else FaultPlan()


def _draw_member_faults(rng: random.Random, cluster: ClusterSettings, profile: Profile) -> list[PlannedFault]:
    assert cluster.members is not None
    hosts = MemberHosts(
        stores=[f"store-{number}" for number in range(1, cluster.store_count + 1)],
        controllers=_controllers(cluster),
        clients=["client-1", "client-2"],
        container_count=cluster.segment_store.container_count,
        session_timeout_s=cluster.members.cluster.session_timeout_s,
    )
    kinds = profile.member_kinds or ALL_MEMBER_KINDS
    gap_s, duration_s = profile.member_fault_gap_s, profile.plan.duration_s
    return draw_member_faults(rng, hosts, kinds=kinds, mean_gap_s=gap_s, duration_s=duration_s)


def _machines(profile: Profile) -> list[str]:
    """Return the names of the hosts on which users read."""
    return [f"machine-{number}" for number in range(profile.habits.reader_count)]


def draw_workload_world(scenario: Scenario, cluster: SimulatedCluster) -> World:
    """Return the world of a scenario, with times relative to now."""
    now_s = cluster.simulation.loop.time()
    stop_s = now_s + scenario.profile.writing_s
    return World(
        cluster,
        cluster.simulation.rng("world"),
        stop_s=stop_s,
        # Over days workloads rest for hours between two calls.
        give_up_s=max(stop_s, now_s + scenario.plan.end_s) + 120.0 + scenario.profile.late_chunk_gap_s,
        payload_bytes_max=scenario.payload_bytes_max,
    )
