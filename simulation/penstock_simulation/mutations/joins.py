"""Planted bugs of joins of small chunks. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.segmentstore.container_settings import JoinSettings
from penstock.segmentstore.tier2 import chunked_storage, segment_join
from penstock.segmentstore.tier2.metadata import MetadataTransaction
from penstock.segmentstore.tier2.records import ChunkRecord, StoredSegmentRecord
from penstock.segmentstore.tier2.segment_join import JoinPlan
from penstock.segmentstore.tier2.storage_context import StorageContext
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


@contextmanager
def _delete_before_the_commit() -> Iterator[None]:
    original = segment_join.commit_join

    async def commit_join(context: StorageContext, plan: JoinPlan, joined: ChunkRecord) -> bool:
        await context.delete_chunks([chunk.name for chunk in plan.chunks])
        return await original(context, plan, joined)

    with patched(chunked_storage, "commit_join", commit_join):
        yield


@contextmanager
def _delete_the_joined_chunk() -> Iterator[None]:
    original = segment_join._stage

    async def stage(context: StorageContext, plan: JoinPlan, joined: ChunkRecord) -> MetadataTransaction | None:
        transaction = await original(context, plan, joined)
        if transaction is not None:
            context.garbage.stage(transaction, [joined.name])
        return transaction

    with patched(segment_join, "_stage", stage):
        yield


@contextmanager
def _join_in_another_order() -> Iterator[None]:
    original = segment_join.copy_chunks

    async def copy_chunks(context: StorageContext, plan: JoinPlan, settings: JoinSettings) -> ChunkRecord:
        return await original(context, replace(plan, chunks=plan.chunks[::-1]), settings)

    with patched(chunked_storage, "copy_chunks", copy_chunks):
        yield


@contextmanager
def _join_what_has_changed() -> Iterator[None]:
    async def unchanged(
        transaction: MetadataTransaction, context: StorageContext, plan: JoinPlan
    ) -> StoredSegmentRecord | None:
        record = await context.load_owned(transaction, plan.segment)
        for extent in plan.records:
            # Load the extents without comparing them with the plan.
            await transaction.extent(extent.run, extent.start)
        return record

    with patched(segment_join, "_unchanged", unchanged):
        yield


_JOINED = replace(
    short_profile("joined chunks", "trimmed", "merges", "bytes"), storage="bucket", cache_bytes_min=32 * 1024
)

JOIN_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "delete chunks before their join is committed", "what was leased, or is recorded, is there",
        replace(_JOINED, layout_gap_s=0.5), _delete_before_the_commit,
    ),
    Mutation("delete what chunks were joined to", "what is recorded is there", _JOINED, _delete_the_joined_chunk),
    Mutation("join chunks in another order", "every byte stays where it is", _JOINED, _join_in_another_order),
    Mutation(
        "join what has changed meanwhile", "what is truncated does not come back", _JOINED, _join_what_has_changed,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
