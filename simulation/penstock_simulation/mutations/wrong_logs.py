"""Planted bugs in the handling of logs that are missing, foreign, swapped or old: see `WrongLogs`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.runtime.disk import Disk
from penstock.segmentstore.container.storage.stale_log import StaleLogCheck
from penstock.segmentstore.tier1 import log_directory, log_recovery
from penstock.segmentstore.tier1.durable_log import InspectFrame
from penstock.segmentstore.tier1.log_directory import LogDirectory
from penstock.segmentstore.tier1.log_records import EpochRecord
from penstock_simulation.mutations.mutation import Mutation, patched
from penstock_simulation.workloads.plans import PlanSettings
from penstock_simulation.workloads.profile import Profile

#: Tier 1 repeatedly has wrong files. Long-term storage answers quickly, so that starts detect old copies.
WRONG_LOGS = Profile(
    name="wrong logs",
    plan=PlanSettings(
        duration_s=24.0, lasts_s_max=4.0, mean_gap_s_min=1.5, mean_gap_s_max=4.0,
        kinds=("WrongLogs", "WrongLogs", "Crash", "CrashAtDiskCall"),
        swizzle_rate=0.0, crash_loop_rate=0.0, zombie_rate=0.0,
    ),
    workloads=("events", "readers", "trimmed", "bytes", "merges", "transactions"),
    share=1.0, takeover_gap_s=0.0, writing_s=30.0, shared_storage_rate=0.0, memory_flip_rate=0.0,
    refused_rate=0.0, has_chunk_faults=False, has_images=True, garbage_delay_s=0.5,
)  # fmt: skip


@contextmanager
def _create_a_missing_log() -> Iterator[None]:
    with patched(LogDirectory, "_check_not_missing", lambda self: None):
        yield


@contextmanager
def _use_the_log_of_another_cluster() -> Iterator[None]:
    original = log_recovery.check_log

    def check(disk: Disk, directory: str, record: EpochRecord, cluster_id: str) -> None:
        original(disk, directory, record, "")

    with patched(log_directory, "check_log", check):
        yield


@contextmanager
def _trust_an_old_record() -> Iterator[None]:
    original = log_recovery.check_log

    def check(disk: Disk, directory: str, record: EpochRecord, cluster_id: str) -> None:
        original(disk, directory, replace(record, epoch=2**62), cluster_id)

    with patched(log_directory, "check_log", check):
        yield


@contextmanager
def _trust_an_old_copy() -> Iterator[None]:
    async def refuse(self: StaleLogCheck, name: str, epoch: int) -> None:
        return

    with patched(StaleLogCheck, "refuse", refuse):
        yield


def _claim_what_a_later_version_wrote() -> AbstractContextManager[None]:
    def check_nothing(self: LogDirectory, inspect: InspectFrame | None) -> None:
        """Leave it to the replay."""

    return patched(LogDirectory, "check_versions", check_nothing)


def _aimed(name: str, *kinds: str, has_images: bool = True) -> Profile:
    plan = replace(WRONG_LOGS.plan, duration_s=12.0, mean_gap_s_min=3.0, kinds=("WrongLogs",), wrong_logs=kinds)
    return replace(
        WRONG_LOGS, name=name, plan=plan, writing_s=16.0, workloads=("events", "bytes"), has_images=has_images,
        store_count_max=1,
    )  # fmt: skip


WRONG_LOG_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "create a missing log again", "what is acknowledged stays, also when tier 1 comes back",
        # No images: an image would reveal that the new log is older than it.
        _aimed("missing logs", "missing", "partly-missing", has_images=False), _create_a_missing_log,
    ),
    Mutation(
        "use the log of another cluster", "a cluster serves its own data alone",
        _aimed("foreign logs", "foreign", has_images=False), _use_the_log_of_another_cluster,
    ),
    Mutation(
        "trust an old record of the epoch", "no epoch is used twice",
        _aimed("old records", "old-records", has_images=False), _trust_an_old_record,
    ),
    Mutation(
        "trust an old copy of a log", "an old copy deletes nothing and acknowledges nothing",
        _aimed("old copies", "rolled-back"), _trust_an_old_copy,
    ),
    Mutation(
        "claim a log before its versions are checked", "what a later version wrote stays as it is, for that version",
        _aimed("later versions", "later-version", has_images=False), _claim_what_a_later_version_wrote,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
