"""`Scenario`: everything a seed decides: the cluster, its settings, the workloads, the faults."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from penstock.client.settings import ClientSettings
from penstock.controller.settings import ControllerSettings, RetentionSettings, WatermarkSettings
from penstock.runtime.work import PoolSettings
from penstock.segmentstore.settings import (
    ActivitySettings,
    CacheSettings,
    ContainerSettings,
    DiskCacheSettings,
    IndexSettings,
    OrphanSettings,
    SegmentStoreSettings,
    SpaceSettings,
)
from penstock.segmentstore.tier1.local_log import LocalLogSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorageSettings
from penstock.testing.chunk_faults import ChunkFaults
from penstock.testing.simulation.cluster import ClusterSettings, SimulatedCluster
from penstock.testing.simulation.faults import FaultPlan, PlannedFault
from penstock.testing.simulation.host import Host
from penstock.testing.simulation.late_requests import LateRequestSettings
from penstock.testing.simulation.objects import ObjectFault, ObjectFaults
from penstock.testing.workloads.attributes import AttributeClient
from penstock.testing.workloads.connection_crowd import ConnectionCrowd
from penstock.testing.workloads.crowd import MergeClient, SegmentCrowd
from penstock.testing.workloads.events import GroupReader, StreamKeeper, Writer, WriterCrowd
from penstock.testing.workloads.group_changes import GroupChanges
from penstock.testing.workloads.handed_transactions import HandedTransactions
from penstock.testing.workloads.many_keys import KEY_LENGTH, ManyKeys
from penstock.testing.workloads.mortal_readers import MortalReader
from penstock.testing.workloads.plans import draw_controller_faults, draw_owner_changes, draw_plan
from penstock.testing.workloads.prepared_transactions import PreparedTransactions
from penstock.testing.workloads.profile import Profile
from penstock.testing.workloads.reincarnations import Reincarnations
from penstock.testing.workloads.segments import ByteAppender, ByteReader, SegmentLives
from penstock.testing.workloads.stream_lives import StreamLives
from penstock.testing.workloads.tables import CounterClient, TableClient
from penstock.testing.workloads.transactions import TransactionWriter
from penstock.testing.workloads.user_calls import UserCalls
from penstock.testing.workloads.user_groups import UserGroups
from penstock.testing.workloads.user_tables import UserStates, UserTables
from penstock.testing.workloads.user_writers import UserTransactions, UserWriter
from penstock.testing.workloads.users import UserReader
from penstock.testing.workloads.world import REFUSED_PREFIX, SCOPE, Workload, World

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")

_KIB = 1024
MAIN_STREAM = f"{SCOPE}/events"
TRIMMED_STREAM = f"{SCOPE}/trimmed"
USER_STREAM = f"{SCOPE}/user-events"

#: They cost much: where not every workload takes part anyway they do less often than others.
_RARE = ("names", "mortals", "user writers", "group changes")
#: They came later.
_LATER = ("streams", "user writers", "users", "user tables", "user states", "group changes", "connections")
#: So many have transactions open on one stream at a time that several are committed together.
TRANSACTION_CROWD_SIZE = 5
#: Memory for what connections send, of a store to which a crowd of them sends while its log stands still.
_CROWDED_INGEST_BYTES = 64 * _KIB
_RARE_SHARE = 0.4


#: Users that stand for themselves: in profiles of their own, see `mutations.promises`.
_OF_USERS: Mapping[str, type[UserGroups | UserCalls | HandedTransactions | PreparedTransactions]] = {
    "user groups": UserGroups,
    "user calls": UserCalls,
    "handed transactions": HandedTransactions,
    "prepared transactions": PreparedTransactions,
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
        profile = profile or Profile()
        rng = random.Random(f"{seed}/scenario/{profile.name}")
        # Generators of their own, so that what else a seed draws stays as it was.
        own = {name: random.Random(f"{seed}/{name}/{profile.name}") for name in _LATER}
        workloads = tuple(
            name
            for name in profile.workloads
            if name == "events" or own.get(name, rng).random() < _share(name, profile)
        )
        cluster = _draw_cluster(rng, random.Random(f"{seed}/chunk faults/{profile.name}"), profile)
        limits_rng = (_Lowest if profile.has_lowest_limits else random.Random)(f"{seed}/limits/{profile.name}")
        cluster = _with_limits(cluster, limits_rng)
        cluster = _with_log_bounds(cluster, random.Random(f"{seed}/log bounds/{profile.name}"), profile)
        cluster = _with_ingest_budget(cluster, profile, is_crowded="connections" in workloads)
        cluster = _with_controller(cluster, random.Random(f"{seed}/controller/{profile.name}"), profile)
        cluster = _with_controllers(cluster, random.Random(f"{seed}/controllers/{profile.name}"), profile)
        if profile.has_object_storage:
            objects_rng = random.Random(f"{seed}/objects/{profile.name}")
            cluster = replace(cluster, object_faults=_draw_object_faults(objects_rng))
        names = [f"store-{number}" for number in range(1, cluster.store_count + 1)]
        if cluster.controller_count > 1:
            names += [*_controllers(cluster), "coordinator"]
        elif not cluster.is_combined:
            names.append("controller")
        clients = ["client-1", "client-2", *(_machines(profile) if "users" in workloads else ())]
        changes = _draw_owner_changes(random.Random(f"{seed}/owners/{profile.name}"), cluster, profile)
        changes += _draw_controller_faults(random.Random(f"{seed}/controller faults/{profile.name}"), cluster, profile)
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
            plan=draw_plan(rng, names, clients, profile.plan).with_faults(changes),
        )

    def __str__(self) -> str:
        """Return what matters to a reader of a failure."""
        cluster = self.cluster
        return (
            f"seed {self.seed}, profile {self.profile.name}: {cluster.store_count} stores, "
            f"{cluster.segment_store.container_count} containers, "
            f"{_described_controllers(cluster)}; {', '.join(self.workloads)}; "
            f"{self.writer_count} writers, {self.reader_count} readers, {self.segment_count} segments; "
            f"{len(self.plan.faults)} faults"
        )

    def make_workloads(self, world: World, hosts: list[Host]) -> list[Workload]:
        """Make the workloads, spread over the clients' hosts. Those that verify go in this order."""
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
            # Two keys of its own and one that all writers share.
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
                    GroupReader(
                        *place(f"reader-{number}"), stream=MAIN_STREAM, group="group", is_leader=number == 0
                    )
                )
        if "trimmed" in self.workloads:
            made.append(keeper("trimmer", TRIMMED_STREAM, is_truncated=True))
            made.append(
                Writer(
                    *place("trimmed-writer"), stream=TRIMMED_STREAM, keys=("t",), events_per_s=1.5 / self.mean_gap_s
                )
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
        if "group changes" in self.workloads:
            made.append(GroupChanges(*place("group-changes"), habits=self.profile.habits))
        for name, kind in _OF_USERS.items():
            if name in self.workloads:
                made.append(kind(*place(name.replace(" ", "-")), habits=self.profile.habits))
        return made

    def _add_users(self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]) -> None:
        """Add a stream of their own with users that write to it, and a group of users that read it."""
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
            made.append(
                UserWriter(*place(f"user-writer-{number}"), stream=USER_STREAM, keys=keys, habits=habits)
            )
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
        """Add names that are used again, and readers that die."""
        if "names" in self.workloads:
            made.append(Reincarnations(*place("names"), prefix=f"{SCOPE}/again", mean_gap_s=self.mean_gap_s))
        if "mortals" in self.workloads:
            for number in range(2):
                made.append(
                    MortalReader(
                        *place(f"mortal-{number}"), stream=MAIN_STREAM, group="mortals", is_leader=number == 0
                    )
                )

    def _add_crowds(
        self, made: list[Workload], place: Callable[[str], tuple[World, Host, str, random.Random]]
    ) -> None:
        """Add what needs more segments, attributes and keys than memory has room for."""
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
            made.append(
                MergeClient(*place("merges"), target=f"{SCOPE}/merged/0.#epoch.0", mean_gap_s=self.mean_gap_s)
            )
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


