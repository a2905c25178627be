"""A model of the protocol of the log in a bucket, and a search through all interleavings of a small instance.

One container. An owner writes values into its journal, two creations at a time. Openers take the log over and may stop
between any two steps. A stranger seals the owner's journal because of another container in it. Requests arrive in any
order, late, twice or never, and each reply may be lost. There is no clock. `Mistake` names changes of the protocol that
lose or repeat something, to show that the search finds such a thing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple

#: Creations that a writer has in flight at a time.
IN_FLIGHT_MAX = 2


class Mistake(Enum):
    """Deviations from the protocol."""

    SEALS_DELETED = "a trim deletes seals"
    ACKS_OUT_OF_ORDER = "a slot is acknowledged before those below it"
    SEAL_AFTER_LAST = "the seal goes behind the last slot found, not into the first free one"
    EXISTS_IS_SUCCESS = "a creation that finds an object counts as done"
    OPEN_WITHOUT_CAS = "an open replaces the record without a condition"
    CLAIM_BEFORE_SEAL = "an open changes the record first, and does not check it after the seal"
    ROLL_WITHOUT_CAS = "a writer whose journal was sealed continues without a change of the record"
    ROLL_UNSETTLED = "a writer whose journal was sealed sends everything again before the slots below are settled"
    DELETE_BEFORE_RECORD = "slots are deleted before the truncation is recorded"
    HOP_OVER_UNSETTLED = "an idle writer's next piece leaves out slots that are not settled"


class Content(NamedTuple):
    """What a slot holds: a value, or a seal (`value` is None) of `by`."""

    value: str | None
    by: int = 0


class Piece(NamedTuple):
    journal: int
    first: int
    end: int | None = None


class Record(NamedTuple):
    version: int
    epoch: int
    pieces: tuple[Piece, ...]


class Creation(NamedTuple):
    journal: int
    slot: int
    content: Content
    sender: int


class Deletion(NamedTuple):
    journal: int
    slot: int


class Sent(NamedTuple):
    slot: int
    value: str
    is_done: bool


class Writer(NamedTuple):
    epoch: int
    version: int
    journal: int
    next_slot: int
    sent: tuple[Sent, ...]
    todo: tuple[str, ...]
    sealed_at: int | None = None
    roll_count: int = 0


class Opener(NamedTuple):
    step: Literal["idle", "read", "seal", "record"] = "idle"
    record: Record | None = None
    slot: int = 0
    found: tuple[str, ...] = ()
    try_count: int = 0


class Stranger(NamedTuple):
    step: Literal["read", "seal", "done"] = "read"
    slot: int = 0


class Budget(NamedTuple):
    """How often each of these happens at most: late second copies, truncations, strangers, hops of an idle writer."""

    copies: int = 0
    truncations: int = 0
    strangers: int = 0
    hops: int = 0


Process = Writer | Opener | Stranger
NOTHING = Budget()


class State(NamedTuple):
    objects: frozenset[tuple[int, int, Content]]
    record: Record
    network: frozenset[Creation | Deletion]
    processes: tuple[Process, ...]
    acknowledged: frozenset[tuple[str, int]]
    opened: tuple[tuple[int, frozenset[str]], ...]
    forgotten: frozenset[str]
    budget: Budget

    def at(self, journal: int, slot: int) -> Content | None:
        """Return what a slot holds."""
        return next((content for j, s, content in self.objects if (j, s) == (journal, slot)), None)

    def with_process(self, index: int, process: Process) -> State:
        """Return the state with another state of one process."""
        return self._replace(processes=(*self.processes[:index], process, *self.processes[index + 1 :]))

    def with_object(self, journal: int, slot: int, content: Content) -> State:
        """Return the state after a creation."""
        return self._replace(objects=self.objects | {(journal, slot, content)})


class Violation(Exception):
    """Something was lost, repeated, or opened twice."""


@dataclass(frozen=True)
class LogModel:
    """An instance: the owner's values, those of each opener, how often each opener tries, and the mistake made."""

    budget: Budget = NOTHING
    mistake: Mistake | None = None
    owner_values: tuple[str, ...] = ("a1", "a2")
    opener_values: tuple[tuple[str, ...], ...] = (("b1",), ())
    tries_max: int = 1

    def initial(self) -> State:
        """Return the first state: the owner has opened an empty log in epoch 1."""
        owner = Writer(1, 1, 0, 0, (), self.owner_values)
        openers = [Opener() for _ in self.opener_values]
        record = Record(1, 1, (Piece(0, 0),))
        nothing: frozenset[str] = frozenset()
        processes: tuple[Process, ...] = (owner, *openers, Stranger())
        return State(frozenset(), record, frozenset(), processes, frozenset(), (), nothing, self.budget)

    def search(self, state_count_max: int) -> tuple[int, bool]:
        """Go through all states, breadth first. Return how many were visited, and whether these are all.

        Raises `Violation`.
        """
        seen = {self.initial()}
        waiting = deque(seen)
        count = 0
        while waiting and count < state_count_max:
            count += 1
            for state in self.successors(waiting.popleft()):
                if state not in seen:
                    self.check(state)
                    seen.add(state)
                    waiting.append(state)
        return count, not waiting

    def check(self, state: State) -> None:
        """Raise `Violation` unless each later epoch has read all that was acknowledged, and no epoch is repeated."""
        for value, epoch in state.acknowledged:
            for later, found in state.opened:
                if later > epoch and value not in found:
                    raise Violation(f"{value} was acknowledged in epoch {epoch} and is unknown to epoch {later}")
        if len({epoch for epoch, _ in state.opened}) != len(state.opened):
            raise Violation("an epoch was opened twice")

    def successors(self, state: State) -> Iterator[State]:
        """Yield each state that may follow."""
        for request in state.network:
            if isinstance(request, Creation):
                yield from self._arrives(state, request)
            else:
                yield self._is_deleted(state, request)
        for index, process in enumerate(state.processes):
            if isinstance(process, Writer):
                yield from self._writes(state, index, process)
                yield from self._trims(state, index, process)
            elif isinstance(process, Opener):
                yield from self._opens(state, index, process)
            elif state.budget.strangers:
                yield from self._seals(state, index, process)

    def _makes(self, *mistakes: Mistake) -> bool:
        return self.mistake in mistakes

    # -- the network ----------------------------------------------------------------------------------------------

    def _is_deleted(self, state: State, request: Deletion) -> State:
        left = {each for each in state.objects if each[:2] != request}
        there = state.at(*request)
        is_kept = there is not None and there.value is None and not self._makes(Mistake.SEALS_DELETED)
        return state._replace(network=state.network - {request}, objects=state.objects if is_kept else frozenset(left))

    def _arrives(self, state: State, request: Creation) -> Iterator[State]:
        after = [state._replace(network=state.network - {request})]
        if state.budget.copies:
            after.append(state._replace(budget=state.budget._replace(copies=state.budget.copies - 1)))
        there = state.at(request.journal, request.slot)
        for each in after:
            if there is None:
                each = each.with_object(request.journal, request.slot, request.content)
            yield each  # The reply is lost.
            sender = state.processes[request.sender]
            if not isinstance(sender, Writer) or sender.journal != request.journal:
                continue
            if not any(sent.slot == request.slot and not sent.is_done for sent in sender.sent):
                continue
            if there in (None, request.content) or self._makes(Mistake.EXISTS_IS_SUCCESS):
                sent = tuple(one._replace(is_done=True) if one.slot == request.slot else one for one in sender.sent)
                yield each.with_process(request.sender, sender._replace(sent=sent))
            elif there is not None and there.value is None:
                lowest = min(request.slot, request.slot if sender.sealed_at is None else sender.sealed_at)
                yield each.with_process(request.sender, sender._replace(sealed_at=lowest))

    # -- the owner ------------------------------------------------------------------------------------------------

    def _writes(self, state: State, index: int, writer: Writer) -> Iterator[State]:
        if writer.todo and writer.sealed_at is None and len(writer.sent) < IN_FLIGHT_MAX:
            value, slot = writer.todo[0], writer.next_slot
            creation = Creation(writer.journal, slot, Content(value), index)
            sent = (*writer.sent, Sent(slot, value, False))
            after = writer._replace(next_slot=slot + 1, sent=sent, todo=writer.todo[1:])
            yield state._replace(network=state.network | {creation}).with_process(index, after)
        for one in writer.sent:
            again = Creation(writer.journal, one.slot, Content(one.value), index)
            if not one.is_done and again not in state.network:
                yield state._replace(network=state.network | {again})
        yield from self._acknowledges(state, index, writer)
        if writer.sealed_at is not None and not writer.roll_count:
            yield from self._rolls(state, index, writer, writer.sealed_at)

    def _acknowledges(self, state: State, index: int, writer: Writer) -> Iterator[State]:
        is_unordered = self._makes(Mistake.ACKS_OUT_OF_ORDER)
        for one in writer.sent if is_unordered else writer.sent[:1]:
            is_above_seal = writer.sealed_at is not None and one.slot >= writer.sealed_at
            if one.is_done and (is_unordered or not is_above_seal):
                left = tuple(other for other in writer.sent if other != one)
                acknowledged = state.acknowledged | {(one.value, writer.epoch)}
                yield state._replace(acknowledged=acknowledged).with_process(index, writer._replace(sent=left))

    def _rolls(self, state: State, index: int, writer: Writer, sealed_at: int) -> Iterator[State]:
        is_early = self._makes(Mistake.ROLL_UNSETTLED)
        if not is_early and any(one.slot < sealed_at for one in writer.sent):
            return
        record = state.record
        if record.version != writer.version and not self._makes(Mistake.ROLL_WITHOUT_CAS):
            return  # Another process has opened the log: this writer has ended.
        todo = (*(one.value for one in writer.sent if is_early or one.slot >= sealed_at), *writer.todo)
        journal = 10 * (index + 1) + writer.roll_count + 1
        if record.version == writer.version:
            ended = tuple(p._replace(end=sealed_at) if p.journal == writer.journal else p for p in record.pieces)
            record = Record(record.version + 1, record.epoch, (*ended, Piece(journal, 0)))
        after = Writer(writer.epoch, record.version, journal, 0, (), todo, None, writer.roll_count + 1)
        yield state._replace(record=record).with_process(index, after)

    def _trims(self, state: State, index: int, writer: Writer) -> Iterator[State]:
        """Yield truncations of all that is acknowledged, and hops: a new piece in the journal after a hole."""
        record, budget = state.record, state.budget
        own = record.pieces[-1]
        if record.version != writer.version or own.journal != writer.journal:
            return
        settled = min((one.slot for one in writer.sent), default=writer.next_slot)
        if budget.truncations and settled > own.first:
            slots = [(p.journal, s) for p in record.pieces for s in range(p.first, settled if p == own else p.end or 0)]
            gone = [content.value for j, s in slots if (content := state.at(j, s)) and content.value]
            if self._makes(Mistake.SEALS_DELETED):
                slots += [(piece.journal, piece.end) for piece in record.pieces[:-1] if piece.end is not None]
            network = state.network | {Deletion(*slot) for slot in slots}
            spent = budget._replace(truncations=budget.truncations - 1)
            after = Record(record.version + 1, record.epoch, (Piece(own.journal, settled),))
            yield state._replace(
                record=after, network=network, budget=spent, forgotten=state.forgotten.union(gone)
            ).with_process(index, writer._replace(version=after.version))
            if self._makes(Mistake.DELETE_BEFORE_RECORD):
                yield state._replace(network=network, budget=spent)
        is_bad = self._makes(Mistake.HOP_OVER_UNSETTLED)
        hop = writer.next_slot if is_bad else settled
        if budget.hops and hop > own.first:
            # Slots of other containers lie from the piece's end to the hop, and are deleted.
            end = next((s for s in range(own.first, settled) if state.at(own.journal, s) is None), settled)
            pieces = (*record.pieces[:-1], own._replace(end=end), Piece(own.journal, hop))
            after = Record(record.version + 1, record.epoch, pieces)
            yield state._replace(record=after, budget=budget._replace(hops=budget.hops - 1)).with_process(
                index, writer._replace(version=after.version)
            )

    # -- openers and strangers ------------------------------------------------------------------------------------

    def _opens(self, state: State, index: int, opener: Opener) -> Iterator[State]:
        record = opener.record
        if opener.step == "idle" or record is None:
            if opener.try_count < self.tries_max:
                claimed = state.record
                if self._makes(Mistake.CLAIM_BEFORE_SEAL):
                    claimed = Record(claimed.version + 1, claimed.epoch + 1, claimed.pieces)
                reading = Opener("read", claimed, claimed.pieces[-1].first, (), opener.try_count + 1)
                yield state._replace(record=claimed).with_process(index, reading)
            return
        journal, slot = record.pieces[-1].journal, opener.slot
        there = state.at(journal, slot)
        if opener.step == "record":
            yield from self._takes_over(state, index, opener, record)
        elif there is not None and (opener.step == "seal" or there.value is None):
            yield state.with_process(index, opener._replace(step="read" if opener.step == "seal" else "record"))
        elif there is not None and there.value is not None:
            yield state.with_process(index, opener._replace(slot=slot + 1, found=(*opener.found, there.value)))
        elif opener.step == "read":
            is_over = any(j == journal and s > slot for j, s, _ in state.objects)
            if self._makes(Mistake.SEAL_AFTER_LAST) and is_over:
                yield state.with_process(index, opener._replace(slot=slot + 1))
            else:
                yield state.with_process(index, opener._replace(step="seal"))
        else:
            seal = Content(None, index)
            sealed = state.with_object(journal, slot, seal)
            yield sealed.with_process(index, opener._replace(step="record"))
            if state.budget.copies:
                late = Creation(journal, slot, seal, index)
                spent = state.budget._replace(copies=state.budget.copies - 1)
                delayed = state._replace(network=state.network | {late}, budget=spent)
                yield delayed.with_process(index, opener._replace(step="read"))

    def _takes_over(self, state: State, index: int, opener: Opener, known: Record) -> Iterator[State]:
        is_unchecked = self._makes(Mistake.OPEN_WITHOUT_CAS, Mistake.CLAIM_BEFORE_SEAL)
        if state.record.version != known.version and not is_unchecked:
            yield state.with_process(index, Opener(try_count=opener.try_count))
            return
        closed = (*known.pieces[:-1], known.pieces[-1]._replace(end=opener.slot))
        found = list(opener.found)
        for piece in closed[:-1]:
            for slot in range(piece.first, piece.end or 0):
                content = state.at(piece.journal, slot)
                if content is None:
                    raise Violation(f"slot {slot} of journal {piece.journal} is missing in a piece that has ended")
                if content.value is not None:
                    found.append(content.value)
        if len(found) != len(set(found)):
            raise Violation(f"something is read twice: {found}")
        epoch = known.epoch if self._makes(Mistake.CLAIM_BEFORE_SEAL) else state.record.epoch + 1
        journal = 10 * (index + 1)
        record = Record(state.record.version + 1, epoch, (*closed, Piece(journal, 0)))
        opened = (*state.opened, (epoch, frozenset(found) | state.forgotten))
        writer = Writer(epoch, record.version, journal, 0, (), self.opener_values[index - 1])
        yield state._replace(record=record, opened=opened).with_process(index, writer)

    def _seals(self, state: State, index: int, stranger: Stranger) -> Iterator[State]:
        """Seal the owner's first journal, as an opener of another container in it does."""
        there = state.at(0, stranger.slot)
        if stranger.step == "read" and there is None:
            yield state.with_process(index, stranger._replace(step="seal"))
        elif stranger.step == "read" and there is not None and there.value is not None:
            yield state.with_process(index, stranger._replace(slot=stranger.slot + 1))
        elif stranger.step == "seal" and there is not None:
            yield state.with_process(index, stranger._replace(step="read"))
        elif stranger.step == "seal":
            spent = state.budget._replace(strangers=state.budget.strangers - 1)
            sealed = state.with_object(0, stranger.slot, Content(None, index))._replace(budget=spent)
            yield sealed.with_process(index, stranger._replace(step="done"))


def found_by(model: LogModel, state_count_max: int) -> str:
    """Return the violation that a search finds; empty if it finds none."""
    try:
        model.search(state_count_max)
    except Violation as violation:
        return str(violation)
    return ""
