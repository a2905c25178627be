"""What is left in the bucket of a cluster's logs after the faults: what records name, and nothing else.

Segment stores delete what they no longer need. What they leave when they die is deleted by a sweep, as an operator runs
it, while the stores run. The verification of all workloads follows: the sweep has deleted nothing that is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from penstock.administration.object_log_administration import LogSweepReport
from penstock.segmentstore.tier1.object_log.container_record import ContainerRecord, record_key
from penstock.segmentstore.tier1.object_log.journal_format import HEADER_LENGTH
from penstock_simulation.simulated.member_cluster import MemberCluster

#: Longest time until running stores have deleted what they do not need, after all faults and the sweep.
_TRIMMED_S = 30.0
_POLL_S = 0.5
_POLLS_PER_SWEEP = 20
_JOURNALS = "j/"


async def sweep_bucket(cluster: MemberCluster) -> list[str]:
    """Sweep the bucket of the logs, and return what is wrong with its contents afterwards."""
    problems: list[str] = []
    for number in range(round(_TRIMMED_S / _POLL_S)):
        if number % _POLLS_PER_SWEEP == 0:
            # A journal may get its seal after a sweep, which leaves journals without one to their processes.
            report = await cluster.administrator.run(_sweep(cluster))
            if report.foreign_count:
                return [f"the bucket of the logs has objects that are not of a log: {', '.join(report.foreign)}"]
        problems = list(_unneeded(cluster))
        if not problems:
            break
        await asyncio.sleep(_POLL_S)
    return problems


async def _sweep(cluster: MemberCluster) -> LogSweepReport:
    async with cluster.logs() as logs:
        return await logs.sweep(is_dry_run=False)


def _unneeded(cluster: MemberCluster) -> Iterator[str]:
    """Yield the data objects that no container's record names.

    A copy of a creation that arrives after the deletion of its object stays until its journal has a seal.
    """
    prefix, bucket = cluster.log_bucket
    contents = bucket.contents
    records = [
        _record(contents[key][0], number)
        for number in range(cluster.locator.container_count)
        if (key := record_key(prefix, number)) in contents
    ]
    sealed = {key.rpartition("/")[0] for key, (content, _) in contents.items() if len(content) == HEADER_LENGTH}
    for key, (content, _) in sorted(contents.items()):
        name = key.removeprefix(f"{prefix}/")
        if not name.startswith(_JOURNALS) or len(content) == HEADER_LENGTH:
            continue
        journal, _, slot = name.removeprefix(_JOURNALS).partition("/")
        is_late_copy = key in bucket.deleted and key.rpartition("/")[0] not in sealed
        if not is_late_copy and not any(_names(record, bytes.fromhex(journal), int(slot, 16)) for record in records):
            yield f"no record names the object {key} of {len(content)} bytes"


def _record(content: bytes, container_id: int) -> ContainerRecord:
    return ContainerRecord.decode(content, f"container {container_id}", container_id, "")


def _names(record: ContainerRecord, journal: bytes, slot: int) -> bool:
    return any(
        piece.journal == journal and record.first_slot(piece) <= slot and (piece.end is None or slot < piece.end)
        for piece in record.pieces
    )