def _machines(profile: Profile) -> list[str]:
    """Return the names of the hosts that users read on."""
    return [f"machine-{number}" for number in range(profile.habits.reader_count)]


def _share(name: str, profile: Profile) -> float:
    return profile.share * (_RARE_SHARE if name in _RARE and profile.share < 1.0 else 1.0)


def _crowd_size(profile: Profile, seed: int) -> int:
    return random.Random(f"{seed}/crowd/{profile.name}").choice((30, 60, 90))


def _draw_chunk_faults(rng: random.Random, slow_read_rate: float | None) -> ChunkFaults | None:
    if rng.random() < 0.5 and slow_read_rate is None:
        return None
    return ChunkFaults(
        latency_s_max=rng.choice((0.0, 0.01)),
        slow_rate=0.02,
        slow_read_rate=slow_read_rate or 0.0,
        slow_s=rng.uniform(0.1, 1.0) * (1.0 if slow_read_rate is None else 3.0),
        throttle_rate=rng.choice((0.0, 0.02)),
        error_before_rate=rng.choice((0.0, 0.02)),
        error_after_rate=rng.choice((0.0, 0.02)),
        partial_write_rate=rng.choice((0.0, 0.02)),
    )


def _draw_object_faults(rng: random.Random) -> ObjectFaults:
    rates = tuple((fault, rng.choice((0.0, 0.01, 0.05))) for fault in ObjectFault)
    return ObjectFaults(latency_s_max=rng.choice((0.01, 0.1)), slow_s=1.0, late_s_max=10.0, rates=rates)


