"""What is wrong with the long-term storage of a store, or with its log, since when, and what the store does meanwhile.

For messages. Long-term storage has three states, each of which ends automatically. *Gone*: storage is missing, another
one, refuses requests, or does not respond at all. *Full*: it has little space, or none. *Slow*: initial lookups are
incomplete, or flushes fail.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.model.errors import CorruptionError, StorageFullError
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.tier2.storage_guard import GuardedChunkStorage

#: A flush that fails and succeeds at the next attempt is not reported.
_TOLD_AFTER_S = 5.0

_GONE = "nothing is flushed, read or deleted there; appends are accepted and wait in the log until memory is full"
_FULL = "users' bytes stay in the log, and appends wait once memory is full; truncations and deletions free space"
_FAILING = "their bytes stay in the log, and the flush is retried"


def storage_problem(chunks: GuardedChunkStorage, containers: Sequence[SegmentContainer], now_s: float) -> str | None:
    """Return a sentence about the most severe problem; None if there is none. `now_s`: the loop's time."""
    if (problem := chunks.problem) is not None:
        since_s = chunks.problem_since_s
        return f"{problem} ({'' if since_s is None else _for(now_s - since_s)}{_GONE})"
    low = [since_s for each in containers if (since_s := each.space.storage_low_since_s) is not None]
    if low:
        return f"it has little room ({_for(now_s - min(low))}{_FULL})"
    unknown = [str(each.id) for each in containers if not each.storage.lookups.have_ended]
    if unknown:
        return (
            f"the state of containers {', '.join(unknown)} in it is not known yet (they serve, but flush nothing "
            "until it is known)"
        )
    failing = [found for each in containers if (found := each.writer.failing) is not None]
    # Damage concerns a segment, and is reported with it.
    failing = [found for found in failing if not isinstance(found[2], CorruptionError)]
    if not failing:
        return None
    _, since_s, error = min(failing, key=lambda found: found[1])
    if now_s - since_s < _TOLD_AFTER_S:
        return None
    count = sum(found[0] for found in failing)
    what = _FULL if isinstance(error, StorageFullError) else _FAILING
    return f"{count} segments are not flushed: {error} ({_for(now_s - since_s)}{what})"


def log_problem(containers: Sequence[SegmentContainer], now_s: float) -> str | None:
    """Return why the logs of containers do not take appends; None if they do. `now_s`: the loop's time.

    A problem that ends within seconds, as the change to another ledger, is not reported.
    """
    found = [
        (waited_s, each)
        for each in containers
        if each.log_problem and (waited_s := each.log_problem_s(now_s)) >= _TOLD_AFTER_S
    ]
    if not found:
        return None
    waited_s, first = max(found, key=lambda each: each[0])
    numbers = ", ".join(str(each.id) for _, each in found)
    return f"the log of containers {numbers} takes no appends, which wait ({_for(waited_s)}{first.log_problem})"


def full_disk(containers: Sequence[SegmentContainer], now_s: float) -> str | None:
    """Return why containers hold or refuse users' writes for lack of space; None if none does. `now_s`: loop's time."""
    low = [(since_s, each) for each in containers if (since_s := each.space.log_low_since_s) is not None]
    if low:
        since_s = min(since_s for since_s, _ in low)
        free_bytes = min(each.space.log_free_bytes for _, each in low)
        return (
            f"{free_bytes} bytes are free beside the log, {_for(now_s - since_s)}writes wait; truncate or delete "
            "streams, or make room on the disk (segment_store.container.space.log_free_bytes_min)"
        )
    waiting = [
        since_s
        for each in containers
        if (since_s := each.space.storage_low_since_s) is not None and each.throttle.waiting_count
    ]
    if waiting:
        return (
            f"long-term storage has little room, {_for(now_s - min(waiting))}memory is full, and writes wait; "
            "truncate or delete streams, or free space there (segment_store.container.space.storage_free_bytes_min)"
        )
    return None


def _for(duration_s: float) -> str:
    return f"for {duration_s:.0f} s; "
