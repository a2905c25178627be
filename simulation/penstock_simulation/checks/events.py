"""Checks of events and transactions: what was acknowledged is read, once, whole and in order. Linear in the history."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from penstock_simulation.checks.history_events import (
    AbortTransaction,
    CommitTransaction,
    Ended,
    EventSeen,
    FullRead,
    History,
    Outcome,
    WriteEvent,
)


@dataclass(slots=True)
class _Pass:
    """One reading pass: places of its events in reading order."""

    full: Ended | None = None
    seen: list[EventSeen] = field(default_factory=list)


@dataclass(slots=True)
class _Transaction:
    writes: list[Ended] = field(default_factory=list)
    commit: Ended | None = None
    abort: Ended | None = None

    @property
    def fate(self) -> bool | None:
        """True: committed for certain. False: certainly never visible. None: either."""
        if self.commit is not None and self.commit.outcome is Outcome.OK:
            return True
        if self.abort is not None and self.abort.outcome is Outcome.OK:
            return False
        return None if self.commit is not None and self.commit.outcome is Outcome.UNKNOWN else False


def check_events(history: History, *, truncated_streams: Collection[str] = ()) -> list[str]:
    """Return what is wrong with the events that were read.

    1. Every event acknowledged before a full read began is in it. (In `truncated_streams` the oldest may be gone.)
    2. Nothing is read that was not written, or whose write certainly failed; keys are those written.
    3. No pass reads an event twice, but for those whose readers may die: they may meet it at its place again. An
       unknown write may be read once or not at all.
    4. Events of one key are read in the order written: those of one writer in the order of its calls, those of
       different writers if one was acknowledged before the other was called. Across segments.
    5. What one full read had, later ones have.
    """
    writes = _writes(history)
    passes = _passes(history)
    violations: list[str] = []
    for name, reading in passes.items():
        violations += _check_pass(name, reading, writes)
        if reading.full is not None and reading.full.outcome is Outcome.OK:
            violations += _check_complete(name, reading, reading.full, writes, truncated_streams)
    violations += _check_agreement(passes, truncated_streams)
    return violations


def check_transactions(history: History, *, truncated_streams: Collection[str] = ()) -> list[str]:
    """Return what is wrong with transactions.

    1. A full read has all events of a transaction or none (except in `truncated_streams`).
    2. A transaction whose commit was acknowledged before the read began is in it (if it `is_settled`).
    3. One that was aborted, never committed, or whose commit certainly failed is in no pass at all.
    4. Of two transactions, one committed before the commit of the other was called, the first is read first, key by
       key; and within a transaction each writer's events of a key are in the order written.
    5. All transactions of a stream have one order, which every segment and every key keeps: none comes before another
       one here and after it there, also not by way of others; and nothing of others is amid one that was merged.
    """
    writes = _writes(history)
    transactions: dict[tuple[str, str], _Transaction] = defaultdict(_Transaction)
    for ended in history.calls():
        match ended.invocation.call:
            case WriteEvent(stream=stream, transaction=str(transaction)):
                transactions[stream, transaction].writes.append(ended)
            case CommitTransaction(stream=stream, transaction=transaction):
                known = transactions[stream, transaction]
                if known.commit is None or ended.outcome is Outcome.OK or known.commit.outcome is Outcome.FAIL:
                    known.commit = ended  # A repeated commit: the best answer counts, an unknown one is not taken back.
            case AbortTransaction(stream=stream, transaction=transaction):
                transactions[stream, transaction].abort = ended
    violations: list[str] = []
    for name, reading in _passes(history).items():
        seen = {(event.stream, event.event) for event in reading.seen}
        for (stream, transaction), known in transactions.items():
            is_complete_read = (
                reading.full is not None
                and reading.full.outcome is Outcome.OK
                and _stream_of(reading.full) == stream
                and stream not in truncated_streams
            )
            events = [_event(write).event for write in known.writes if write.outcome is Outcome.OK]
            found = [event for event in events if (stream, event) in seen]
            where = f"transaction {transaction} of {stream}, pass {name}"
            if found and known.fate is False:
                violations.append(f"{where}: {found[0]!r} was read, but the transaction was never committed")
            if not is_complete_read or not events:
                continue
            assert reading.full is not None
            if found and len(found) != len(events):
                missing = next(event for event in events if (stream, event) not in seen)
                violations.append(f"{where}: read in part: {found[0]!r} is there, {missing!r} is not")
            elif (
                not found
                and known.fate
                and _full(reading.full).is_settled
                and known.commit is not None
                and known.commit.end_index < reading.full.invocation.index
            ):
                violations.append(f"{where}: its commit was acknowledged, none of it was read: {known.commit}")
        violations += _check_commit_order(name, reading, writes, transactions)
        violations += _check_one_order(name, reading, writes)
    return violations


def _writes(history: History) -> dict[tuple[str, bytes], Ended]:
    found: dict[tuple[str, bytes], Ended] = {}
    for ended in history.calls():
        call = ended.invocation.call
        if isinstance(call, WriteEvent):
            if (call.stream, call.event) in found:
                raise ValueError(f"{call.event!r} was written twice to {call.stream}: the history cannot be checked")
            found[call.stream, call.event] = ended
    return found


def _passes(history: History) -> dict[str, _Pass]:
    """Return the passes by name. Of an event that one may repeat, and met at the same place again, the first time."""
    found: dict[str, _Pass] = defaultdict(_Pass)
    places: set[tuple[str, str, int, bytes]] = set()
    for ended in history.calls():
        if isinstance(ended.invocation.call, FullRead):
            found[ended.invocation.call.read].full = ended
    for observed in history.observations():
        event = observed.observation
        if isinstance(event, EventSeen):
            place = (event.read, event.segment, event.offset, event.event)
            if not (event.may_repeat and place in places):
                found[event.read].seen.append(event)
            places.add(place)
    return found


def _check_pass(name: str, reading: _Pass, writes: dict[tuple[str, bytes], Ended]) -> Iterator[str]:
    first_seen: dict[tuple[str, bytes], EventSeen] = {}
    by_key: dict[tuple[str, str], list[Ended]] = defaultdict(list)
    for event in reading.seen:
        where = f"pass {name} of {event.stream}: {event.event!r} at {event.segment}:{event.offset}"
        identity = (event.stream, event.event)
        earlier = first_seen.setdefault(identity, event)
        if earlier is not event:
            yield f"{where}: read twice, first at {earlier.segment}:{earlier.offset}"
            continue
        write = writes.get(identity)
        if write is None:
            yield f"{where}: no writer wrote it"
            continue
        if write.outcome in (Outcome.FAIL, Outcome.REFUSED):
            yield f"{where}: its write had failed: {write}"
        call = _event(write)
        if call.key != event.key:
            yield f"{where}: its key is {event.key!r}, written was {call.key!r}"
        if call.transaction is None:
            by_key[event.stream, call.key].append(write)
    for (stream, key), read in by_key.items():
        yield from _check_order(f"pass {name} of {stream}, key {key!r}", read)


def _check_order(where: str, read: list[Ended]) -> Iterator[str]:
    """Check that writes were read in an order that keeps each writer's, and that of acknowledgement before call."""
    last_of_writer: dict[str, Ended] = {}
    for write in read:
        last = last_of_writer.get(write.invocation.client)
        if last is not None and last.invocation.index > write.invocation.index:
            yield f"{where}: read out of its writer's order: {last}, then {write}"
        else:
            last_of_writer[write.invocation.client] = write
    # From the end: the earliest acknowledgement among the events read later.
    earliest: Ended | None = None
    for write in reversed(read):
        if earliest is not None and earliest.end_index < write.invocation.index:
            yield f"{where}: {write} was read before {earliest}, which was acknowledged before it was called"
        if write.outcome is Outcome.OK and (earliest is None or write.end_index < earliest.end_index):
            earliest = write