def _draw_cluster(rng: random.Random, chunk_rng: random.Random, profile: Profile) -> ClusterSettings:
    store_count = min(rng.choices((1, 2, 3), (6, 3, 1))[0], profile.store_count_max)
    store_count = max(store_count, profile.store_count_min)
    container_count = rng.randint(store_count, 4)
    return ClusterSettings(
        store_count=store_count,
        chunk_faults=_draw_chunk_faults(chunk_rng, profile.slow_read_rate),
        has_shared_storage=store_count > 1 and chunk_rng.random() < profile.shared_storage_rate,
        is_combined=rng.random() < 0.7,
        restart_delay_s=rng.uniform(0.1, 2.0),
        segment_store=SegmentStoreSettings(
            container_count=container_count,
            restart_delay_s=rng.uniform(0.05, 0.5),
            restart_delay_s_max=2.0,
            disabled_retry_s=5.0,
            cache=CacheSettings(
                bytes_max=rng.choice((profile.cache_bytes_min, 4 * profile.cache_bytes_min, 4096 * _KIB)),
                target_percent=rng.choice((25, 50, 75)),
                block_length=rng.choice((512, 2048, 16 * _KIB)),
                small_append_length=rng.choice((128, 512, 2048)),
            ),
            container=ContainerSettings(
                checkpoint_log_bytes=rng.choice((4, 16, 64)) * _KIB,
                checkpoint_log_bytes_idle=rng.choice((1, 4)) * _KIB,
                checkpoints_max=rng.choice((2, 8, 64)),
                flush_bytes=rng.choice((512, 2 * _KIB, 16 * _KIB)),
                flush_age_s=rng.uniform(0.3, 4.0),
                rollover_bytes_min=4 * _KIB,
                flush_write_bytes_max=rng.choice((700, 4 * _KIB, 64 * _KIB)),
                flush_concurrency=rng.choice((1, 4)),
                writer_interval_s=rng.uniform(0.1, 0.5),
                writer_retry_s=rng.uniform(0.1, 0.5),
                outstanding_bytes_max=256 * _KIB,
                read_ahead_bytes=rng.choice((4, 16, 64)) * _KIB,
                whole_read_bytes=rng.choice((512, 64 * _KIB)),
                table_compact_bytes=rng.choice((1, 4, 16)) * _KIB,
                table_compact_step_bytes=rng.choice((512, 4 * _KIB)),
                stop_timeout_s=5.0,
                ownership_lease_s=2.0,
                space=SpaceSettings(
                    check_interval_s=0.5,
                    log_free_bytes_min=32 * _KIB,
                    log_free_percent_max=100,
                    storage_free_bytes_min=16 * _KIB,
                    storage_free_percent_max=100,
                ),
                orphans=OrphanSettings(
                    retry_s_min=1.0, retry_s_max=4.0, late_s_max=30.0, sweep_delay_s=3.0, sweep_interval_s=9.0,
                    sweep_names=16, sweep_pause_s=0.01,
                ),
            ),
        ),
        durable_log=LocalLogSettings(
            frame_length_max_bytes=(
                frame_length_max_bytes := rng.choice((8,) if profile.reserve_file_count else (8, 64, 1024)) * _KIB
            ),
            batch_length_max_bytes=rng.choice((4, 64)) * _KIB,
            file_length_bytes=rng.choice((32, 128)) * _KIB,
            first_file_length_bytes=rng.choice((16, 32)) * _KIB,
            zero_chunk_length_bytes=64 * _KIB,
            spare_file_count_max=rng.choice((0, 2)),
            lock_wait_s_max=1.0,
            # With long frames the reserve is long, too, and the disk is in memory.
            reserve_file_count=profile.reserve_file_count or (2 if frame_length_max_bytes <= 64 * _KIB else 0),
            reserve_file_length_bytes=32 * _KIB,
            reserve_record_count=max(3, profile.reserve_file_count),
            free_bytes_min=4 * _KIB,
            free_percent_max=100,
        ),
        # Short enough for calls to be given up while storage hangs, long enough for it to be slow.
        long_term_storage=DirectoryChunkStorageSettings(
            reads=PoolSettings(thread_count_max=8, hung_count_max=4, timeout_s=3.0),
            writes=PoolSettings(thread_count_max=4, hung_count_max=4, timeout_s=4.0),
            names=PoolSettings(thread_count_max=2, hung_count_max=4, timeout_s=4.0),
            cancel_grace_s=0.2,
        ),
        # No workload notes times or has a retention policy: looking for them would only change what every seed does.
        controller=ControllerSettings(
            watermarks=WatermarkSettings(is_enabled=False), retention=RetentionSettings(is_enabled=False)
        ),
        client=ClientSettings(
            connect_timeout_s=2.0,
            request_timeout_s=5.0,
            keepalive_interval_s=2.0,
            controller_request_timeout_s=5.0,
            controller_attempt_count_max=20,
            retry_time_max_s=200.0,
            retry_delay_max_s=1.0,
            block_bytes_max=rng.choice((256, 2048, 64 * _KIB)),
            pipelined_block_bytes_min=rng.choice((1, 100, 1024)),
            read_bytes=rng.choice((512, 4 * _KIB, 64 * _KIB)),
            position_interval_s=rng.uniform(0.5, 3.0),
            reader_group_refresh_s=rng.uniform(0.3, 1.0),
            # Nobody is ever declared dead: then a group reads everything exactly once.
            reader_timeout_s=10_000.0,
        ),
    )


