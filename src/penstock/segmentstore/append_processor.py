"""Appends of one connection: writer state, event numbers, acknowledgements.

The server never looks inside an append. What one receive buffer holds of a writer's unconditional appends becomes one
append: one copy, one validation, one log record, one acknowledgement, however many blocks and events are in it.
Conditional appends, set-ups and whatever else could tell the difference come behind what was gathered before them.
Acknowledgements of one turn of the loop leave in one write, and several of one writer as one.

Source: wire protocol specification, section 3; segment store specification, section 5.4.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Protocol

from penstock.model.errors import (
    AttributesNotLoadedError,
    BadEventNumberError,
    BadOffsetError,
    ContainerNotFoundError,
    ContainerOfflineError,
    NoSuchSegmentError,
    PenstockError,
    ProtocolError,
    SegmentBackloggedError,
    SegmentInactiveError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.model.names import is_written_for_readers
from penstock.model.segments import Buffer
from penstock.segmentstore.append_lanes import HeldOperation, Hold, Lane
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment
from penstock.segmentstore.store import SegmentStore
from penstock.wire.append_runs import AppendRun, assemble, may_be_kept, scan_appends
from penstock.wire.codec import encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    DataAppended,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentIsSealed,
    SetupAppend,
    WireCommand,
    WrongHost,
)

logger = logging.getLogger(__name__)

#: What an append counts beside its data, for as long as it is held or not durable: requests, callbacks, parts of
#: frames. Set-ups that are held count the same. Ten bytes appended cost a kilobyte of memory.
OPERATION_OVERHEAD_BYTES = 1024


class Replies(Protocol):
    """The sending side of a connection."""

    def send(self, frame: bytes) -> None:
        """Queue a reply; it leaves at the end of the loop's turn."""

    def abort(self, reason: str) -> None:
        """Close the connection at once; the peer reconnects and sets up again."""

    def acknowledge_later(self) -> None:
        """Call `AppendProcessor.send_acknowledgements` at the end of the loop's turn."""

    def note_outstanding(self, byte_count: int) -> None:
        """Count append bytes taken in (positive) or finished (negative), with what goes with them."""

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a task that ends with the connection."""


class WriterState:
    """One writer on one connection.

    After a refused append (`is_failed`) nothing more is taken until the writer is set up again; one that was sent away
    hears of nothing before that, either: the answer to the set-up says what is durable.
    Invariants: `acknowledged <= stored`; `stored` is the last number accepted from here, which the segment's own
    attribute equals unless another connection writes with the same id.
    """

    __slots__ = (
        "acknowledged",
        "container",
        "durable",
        "durable_length",
        "in_flight",
        "is_failed",
        "is_sent_away",
        "is_urgent",
        "last_seen",
        "request_id",
        "segment",
        "stored",
        "writer_id",
    )

    def __init__(
        self, writer_id: bytes, container: SegmentContainer, segment: Segment, stored: int, request_id: int
    ) -> None:
        self.writer_id = writer_id
        self.container = container
        self.segment = segment
        self.stored = stored
        self.acknowledged = stored
        self.last_seen = 0
        self.durable = stored
        self.durable_length = 0
        self.request_id = request_id
        self.in_flight = 0
        self.is_failed = False
        self.is_sent_away = False
        self.is_urgent = is_written_for_readers(segment.name)


class AppendProcessor:
    """Handles the append commands of one connection, in the order of each writer.

    A command whose segment, or whose writer's last number, is not in memory waits until it is; one whose container has
    no room waits until it has. What comes behind it from the same writer waits with it, nothing else does.
    """

    def __init__(self, store: SegmentStore, replies: Replies, writers_max: int) -> None:
        self._store = store
        self._replies = replies
        self._writers_max = writers_max
        self._writers: dict[bytes, WriterState] = {}
        self._to_acknowledge: dict[WriterState, None] = {}
        self._block: AppendBlock | None = None
        self._block_count = 0
        #: What was gathered since `take_in`, by writer.
        self._runs: dict[bytes, AppendRun] = {}
        self._is_closed = False
        #: Whoever appends is sent away.
        self._is_refusing = False
        #: What is held, by writer, and by the container without room for it.
        self._lanes: dict[bytes, Lane] = {}
        self._holds: dict[tuple[SegmentContainer, bool], Hold] = {}

    def set_up(self, command: SetupAppend) -> None:
        """Answer with the writer's last durable event number, which is also an acknowledgement of it."""
        self._forbid_open_block("SetupAppend")
        self.take_in()

        self._in_order(command.writer_id, self._set_up_operation(command))

    def _set_up_operation(self, command: SetupAppend) -> HeldOperation:
        return HeldOperation(partial(self._set_up, command), OPERATION_OVERHEAD_BYTES, is_append=False)

    def _in_order(self, writer_id: bytes, operation: HeldOperation) -> None:
        """Do it now, or behind what is held of the writer."""
        lane = self._lanes.get(writer_id)
        if lane is None:
            operation.again(None, False)
        else:
            lane.operations.append(operation)
            self._replies.note_outstanding(operation.byte_count)

    def _hold(self, writer_id: bytes, operation: HeldOperation) -> Lane:
        """Put an operation that cannot be done yet at the head of its writer's lane."""
        lane = self._lanes.get(writer_id)
        if lane is None:
            lane = self._lanes[writer_id] = Lane(writer_id)
        lane.operations.appendleft(operation)
        lane.is_waiting = True
        self._replies.note_outstanding(operation.byte_count)
        return lane

    def _hold_for(self, writer_id: bytes, work: Callable[[], Awaitable[object]], operation: HeldOperation) -> None:
        """Hold a writer's operations until `work` is done, then go on with this one."""
        self._replies.spawn(self._held(self._hold(writer_id, operation), work))

    def _hold_for_room(
        self, writer_id: bytes, container: SegmentContainer, is_urgent: bool, operation: HeldOperation
    ) -> None:
        """Hold a writer's operations until the container has room for them."""
        lane = self._hold(writer_id, operation)
        hold = self._holds.get((container, is_urgent))
        if hold is None:
            # Containers come and go: those that hold nothing are forgotten.
            self._holds = {key: other for key, other in self._holds.items() if other.lanes}
            hold = self._holds[container, is_urgent] = Hold(self, container, is_urgent=is_urgent)
        hold.add(lane)

    async def _held(self, lane: Lane, work: Callable[[], Awaitable[object]]) -> None:
        failure: PenstockError | None = None
        try:
            await work()
        except PenstockError as error:
            failure = error
        self._do(lane, failure, None)

    def go_on(self, lane: Lane, byte_count: int) -> int:
        """See `LaneOwner`: a throttle lets these in."""
        return self._do(lane, None, byte_count)

    def _do(self, lane: Lane, failure: PenstockError | None, byte_count: int | None) -> int:
        """Do what a lane holds, as far as it goes; return the bytes of it. `byte_count`: let in by a throttle."""
        lane.is_waiting = False
        done = 0
        while lane.operations and not lane.is_waiting and not self._is_closed:
            if byte_count is not None and done >= byte_count:
                return done
            operation = lane.operations.popleft()
            done += operation.byte_count
            self._replies.note_outstanding(-operation.byte_count)
            try:
                operation.again(failure, byte_count is not None)
            except ProtocolError as error:
                self._replies.abort(str(error))
                return done
            except Exception as error:
                # A throttle that lets others in, too, must not end by it, and nothing may be stored behind the gap.
                logger.exception("an operation of writer %s that was held has failed", lane.writer_id.hex())
                self._drop_all(lane)
                self._replies.abort(f"an operation that was held has failed: {error!r}")
                return done
            failure = None
        if not lane.operations:
            self._lanes.pop(lane.writer_id, None)
        return done

    def give_up_held(self) -> int:
        """Send away the writers whose appends are held or not durable yet; return how many there were.

        What is held is dropped: nothing of it was accepted. What is not durable may become so. The writers are told to
        set up again, which says what they have to send again; until then nothing more is taken from them. Nor from
        those whose appends come until `take_again`: they are sent away, too. Group state and marks are no part of it.
        """
        self._is_refusing = True
        away = [state for state in self._writers.values() if state.in_flight]
        for lane in list(self._lanes.values()):
            if (state := self._writers.get(lane.writer_id)) is not None and not state.is_urgent:
                self._drop_appends(lane)
                away.append(state)
        return sum(self._send_away(state) for state in away)

    def take_again(self) -> None:
        """Send nobody away any more."""
        self._is_refusing = False

    def _drop_appends(self, lane: Lane) -> None:
        """Drop what a writer has held, but for set-ups: those are still to be answered."""
        dropped = [operation for operation in lane.operations if operation.is_append]
        kept = [operation for operation in lane.operations if not operation.is_append]
        self._replies.note_outstanding(-sum(operation.byte_count for operation in dropped))
        lane.operations.clear()
        lane.operations.extend(kept)
        if not kept and lane.hold is not None:
            lane.hold.remove(lane)
            lane.is_waiting = False
            del self._lanes[lane.writer_id]

    def _drop_all(self, lane: Lane) -> None:
        """Drop everything a writer has held, and take nothing more from it."""
        if (state := self._writers.get(lane.writer_id)) is not None:
            state.is_failed = True
        self._replies.note_outstanding(-sum(operation.byte_count for operation in lane.operations))
        lane.operations.clear()
        lane.is_waiting = False
        if lane.hold is not None:
            lane.hold.remove(lane)
        self._lanes.pop(lane.writer_id, None)

    def _send_away(self, state: WriterState) -> bool:
        """Take nothing more from a writer until it is set up again; return whether it had to be told."""
        if state.is_failed or state.is_urgent:
            return False
        self.send_acknowledgements()
        state.is_failed = state.is_sent_away = True
        self._replies.send(encode(WrongHost(state.request_id, state.segment.name, "")))
        return True

    def _set_up(self, command: SetupAppend, failure: PenstockError | None, is_admitted: bool) -> None:
        replies, writer_id = self._replies, command.writer_id
        operation = self._set_up_operation(command)
        try:
            container = self._store.container(command.segment)
            if failure is not None:
                raise failure
            is_urgent = is_written_for_readers(command.segment)
            if not is_admitted and container.must_wait(is_urgent=is_urgent):
                # It would only send what cannot be taken.
                self._hold_for_room(writer_id, container, is_urgent, operation)
                return
            segment = container.segment(command.segment)
        except NoSuchSegmentError:
            if failure is None:
                # Its deletion may not be durable yet: looked for once more, which waits for that.
                self._hold_for(writer_id, partial(container.find, command.segment), operation)
            elif container.ownership.is_confirmed:
                replies.send(encode(NoSuchSegment(command.request_id, command.segment)))
            else:
                replies.send(encode(WrongHost(command.request_id, command.segment, "")))
            return
        except (ContainerNotFoundError, ContainerOfflineError):
            replies.send(encode(WrongHost(command.request_id, command.segment, "")))
            return
        except SegmentInactiveError:
            self._hold_for(writer_id, partial(container.find, command.segment), operation)
            return
        except PenstockError as error:
            replies.abort(f"writer of {command.segment} could not be set up: {error}")
            return
        if segment.is_table or segment.is_system:
            # Its bytes are entries; others would ruin it.
            replies.send(encode(OperationUnsupported(command.request_id, "SetupAppend")))
            return
        if len(self._writers) >= self._writers_max and command.writer_id not in self._writers:
            replies.abort(f"more than {self._writers_max} writers on one connection")
            return
        try:
            container.attributes.check_room(segment)
            stored = segment.attribute(command.writer_id)
        except AttributesNotLoadedError as error:
            self._hold_for(writer_id, partial(container.attributes.bring_in, segment, error.attribute_ids), operation)
            return
        # What is accepted now is durable when the callback runs; a later append is rejected until then, because its
        # writer is not set up yet.
        state = WriterState(command.writer_id, container, segment, stored, command.request_id)
        self._writers.pop(command.writer_id, None)

        def durable(error: BaseException | None) -> None:
            if error is not None:
                replies.abort(f"container stopped: {error}")
                return
            if self._is_closed:
                return
            # The acknowledgements of an earlier set-up must not come behind the answer, which stands for them.
            self.send_acknowledgements()
            self._writers[command.writer_id] = state
            replies.send(encode(AppendSetup(command.request_id, command.segment, command.writer_id, stored)))

        container.pipeline.when_durable(durable)

    def scan(self, buffer: memoryview, position: int, end: int) -> int:
        """Gather what stands whole in a receive buffer; return where that ends. See `scan_appends`.

        The buffer must not change before `take_in`.
        """
        if self._block is not None:
            return position
        return scan_appends(buffer, position, end, self._runs, self._may_begin)

    @property
    def open_block_bytes(self) -> int:
        """Memory of an AppendBlock whose end has not come."""
        return 0 if self._block is None else len(self._block.data)

    @property
    def open_block_number(self) -> int:
        """Which of the connection's AppendBlocks waits for its end, counted from 1; 0: none."""
        return 0 if self._block is None else self._block_count

    def _may_begin(self, writer_id: bytes, event_number: int) -> bool:
        state = self._writers.get(writer_id)
        return state is not None and event_number > state.last_seen

    def begin_block(self, command: AppendBlock, data: Buffer) -> None:
        """Keep the first part of a Java client's append. `data` has memory of its own."""
        self._forbid_open_block("AppendBlock")
        self._block = AppendBlock(command.writer_id, data)
        self._block_count += 1

    def end_block(self, command: AppendBlockEnd, *, owned_bytes: int = 0) -> None:
        """Gather an append. The command's data must not change before `take_in`.

        `owned_bytes`: how much memory they have to themselves; 0: they are part of a receive buffer.
        """
        block, self._block = self._block, None
        if block is None:
            pieces = [command.buffer]
        else:
            pieces = assemble(block, command)
            owned_bytes = len(block.data) if len(pieces) == 1 else 0
        if command.num_events <= 0:
            raise ProtocolError(f"AppendBlockEnd with {command.num_events} events")
        number = command.last_event_number
        run = self._runs.get(command.writer_id)
        may_wait = self._may_begin(command.writer_id, number) if run is None else run.takes(command.num_events, number)
        if not may_wait:
            # It will be refused, or is an odd one. By itself, and at once: nothing behind it is to be taken in first.
            self.take_in()
            run = None
        if run is None:
            run = self._runs[command.writer_id] = AppendRun(command.writer_id, number, command.request_id)
        for piece in pieces[:-1]:
            run.add(piece, 0, number, command.request_id)
        run.add(pieces[-1], command.num_events, number, command.request_id)
        if len(pieces) == 1 and owned_bytes and may_be_kept(run.length, owned_bytes):
            run.kept = pieces[0]
        if not may_wait:
            self.take_in()

    def take_in(self) -> None:
        """Append what was gathered, as one append of each writer.

        Raises `ProtocolError` for an append that must not be here: it is the only one then.
        """
        if not self._runs:
            return
        runs, self._runs = self._runs, {}
        for run in runs.values():
            request = AppendRequest(
                run.joined(),
                run.event_count,
                run.writer_id,
                run.first_event_number,
                run.event_number,
                run.first_request_id,
                run.request_id,
            )
            self._append(request)

    def append_conditionally(self, command: ConditionalAppend | ConditionalBlockEnd, data: Buffer) -> None:
        """Append if the segment has the expected length. `data` is what is to be stored."""
        self._forbid_open_block(type(command).__name__)
        self.take_in()
        number, request_id = command.event_number, command.request_id
        self._append(
            AppendRequest(
                data, 1, command.writer_id, number, number, request_id, request_id, command.expected_offset
            )
        )

    def _forbid_open_block(self, name: str) -> None:
        if self._block is not None:
            raise ProtocolError(f"{name} between AppendBlock and AppendBlockEnd")

    def _append(self, request: AppendRequest) -> None:
        if self._is_refusing and (state := self._writers.get(request.writer_id)) is not None and not state.is_urgent:
            self._send_away(state)
            return
        if request.writer_id in self._lanes:
            self._in_order(request.writer_id, self._operation(request))
        else:
            self._accept(request, None, False)

    def _operation(self, request: AppendRequest, *, is_checked: bool = False) -> HeldOperation:
        again = partial(self._accept, request, is_checked=is_checked)
        return HeldOperation(again, len(request.data) + OPERATION_OVERHEAD_BYTES, is_append=True)

    def _accept(
        self, request: AppendRequest, failure: PenstockError | None, is_admitted: bool, *, is_checked: bool = False
    ) -> None:
        """Validate and accept an append, or hold it. `is_checked`: it comes back from there."""
        writer_id, first_number = request.writer_id, request.first_event_number
        state = self._writers.get(writer_id)
        if state is None:
            raise ProtocolError(f"append of writer {writer_id.hex()}, which is not set up on this connection")
        if state.is_failed:
            return  # The error reply to an earlier append is on its way; the client sends this one again.
        if not is_checked:
            if first_number < state.last_seen:
                raise ProtocolError(
                    f"event number {first_number} of writer {writer_id.hex()} after {state.last_seen} "
                    "on one connection"
                )
            state.last_seen = request.event_number
        length = len(request.data)
        container = state.container
        if container.quota.must_wait(state.segment):
            self._hold_writer(state, request.first_request_id)
            return
        if not is_admitted and failure is None and container.must_wait(is_urgent=state.is_urgent):
            operation = self._operation(request, is_checked=True)
            self._hold_for_room(writer_id, container, state.is_urgent, operation)
            return
        try:
            if failure is not None:
                raise failure
            if first_number <= state.stored:
                raise BadEventNumberError(
                    state.segment.name, writer_id=writer_id, event_number=first_number, stored=state.stored
                )
            done = _Completion(self, state, request)
            done.end = container.append(state.segment, request, done, stored_event_number=state.stored)
        except BadOffsetError:
            # The connection and the writer stay; the number may come again.
            state.last_seen = max(state.stored, 0)
            self._after_earlier(state, ConditionalCheckFailed(writer_id, first_number, request.request_id))
            return
        except (SegmentInactiveError, AttributesNotLoadedError) as error:
            operation = self._operation(request, is_checked=True)
            self._hold_for(writer_id, partial(_bring_in, state, error), operation)
            return
        except PenstockError as error:
            self._refuse(state, request, error)
            return
        state.stored = request.event_number
        state.in_flight += 1
        self._replies.note_outstanding(length + OPERATION_OVERHEAD_BYTES)

    def _hold_writer(self, state: WriterState, request_id: int) -> None:
        """Take nothing more of a writer whose segment is over its quota; let it come again when there is room.

        Nothing else on the connection waits for it, and nothing of it is kept meanwhile: it has what was not
        acknowledged, and sends it again.
        """
        state.is_failed = True

        async def held() -> None:
            try:
                await state.container.quota.room(state.segment)
            except SegmentBackloggedError as error:
                logger.warning("a writer is sent away: %s", error)
            if self._writers.get(state.writer_id) is state:
                self._after_earlier(state, WrongHost(request_id, state.segment.name, ""))

        self._replies.spawn(held())

    def _refuse(self, state: WriterState, request: AppendRequest, error: PenstockError) -> None:
        segment = state.segment.name
        event_number, request_id = request.first_event_number, request.first_request_id
        state.is_failed = True
        if isinstance(error, SegmentSealedError):
            self._after_earlier(state, SegmentIsSealed(request_id, segment, "", event_number))
        elif isinstance(error, (NoSuchSegmentError, SegmentMergedError)):
            self._after_earlier(state, NoSuchSegment(request_id, segment, "", -1))
        elif isinstance(error, BadEventNumberError):
            self._after_earlier(
                state, InvalidEventNumber(state.writer_id, request_id, "", event_number), then_abort=str(error)
            )
        elif isinstance(error, (ContainerOfflineError, ContainerNotFoundError)):
            self._replies.send(encode(WrongHost(request_id, segment, "")))
        else:
            self._replies.abort(f"append to {segment} failed: {error}")

    def _after_earlier(self, state: WriterState, reply: WireCommand, *, then_abort: str = "") -> None:
        """Send `reply` behind the acknowledgements of everything accepted before it."""

        def durable(error: BaseException | None) -> None:
            if error is not None:
                self._replies.abort(f"container stopped: {error}")
                return
            self.send_acknowledgements()
            if not state.container.ownership.is_confirmed:
                # The refusal may rest on what a successor has changed: whoever owns the segment now shall say it.
                self._replies.abort(f"{state.segment.name}: its container may have been shut out")
                return
            self._replies.send(encode(reply))
            if then_abort:
                self._replies.abort(then_abort)

        state.container.pipeline.when_durable(durable)

    def completed(self, completion: _Completion, error: BaseException | None) -> None:
        """Take in the end of an append; appends of one writer end in order."""
        state, request = completion.state, completion.request
        state.in_flight -= 1
        self._replies.note_outstanding(-len(request.data) - OPERATION_OVERHEAD_BYTES)
        if error is not None:
            self._replies.abort(f"append to {state.segment.name} failed, its outcome is unknown: {error}")
            return
        if state.is_sent_away:
            return
        state.durable = request.event_number
        state.durable_length = completion.end
        state.request_id = request.request_id
        if request.expected_offset is not None:
            # Never joined with others: who appends conditionally waits for the answer to each request by its id. Java
            # clients send the pieces of a large event so, several at a time.
            self._to_acknowledge.pop(state, None)
            self._acknowledge(state)
            return
        if not self._to_acknowledge:
            self._replies.acknowledge_later()
        self._to_acknowledge[state] = None

    def send_acknowledgements(self) -> None:
        """Acknowledge what has become durable, one reply per writer."""
        if not self._to_acknowledge:
            return
        states, self._to_acknowledge = self._to_acknowledge, {}
        for state in states:
            self._acknowledge(state)

    def _acknowledge(self, state: WriterState) -> None:
        self._replies.send(
            encode(
                DataAppended(
                    state.writer_id, state.durable, state.acknowledged, state.request_id, state.durable_length
                )
            )
        )
        state.acknowledged = state.durable

    def close(self) -> None:
        """Forget all writers; what was accepted stays accepted."""
        self._is_closed = True
        self._writers.clear()
        self._to_acknowledge.clear()
        for hold in self._holds.values():
            for lane in hold.lanes:
                hold.remove(lane)
        self._holds.clear()
        self._lanes.clear()
        self._runs.clear()
        self._block = None


async def _bring_in(state: WriterState, error: SegmentInactiveError | AttributesNotLoadedError) -> None:
    """Bring into memory what an append needs: its segment, which may have been put away meanwhile, or a value."""
    state.segment = await state.container.find(state.segment.name)
    if isinstance(error, AttributesNotLoadedError):
        await state.container.attributes.load(state.segment, error.attribute_ids)


class _Completion:
    """Called when an append is durable. An object, not a closure: there are many."""

    __slots__ = ("end", "processor", "request", "state")

    def __init__(self, processor: AppendProcessor, state: WriterState, request: AppendRequest) -> None:
        self.processor = processor
        self.state = state
        self.request = request
        self.end = 0

    def __call__(self, error: BaseException | None) -> None:
        self.processor.completed(self, error)