def _check_complete(
    name: str,
    reading: _Pass,
    full: Ended,
    writes: dict[tuple[str, bytes], Ended],
    truncated_streams: Collection[str],
) -> Iterator[str]:
    stream = _stream_of(full)
    seen = {event.event for event in reading.seen if event.stream == stream}
    has_earlier: dict[str, bool] = {}
    is_truncated = stream in truncated_streams
    for (of_stream, event), write in writes.items():
        call = _event(write)
        if of_stream != stream or call.transaction is not None:
            continue
        if event in seen:
            has_earlier[call.key] = True
        elif (
            write.outcome is Outcome.OK
            and write.end_index < full.invocation.index
            # Truncation takes the oldest: nothing may be missing behind an event of the same key that is there.
            and (not is_truncated or has_earlier.get(call.key))
        ):
            yield f"pass {name} of {stream}: an acknowledged event is missing: {write}"


def _check_agreement(passes: dict[str, _Pass], truncated_streams: Collection[str]) -> Iterator[str]:
    full_passes = [
        (name, reading, reading.full)
        for name, reading in passes.items()
        if reading.full is not None and reading.full.outcome is Outcome.OK
    ]
    known: dict[str, dict[bytes, tuple[str, int]]] = defaultdict(dict)
    for name, reading, full in sorted(full_passes, key=lambda item: item[2].end_index):
        stream = _stream_of(full)
        if stream in truncated_streams:
            continue
        seen = {event.event for event in reading.seen if event.stream == stream}
        gone = [event for event in known[stream] if event not in seen]
        for event in gone:
            earlier, ended = known[stream].pop(event)
            if ended < full.invocation.index:
                yield f"pass {name} of {stream}: {event!r} is gone, pass {earlier} had read it"
        for event in seen:
            known[stream].setdefault(event, (name, full.end_index))