class _Lowest(random.Random):
    """Draws the first of what there is to choose from: of limits, the lowest."""

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        """Return the first."""
        return seq[0]


def _with_limits(cluster: ClusterSettings, rng: random.Random) -> ClusterSettings:
    """Return a cluster that can keep little in memory: few segments, few attributes, few keys of tables."""
    container = replace(
        cluster.segment_store.container,
        active_segments_max=rng.randint(12, 40),
        active_segments_idle_max=rng.choice((0, 4, 1000)),
        deactivation_interval_s=rng.uniform(0.3, 3.0),
        deactivation_batch_max=rng.choice((1, 3, 2500)),
        attributes_in_memory_max=rng.choice((2, 8)),
        attributes_cached_max=rng.choice((1, 4, 16)),
        attributes_flush_count=rng.choice((1, 4, 12)),
        attributes_unflushed_max=rng.choice((12, 64)),
        table_index_min_bytes=rng.choice((500, 2 * _KIB, 8 * _KIB)),
        table_index_percent=rng.choice((1, 12, 50)),
        table_index_max_bytes=rng.choice((2, 16)) * _KIB,
        table_unindexed_bytes_max=rng.choice((16, 64)) * _KIB,
        table_unindexed_bytes_max_system=rng.choice((64, 256)) * _KIB,
        table_index_retry_s=rng.uniform(0.1, 0.5),
        table_index_wait_timeout_s=5.0,
        index_chunk_bytes_max=rng.choice((1, 4, 64)) * _KIB,
        storage_read_timeout_s=3.0,
        flush_slow_s=rng.choice((0.3, 5.0)),
        index=IndexSettings(
            page_bytes=rng.choice((256, 512, 8 * _KIB)),
            read_bytes_max=rng.choice((512, 16 * _KIB)),
            compact_slack_bytes=rng.choice((512, 8 * _KIB)),
            truncate_bytes_min=rng.choice((256, 4 * _KIB)),
            redo_max=rng.choice((1, 4)),
        ),
        activity=ActivitySettings(interval_s=rng.uniform(0.2, 1.0), index_entry_bytes=rng.choice((0, 600, 4 * _KIB))),
    )
    disk_cache = DiskCacheSettings(
        bytes_max=rng.choice((0, 16, 64)) * _KIB,
        slot_bytes=container.read_ahead_bytes,
        piece_bytes_min=100,
        pending_bytes_max=32 * _KIB,
    )
    return replace(cluster, segment_store=replace(cluster.segment_store, container=container, disk_cache=disk_cache))


