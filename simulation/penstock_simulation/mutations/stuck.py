"""Planted bugs in the isolation of segments that can never be flushed, and in large checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from penstock.segmentstore.container.log.checkpoints import Checkpoints
from penstock.segmentstore.container.log.log_rewriter import LogRewriter
from penstock.segmentstore.container.log.operations import CarriedBytes, NonAppendOperation
from penstock.segmentstore.container.log.recovery import FirstCheckpoint
from penstock.segmentstore.container.metadata import MetadataSnapshot
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.container.segment_quota import SegmentQuota
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


@contextmanager
def _carry_the_number_alone() -> Iterator[None]:
    log = LogRewriter._log

    def forgetful_log(self: LogRewriter, operation: NonAppendOperation) -> int:
        if isinstance(operation, CarriedBytes):
            operation = CarriedBytes(operation.segment_id, operation.offset, b"")
        return log(self, operation)

    with patched(LogRewriter, "_log", forgetful_log):
        yield


def _never_carry() -> AbstractContextManager[None]:
    def check(self: LogRewriter) -> None:
        """Let the log grow."""

    return patched(LogRewriter, "check", check)


def _ignore_the_quota() -> AbstractContextManager[None]:
    def is_over(self: SegmentQuota, segment: Segment) -> bool:
        return False

    return patched(SegmentQuota, "is_over", is_over)


@contextmanager
def _slow_parts() -> Iterator[None]:
    def in_next_turn(self: Checkpoints, call: Callable[[], None]) -> None:
        self._loop.call_later(0.1, call)  # As slow as with very many segments, so that the bug shows soon.

    with patched(Checkpoints, "_in_next_turn", in_next_turn):
        yield


@contextmanager
def _encode_what_changed_since() -> Iterator[None]:
    def keep(self: MetadataSnapshot, segment: Segment) -> None:
        """Let the segment be encoded later, with its changes."""

    with _slow_parts(), patched(MetadataSnapshot, "keep", keep):
        yield


@contextmanager
def _lose_what_lies_between_parts() -> Iterator[None]:
    add: Callable[[FirstCheckpoint, bytes], bool] = FirstCheckpoint.add

    def forgetful_add(self: FirstCheckpoint, record: bytes) -> bool:
        is_complete = add(self, record)
        if is_complete:
            self.later.clear()
        return is_complete

    with _slow_parts(), patched(FirstCheckpoint, "add", forgetful_add):
        yield


_STUCK = replace(
    short_profile("stuck segment", "bytes", gap_s=4.0),
    refused_rate=1.0, log_bytes_max=24 * 1024, writing_s=40.0, cache_bytes_min=32 * 1024,
)  # fmt: skip
_PARTS = short_profile("checkpoints in parts", "crowd", "bytes", "attributes", gap_s=1.0)

STUCK_MUTATIONS = (
    Mutation(
        "carry the number of bytes but not the bytes", "acknowledged means synced",
        replace(_STUCK, name="stuck segment, crashes"), _carry_the_number_alone,
    ),
    Mutation("never carry forward what keeps the log", "a log has a bound", _STUCK, _never_carry),
    Mutation(
        "let a stuck segment fill the cache", "a segment that cannot be flushed delays no other",
        replace(_STUCK, name="stuck segment, small cache", writing_s=100.0), _ignore_the_quota,
    ),
    Mutation(
        "encode a segment as it became after the checkpoint began", "a checkpoint is of one moment",
        _PARTS, _encode_what_changed_since,
    ),
    Mutation(
        "leave out what lies between the parts of a checkpoint", "acknowledged means synced",
        _PARTS, _lose_what_lies_between_parts,
    ),
)  # fmt: skip
"""Bugs of this kind."""