def _check_commit_order(
    name: str,
    reading: _Pass,
    writes: dict[tuple[str, bytes], Ended],
    transactions: dict[tuple[str, str], _Transaction],
) -> Iterator[str]:
    within: dict[tuple[str, str, str, str], Ended] = {}
    by_key: dict[tuple[str, str], list[tuple[str, Ended]]] = defaultdict(list)
    for event in reading.seen:
        write = writes.get((event.stream, event.event))
        call = _event(write) if write is not None else None
        if write is None or call is None or call.transaction is None:
            continue
        slot = (event.stream, call.transaction, call.key, write.invocation.client)
        last = within.get(slot)
        if last is not None and last.invocation.index > write.invocation.index:
            yield f"pass {name} of {event.stream}: read out of order within a transaction: {last}, then {write}"
        within[slot] = write
        commit = transactions[event.stream, call.transaction].commit
        if commit is not None:
            by_key[event.stream, call.key].append((call.transaction, commit))
    for (stream, key), read in by_key.items():
        earliest: tuple[str, Ended] | None = None
        for transaction, commit in reversed(read):
            if earliest is not None and earliest[0] != transaction and earliest[1].end_index < commit.invocation.index:
                yield (
                    f"pass {name} of {stream}, key {key!r}: transaction {transaction} was read before "
                    f"{earliest[0]}, which was committed before its commit was called"
                )
            is_ok = commit.outcome is Outcome.OK
            if is_ok and (earliest is None or commit.end_index < earliest[1].end_index):
                earliest = (transaction, commit)


def _check_one_order(name: str, reading: _Pass, writes: dict[tuple[str, bytes], Ended]) -> Iterator[str]:
    """Check that segments, by offset, and keys, as they were read, agree on one order of each stream's transactions."""
    chains: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for index, event in enumerate(reading.seen):
        write = writes.get((event.stream, event.event))
        transaction = _event(write).transaction if write is not None else None
        if transaction is not None:
            chains[event.stream, f"segment {event.segment}"].append((event.offset, transaction))
            chains[event.stream, f"key {event.key!r}"].append((index, transaction))
    followers: dict[str, dict[str, dict[str, str]]] = defaultdict(dict)
    for (stream, place), chain in chains.items():
        for (_, before), (_, after) in pairwise(sorted(chain)):
            if before != after:
                followers[stream].setdefault(after, {}).setdefault(before, place)
    for stream, known in followers.items():
        try:
            TopologicalSorter(known).prepare()
        except CycleError as error:
            circle: list[str] = error.args[1]
            steps = ", ".join(f"{one} before {other} in {known[other][one]}" for one, other in pairwise(circle))
            yield f"pass {name} of {stream}: transactions are not in one order: {steps}"


def _event(write: Ended) -> WriteEvent:
    call = write.invocation.call
    assert isinstance(call, WriteEvent)
    return call


def _full(full: Ended) -> FullRead:
    call = full.invocation.call
    assert isinstance(call, FullRead)
    return call


def _stream_of(full: Ended) -> str:
    return _full(full).stream