def _with_log_bounds(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster with short logs, checkpoints in parts, and perhaps a segment that can never be flushed."""
    container = replace(
        cluster.segment_store.container,
        log_bytes_max=profile.log_bytes_max or rng.choice((48, 128, 512)) * _KIB,
        carry_record_bytes_max=rng.choice((300, 8 * _KIB)),
        checkpoint_part_values=rng.choice((16, 100, 8192)),
        flush_pressure_segments_max=rng.choice((1, 64)),
    )
    throttle = replace(
        cluster.segment_store.throttle,
        segment_hold_s_max=rng.choice((1.0, 5.0)),
        segment_backlog_percent=rng.choice((1, 25)),
    )
    chunk_faults = cluster.chunk_faults
    if rng.random() < profile.refused_rate:
        chunk_faults = replace(chunk_faults or ChunkFaults(), refused_prefixes=(REFUSED_PREFIX,))
    container = replace(
        container, flush_age_index_s=rng.choice((2.0, 300.0)), flush_concurrency_small=rng.choice((1, 16))
    )
    segment_store = replace(cluster.segment_store, container=container, throttle=throttle)
    return replace(cluster, segment_store=segment_store, chunk_faults=chunk_faults)


def _with_ingest_budget(cluster: ClusterSettings, profile: Profile, *, is_crowded: bool) -> ClusterSettings:
    """Return a cluster whose stores stop reading connections soon, if the profile says so or a crowd of them comes."""
    ingest_bytes_max = profile.ingest_bytes_max or (_CROWDED_INGEST_BYTES if is_crowded else 0)
    if not ingest_bytes_max:
        return cluster
    connection = replace(
        cluster.segment_store.connection, ingest_bytes_max=ingest_bytes_max, read_delay_s_max=1.0
    )
    return replace(cluster, segment_store=replace(cluster.segment_store, connection=connection))


def _with_controller(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster whose controller is impatient at times, so that outages outlast it, or heard late."""
    late = LateRequestSettings() if rng.random() < 0.3 else None
    controller = replace(
        cluster.controller,
        attempts_max=profile.controller_attempts_max or rng.choice((2, 4, 10)),
        retry_delay_ms_first=rng.choice((10, 100)),
        retry_delay_ms_max=rng.choice((100, 1000, 10_000)),
        work_slot_s=rng.choice((0.05, 1.0)),
    )
    return replace(cluster, controller=controller, late_requests=profile.late_requests or late)


def _with_controllers(cluster: ClusterSettings, rng: random.Random, profile: Profile) -> ClusterSettings:
    """Return a cluster with several controllers, if the profile says so."""
    count = rng.randint(profile.controller_count_min, profile.controller_count_max)
    return cluster if count == 1 else replace(cluster, controller_count=count, is_combined=False)


def draw_workload_world(scenario: Scenario, cluster: SimulatedCluster) -> World:
    """Make the world of a scenario, with times that count from now."""
    now_s = cluster.simulation.loop.time()
    stop_s = now_s + scenario.profile.writing_s
    return World(
        cluster,
        cluster.simulation.rng("world"),
        stop_s=stop_s,
        give_up_s=max(stop_s, now_s + scenario.plan.end_s) + 120.0,
        payload_bytes_max=scenario.payload_bytes_max,
    )
