"""The profiles that seeds are run from by name: see ``python -m penstock_simulation run --profile``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from penstock_simulation.mutations.days import DAYS
from penstock_simulation.mutations.half_open import HALF_OPEN
from penstock_simulation.mutations.lost_locks import LOST_LOCKS
from penstock_simulation.mutations.members import CLUSTER, LOADED
from penstock_simulation.mutations.object_logs import TAKEN_OBJECT_LOGS
from penstock_simulation.mutations.offline_containers import OFFLINE_CONTAINER
from penstock_simulation.mutations.peers import CLOCKS, CONTROLLERS, TRANSACTIONS
from penstock_simulation.mutations.security import SECURED, SECURED_CLUSTER
from penstock_simulation.mutations.sinks import SINKS
from penstock_simulation.mutations.stalls import STALLS
from penstock_simulation.mutations.subscribers import LIMITED_SUBSCRIBERS, SUBSCRIBERS
from penstock_simulation.mutations.tables import TABLES_AND_STATES
from penstock_simulation.mutations.users import LONG_OUTAGES, USERS
from penstock_simulation.mutations.versions import VERSIONS
from penstock_simulation.mutations.wrong_logs import WRONG_LOGS
from penstock_simulation.workloads.plans import ALL_KINDS, PlanSettings
from penstock_simulation.workloads.profile import EVERYTHING, Profile

#: Long-term storage in a bucket, which can neither append nor concatenate, and loses, delays and repeats requests.
OBJECTS = Profile(name="objects", storage="bucket")

#: Long-term storage in HDFS: a file has one writer, and stays open when the writer dies or its answer is lost.
HDFS = Profile(name="hdfs", storage="hdfs")

#: Many truncations, deletions and merges, with readers of layouts that use the removed chunks.
GARBAGE = Profile(
    name="garbage", layout_gap_s=1.0, share=1.0, has_joins=True,
    workloads=("events", "trimmed", "bytes", "lives", "merges", "transactions"),
)  # fmt: skip

#: An unmounted directory cannot be copied; if long-term storage is full, images are deleted to make room.
_DIRECTORY_LOSSES = tuple(kind for kind in ALL_KINDS if kind not in ("StorageMissing", "DiskFull"))
#: Containers write images of themselves, machines are lost, and stores are rebuilt from long-term storage alone.
RESCUES = Profile(
    name="rescues", rescue_gap_s=2.0, garbage_delay_s=0.5, shared_storage_rate=1.0,
    workloads=("events", "readers", "trimmed", "tables", "bytes", "lives", "crowd", "merges", "transactions"),
    plan=PlanSettings(kinds=_DIRECTORY_LOSSES),
)  # fmt: skip
OBJECT_RESCUES = replace(RESCUES, name="object rescues", storage="bucket", plan=PlanSettings())

#: The logs are in a bucket: requests are lost, late, sent twice, hang and are refused. Other processes take logs over.
OBJECT_LOG = Profile(name="object log", object_log_rate=1.0, takeover_gap_s=8.0)

_ALL = (
    EVERYTHING, OBJECT_LOG, USERS, TABLES_AND_STATES, CONTROLLERS, TRANSACTIONS, CLOCKS, OBJECTS, HDFS, SUBSCRIBERS,
    TAKEN_OBJECT_LOGS, GARBAGE, SINKS, RESCUES, OBJECT_RESCUES, LONG_OUTAGES, HALF_OPEN, WRONG_LOGS, LOST_LOCKS,
    OFFLINE_CONTAINER, STALLS, DAYS, CLUSTER, LOADED, VERSIONS, SECURED,
    SECURED_CLUSTER,
)  # fmt: skip

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (*_ALL, LIMITED_SUBSCRIBERS)}
"""By name."""
