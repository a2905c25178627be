"""Planted bugs of streams that change their segments. See `catalog`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.client.groups import reader_group_state
from penstock.client.groups.group_state import GroupState, HeldSegment
from penstock.controller.metadata.record_store import Versioned
from penstock.controller.metadata.records import CommittingTransactions, EpochRecord
from penstock.controller.metadata.stream_tables import StreamTables
from penstock.controller.transactional_tails import TransactionalTails
from penstock.controller.workflows import commit, roll_transactions
from penstock.controller.workflows.context import WorkflowContext
from penstock.controller.workflows.roll_transactions import MergeInto
from penstock.model.names import segment_name
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


def _leave_rolled_segments_open() -> AbstractContextManager[None]:
    async def seal_segments(
        context: WorkflowContext, tables: StreamTables, segments: Sequence[int], confirm: Callable[[], Awaitable[None]]
    ) -> dict[int, int]:
        return dict.fromkeys(segments, 0)

    return patched(roll_transactions, "seal_segments", seal_segments)


@contextmanager
def _take_a_roll_that_was_cut_short_for_done() -> Iterator[None]:
    original = roll_transactions.roll_transactions

    async def roll(
        context: WorkflowContext,
        tables: StreamTables,
        committing: Versioned[CommittingTransactions],
        origin: EpochRecord,
        merge: MergeInto,
    ) -> Versioned[CommittingTransactions]:
        if committing.record.active_epoch is not None:
            return committing
        return await original(context, tables, committing, origin, merge)

    with patched(commit, "roll_transactions", roll):
        yield


@contextmanager
def _merge_in_another_order_somewhere() -> Iterator[None]:
    original = commit._merge_segment

    async def merge_segment(
        context: WorkflowContext, tables: StreamTables, target: str, sources: list[str], *, spares_lost_at: int | None
    ) -> Sequence[int]:
        number = int(target.rpartition("/")[2].partition(".")[0])
        ordered = sources[::-1] if number % 2 else sources
        return await original(context, tables, target, ordered, spares_lost_at=spares_lost_at)

    with patched(commit, "_merge_segment", merge_segment):
        yield


@contextmanager
def _read_on_after_one_of_several() -> Iterator[None]:
    original = reader_group_state.finish

    def finish(
        state: GroupState, name: str, segment: str, end: HeldSegment, successors: Mapping[str, Sequence[str]]
    ) -> GroupState:
        return original(state, name, segment, end, dict.fromkeys(successors, (segment,)))

    with patched(reader_group_state, "finish", finish):
        yield


def _take_a_tail_amid_a_commit() -> AbstractContextManager[None]:
    async def read_tails(self: TransactionalTails, tables: StreamTables) -> dict[int, int] | None:
        segments = (await tables.commit_view()).current.segments
        names = {segment.id: segment_name(tables.scope, tables.stream, segment.id) for segment in segments}
        infos = await self._context.segments.infos(list(names.values()))
        return {segment: infos[name].length for segment, name in names.items()}

    return patched(TransactionalTails, "_read_tails", read_tails)


_SCALES = replace(short_profile("scales", "readers", kinds=("Pause",)), scale_rate=1.0, pace=2.0)
_ROLLS = replace(short_profile("rolls", "readers", "transactions", kinds=("Pause",)), scale_rate=1.0, pace=2.0)
_TRANSACTIONS = replace(
    short_profile("transactions across scales", "readers", "transaction crowd", kinds=("Pause",)),
    scale_rate=1.0, scale_gap_s=1.0, pace=2.0,
)  # fmt: skip
#: Slow writes, so that crashes happen during a roll.
_ROLLS_CUT_SHORT = replace(
    short_profile("rolls cut short", "readers", "transaction crowd"),
    scale_rate=1.0, scale_gap_s=1.0, pace=2.0, work_stall_rate=0.05,
)  # fmt: skip

SCALING_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "leave segments open that a roll replaces", "events of one key stay in order",
        _ROLLS, _leave_rolled_segments_open,
    ),
    Mutation(
        "take a roll that was cut short for done", "a commit that was begun is finished by the next controller",
        _ROLLS_CUT_SHORT, _take_a_roll_that_was_cut_short_for_done,
    ),
    Mutation(
        "merge transactions in another order into some segments", "transactions have one order in all segments",
        _TRANSACTIONS, _merge_in_another_order_somewhere,
    ),
    Mutation(
        "take a whole tail amid a commit", "a transaction is seen whole or not at all",
        _TRANSACTIONS, _take_a_tail_amid_a_commit,
    ),
    Mutation(
        "read on after one of several predecessors", "events of one key stay in order",
        _SCALES, _read_on_after_one_of_several,
    ),
)  # fmt: skip
