"""Appends of one connection: writer state, event numbers, acknowledgements.

The server never inspects an append. All unconditional appends of a writer in one receive buffer become one append: one
copy, one validation, one log record, one acknowledgement, however many blocks and events it has. Conditional appends,
set-ups and other operations that depend on the order are performed after the gathered appends before them.
Acknowledgements of one turn of the loop are sent in one write, and several of one writer as one.

Source: wire-protocol 3; segment-store 5.4.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
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
    SegmentStoreBusyError,
)
from penstock.model.names import is_written_for_readers
from penstock.model.segments import Buffer
from penstock.segmentstore.append_admission import Admitted, Failed, HeldForLoad, HeldForQuota, admit
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.held_appends import OPERATION_OVERHEAD_BYTES, ClosedOwner, HeldAppends, HeldOperation
from penstock.segmentstore.request_processor import error_reply
from penstock.segmentstore.store import SegmentStore
from penstock.segmentstore.writer_budget import WriterSlots
from penstock.segmentstore.writer_state import WriterState
from penstock.wire.append_runs import AppendRun, assemble, may_be_kept, may_hold_append, scan_appends
from penstock.wire.codec import encode
from penstock.wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    ConditionalAppend,
    ConditionalBlockEnd,
    ConditionalCheckFailed,
    InvalidEventNumber,
    NoSuchSegment,
    OperationUnsupported,
    SegmentIsSealed,
    SetupAppend,
    WireCommand,
    WrongHost,
)
from penstock.wire.straight import data_appended_frame

logger: logging.Logger = logging.getLogger(__name__)


class Replies(Protocol):
    """The sending side of a connection."""

    def send(self, frame: bytes) -> None:
        """Queue a reply; it is sent at the end of the loop's turn at the latest."""

    def abort(self, reason: str) -> None:
        """Close the connection at once; the peer reconnects and sets up again."""

    def acknowledge_later(self) -> None:
        """Call `AppendProcessor.send_acknowledgements` at the end of the loop's turn at the latest."""

    def note_outstanding(self, byte_count: int) -> None:
        """Count append bytes accepted (positive) or finished (negative), including overhead."""

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """Run a task that ends with the connection."""


class AppendProcessor:
    """Handles the append commands of one connection, in the order of each writer.

    A command whose segment, or whose writer's last number, is not in memory waits until it is; one whose container has
    no room waits until it has. Later commands of the same writer wait with it, and no others do.
    """

    def __init__(self, store: SegmentStore, replies: Replies, slots: WriterSlots) -> None:
        self._store = store
        self._replies = replies
        #: One for each writer that is set up, is being set up, or waits to be.
        self._slots = slots
        self._writers: dict[bytes, WriterState] = {}
        self._to_acknowledge: dict[WriterState, None] = {}
        #: Bytes accepted, less those finished, not yet reported to the connection.
        self._uncounted_bytes = 0
        self._is_flush_due = False
        self._block: AppendBlock | None = None
        self._block_count = 0
        #: Appends gathered since the last `submit_gathered`, by writer.
        self._runs: dict[bytes, AppendRun] = {}
        self._is_closed = False
        #: While refusing, appends get WrongHost and SetupAppends are queued.
        self._is_draining = False
        self._waiting_set_ups: list[SetupAppend] = []
        self.held_appends: HeldAppends = HeldAppends(self)

    # The LaneOwner interface.

    def count(self, byte_count: int) -> None:
        """See `LaneOwner.count`."""
        self._uncounted_bytes += byte_count

    def settle(self) -> None:
        """See `LaneOwner.settle`. Once for everything that a call accepted or finished: there are many appends."""
        byte_count, self._uncounted_bytes = self._uncounted_bytes, 0
        if byte_count:
            self._replies.note_outstanding(byte_count)

    def fail_writer(self, writer_id: bytes) -> None:
        """See `LaneOwner.fail_writer`."""
        if (state := self._writers.get(writer_id)) is not None:
            state.is_failed = True

    def abort(self, reason: str) -> None:
        """See `LaneOwner.abort`."""
        self._replies.abort(reason)

    def spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        """See `LaneOwner.spawn`."""
        self._replies.spawn(coroutine)

    # Set-ups.

    def set_up(self, command: SetupAppend) -> None:
        """Reply with the writer's last durable event number, which also acknowledges it."""
        self._forbid_open_block("SetupAppend")
        self.submit_gathered()
        self._set_up_in_order(command)
        self.settle()

    def _set_up_in_order(self, command: SetupAppend) -> None:
        if command.writer_id in self.held_appends:
            self.held_appends.put(command.writer_id, self._set_up_operation(command))
        else:
            self._set_up(command, None, False)

    def _set_up_operation(self, command: SetupAppend) -> HeldOperation:
        return HeldOperation(partial(self._set_up, command), OPERATION_OVERHEAD_BYTES, is_append=False)

    def reset_writers(self) -> int:
        """Send WrongHost to the writers whose appends are held or not durable yet; return how many there were.

        Held appends are dropped: none of them was accepted. Those not durable yet may become durable. The writers must
        set up again, and the reply tells them what to resend; until then nothing more is accepted from them. Until
        `resume_writers`, writers that append also get WrongHost, and their set-ups are queued. Writers of group state
        and marks are not affected.
        """
        self._is_draining = True
        away = [state for state in self._writers.values() if state.in_flight]
        for writer_queue in self.held_appends:
            if (state := self._writers.get(writer_queue.writer_id)) is not None and not state.is_urgent:
                self.held_appends.drop(writer_queue, keeps_set_ups=True)
                away.append(state)
        self.settle()
        return sum(self._send_away(state) for state in away)

    def resume_writers(self) -> None:
        """Stop refusing, and process the queued set-ups."""
        self._is_draining = False
        waiting, self._waiting_set_ups = self._waiting_set_ups, []
        self._slots.give_back(len(waiting))
        for command in waiting:
            self._set_up_in_order(command)
        self.settle()

    def _send_away(self, state: WriterState) -> bool:
        """Refuse a writer until it is set up again; return whether a WrongHost was sent."""
        if state.is_failed or state.is_urgent:
            return False
        self.send_acknowledgements()
        state.is_failed = state.is_reset = True
        self._replies.send(encode(WrongHost(state.request_id, state.segment.name, "")))
        return True

    def _set_up(self, command: SetupAppend, failure: PenstockError | None, is_admitted: bool) -> None:
        replies, writer_id, held_appends = self._replies, command.writer_id, self.held_appends
        operation = self._set_up_operation(command)
        is_urgent = is_written_for_readers(command.segment)
        if self._is_draining and not is_urgent:
            # Whatever its container's state: its appends would be refused, and it would set up again at once.
            if self._take_slot(command):
                self._waiting_set_ups.append(command)
            return
        try:
            container = self._store.container(command.segment)
            if failure is not None:
                raise failure
            if not is_admitted and container.back_pressure.must_wait(is_urgent=is_urgent):
                # Its appends could not be accepted.
                held_appends.hold_for_room(writer_id, container, is_urgent, operation)
                return
            segment = container.segment(command.segment)
        except NoSuchSegmentError:
            if failure is None:
                # Its deletion may not be durable yet: the second lookup waits for that.
                held_appends.hold_for(writer_id, partial(_find, container, command.segment), operation)
            elif container.ownership.is_confirmed:
                replies.send(encode(NoSuchSegment(command.request_id, command.segment)))
            else:
                replies.send(encode(WrongHost(command.request_id, command.segment, "")))
            return
        except (ContainerNotFoundError, ContainerOfflineError):
            replies.send(encode(WrongHost(command.request_id, command.segment, "")))
            return
        except SegmentInactiveError:
            held_appends.hold_for(writer_id, partial(container.find, command.segment), operation)
            return
        except SegmentStoreBusyError as error:
            replies.send(encode(error_reply(error, command.request_id, command.segment, "SetupAppend")))
            return
        except PenstockError as error:
            replies.abort(f"writer of {command.segment} could not be set up: {error}")
            return
        if segment.is_table or segment.is_system:
            # Its bytes are entries; appends would corrupt it.
            replies.send(encode(OperationUnsupported(command.request_id, "SetupAppend")))
            return
        try:
            container.attributes.check_room(segment)
            stored = segment.attribute(command.writer_id)
        except AttributesNotLoadedError as error:
            load = partial(container.attributes.bring_in, segment, error.attribute_ids)
            held_appends.hold_for(writer_id, load, operation)
            return
        # Operations accepted now are durable when the callback runs; a later append is rejected until then, because its
        # writer is not set up yet.
        if self._writers.pop(command.writer_id, None) is None and not self._take_slot(command):
            return
        state = WriterState(command.writer_id, container, segment, stored, command.request_id)

        # Counted as a request until it is answered.
        self.count(OPERATION_OVERHEAD_BYTES)
        container.pipeline.when_durable(partial(self._answer_set_up, command, state))

    def _answer_set_up(self, command: SetupAppend, state: WriterState, error: BaseException | None) -> None:
        replies = self._replies
        self.count(-OPERATION_OVERHEAD_BYTES)
        self.settle()
        if error is not None:
            replies.abort(f"container stopped: {error}")
            return
        if self._is_closed:
            return
        # The acknowledgements of an earlier set-up must not follow the reply, which replaces them.
        self.send_acknowledgements()
        if command.writer_id in self._writers:
            self._slots.give_back()  # It was set up twice concurrently.
        self._writers[command.writer_id] = state
        replies.send(encode(AppendSetup(command.request_id, command.segment, command.writer_id, state.stored)))

    def _take_slot(self, command: SetupAppend) -> bool:
        """Count one more writer; if there is no room, report that to the peer and return False."""
        slots = self._slots
        if slots.take() or (slots.forget_ended(self._writers, self._to_acknowledge) and slots.take()):
            return True
        shortage = slots.shortage(command.segment)
        if isinstance(shortage, SegmentStoreBusyError):
            self._replies.send(encode(error_reply(shortage, command.request_id, command.segment, "SetupAppend")))
        else:
            self._replies.abort(str(shortage))
        return False

    def scan(self, buffer: memoryview, position: int, end: int) -> int:
        """Gather the complete appends in a receive buffer; return where they end. See `scan_appends`.

        The buffer must not change before `submit_gathered`.
        """
        if self._block is not None or not may_hold_append(buffer, position, end):
            return position
        return scan_appends(buffer, position, end, self._runs, self._may_begin)

    @property
    def open_block_bytes(self) -> int:
        """Memory of an AppendBlock whose end has not arrived."""
        return 0 if self._block is None else len(self._block.data)

    @property
    def open_block_number(self) -> int:
        """The number of the AppendBlock that waits for its end, counted per connection from 1; 0: none."""
        return 0 if self._block is None else self._block_count

    def _may_begin(self, writer_id: bytes, event_number: int) -> bool:
        state = self._writers.get(writer_id)
        return state is not None and event_number > state.last_seen

    def begin_block(self, command: AppendBlock, data: Buffer) -> None:
        """Keep the first part of a Java client's append. `data` has its own memory."""
        self._forbid_open_block("AppendBlock")
        self._block = AppendBlock(command.writer_id, data)
        self._block_count += 1

    def end_block(self, command: AppendBlockEnd, *, owned_bytes: int = 0) -> None:
        """Gather an append. The command's data must not change before `submit_gathered`.

        `owned_bytes`: bytes of memory owned by the data; 0: they are part of a receive buffer.
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
            # It will be refused, or is unusual. Process it separately and at once: later appends must not be accepted
            # first.
            self.submit_gathered()
            run = None
        if run is None:
            run = self._runs[command.writer_id] = AppendRun(command.writer_id, number, command.request_id)
        for piece in pieces[:-1]:
            run.add(piece, 0, number, command.request_id)
        run.add(pieces[-1], command.num_events, number, command.request_id)
        if len(pieces) == 1 and owned_bytes and may_be_kept(run.length, owned_bytes):
            run.kept = pieces[0]
        if not may_wait:
            self.submit_gathered()

    def submit_gathered(self) -> None:
        """Append what was gathered, as one append of each writer.

        Containers are checked for room once for all of them: together they are at most one receive buffer long, or one
        append. Raises `ProtocolError` for an append that is not allowed here: it is the only one then.
        """
        if not self._runs:
            return
        runs, self._runs = self._runs, {}
        with_room: set[SegmentContainer] = set()
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
            self._append(request, with_room)
        self.settle()

    def append_conditionally(self, command: ConditionalAppend | ConditionalBlockEnd, data: Buffer) -> None:
        """Append if the segment has the expected length. `data` is stored."""
        self._forbid_open_block(type(command).__name__)
        self.submit_gathered()
        number, request_id = command.event_number, command.request_id
        request = AppendRequest(
            data, 1, command.writer_id, number, number, request_id, request_id, command.expected_offset
        )
        self._append(request, set())
        self.settle()

    def _forbid_open_block(self, name: str) -> None:
        if self._block is not None:
            raise ProtocolError(f"{name} between AppendBlock and AppendBlockEnd")

    def _append(self, request: AppendRequest, with_room: set[SegmentContainer]) -> None:
        """Accept an append, or queue it after its writer's held ones. `with_room`: containers known to have room."""
        writer_id = request.writer_id
        if writer_id in self.held_appends:
            if not self._is_sent_away(writer_id):
                self.held_appends.put(writer_id, self._operation(request))
            return
        state = self._writers.get(writer_id)
        if state is None:
            raise _unknown(writer_id)
        if self._is_draining and not state.is_urgent:
            self._send_away(state)
            return
        if state.is_urgent:
            self._accept_from(state, request, None, False)
            return
        container = state.container
        if container not in with_room and not container.back_pressure.must_wait():
            with_room.add(container)
        self._accept_from(state, request, None, container in with_room)

    def _is_sent_away(self, writer_id: bytes) -> bool:
        """Refuse a writer with WrongHost if the processor is refusing."""
        state = self._writers.get(writer_id)
        if not self._is_draining or state is None or state.is_urgent:
            return False
        self._send_away(state)
        return True

    def _operation(self, request: AppendRequest, *, is_checked: bool = False) -> HeldOperation:
        again = partial(self._accept, request, is_checked=is_checked)
        return HeldOperation(again, len(request.data) + OPERATION_OVERHEAD_BYTES, is_append=True)

    def _accept(
        self, request: AppendRequest, failure: PenstockError | None, is_admitted: bool, *, is_checked: bool = False
    ) -> None:
        """Accept an append that was held."""
        state = self._writers.get(request.writer_id)
        if state is None:
            raise _unknown(request.writer_id)
        self._accept_from(state, request, failure, is_admitted, is_checked=is_checked)

    def _accept_from(
        self,
        state: WriterState,
        request: AppendRequest,
        failure: PenstockError | None,
        is_admitted: bool,
        *,
        is_checked: bool = False,
    ) -> None:
        """Validate and accept an append, or hold it. `is_checked`: it was held before."""
        writer_id, first_number = request.writer_id, request.first_event_number
        if state.is_failed:
            return  # The error reply to an earlier append was sent; the client resends this one.
        if state.is_of_marks and request.expected_offset is None:
            logger.info("%s: an append to watermarks without a condition is refused", state.segment.name)
            state.is_failed = True
            self._after_earlier(state, OperationUnsupported(request.first_request_id, "AppendBlockEnd"))
            return
        if not is_checked:
            if first_number < state.last_seen:
                raise ProtocolError(
                    f"event number {first_number} of writer {writer_id.hex()} after {state.last_seen} on one connection"
                )
            state.last_seen = request.event_number
        done = _Completion(self, state, request)
        admission = admit(state, request, done, failure=failure, has_room=is_admitted)
        if isinstance(admission, Admitted):
            done.end = admission.end
            state.stored = request.event_number
            state.in_flight += 1
            self._uncounted_bytes += len(request.data) + OPERATION_OVERHEAD_BYTES
        elif isinstance(admission, Failed):
            self._refuse(state, request, admission.error)
        elif isinstance(admission, HeldForQuota):
            self._hold_writer(state, request.first_request_id)
        else:
            operation = self._operation(request, is_checked=True)
            if isinstance(admission, HeldForLoad):
                self.held_appends.hold_for(writer_id, admission.load, operation)
            else:
                self.held_appends.hold_for_room(writer_id, state.container, state.is_urgent, operation)

    def _hold_writer(self, state: WriterState, request_id: int) -> None:
        """Refuse a writer whose segment is over its quota; let it set up again when there is room.

        Nothing else on the connection waits for it, and none of its appends are kept meanwhile: the client resends what
        was not acknowledged.
        """
        state.is_failed = True

        async def held() -> None:
            try:
                await state.container.quota.room(state.segment)
            except SegmentBackloggedError as error:
                logger.warning("a writer is reset: %s", error)
            if self._writers.get(state.writer_id) is state:
                self._after_earlier(state, WrongHost(request_id, state.segment.name, ""))

        self._replies.spawn(held())

    def _refuse(self, state: WriterState, request: AppendRequest, error: PenstockError) -> None:
        segment = state.segment.name
        event_number, request_id = request.first_event_number, request.first_request_id
        if isinstance(error, BadOffsetError):
            # The connection and the writer stay; the number may be used again.
            state.last_seen = max(state.stored, 0)
            self._after_earlier(state, ConditionalCheckFailed(state.writer_id, event_number, request.request_id))
            return
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
        """Send `reply` after the acknowledgements of everything accepted before it."""

        def durable(error: BaseException | None) -> None:
            if error is not None:
                self._replies.abort(f"container stopped: {error}")
                return
            self.send_acknowledgements()
            if not state.container.ownership.is_confirmed:
                # The refusal may be based on state that a successor has changed: only the segment's present owner may
                # send it.
                self._replies.abort(f"{state.segment.name}: its container may have been fenced")
                return
            self._replies.send(encode(reply))
            if then_abort:
                self._replies.abort(then_abort)

        state.container.pipeline.when_durable(durable)

    def completed(self, completion: _Completion, error: BaseException | None) -> None:
        """Handle the end of an append; appends of one writer end in order."""
        state, request = completion.state, completion.request
        state.in_flight -= 1
        self._uncounted_bytes -= len(request.data) + OPERATION_OVERHEAD_BYTES
        if not self._is_flush_due:
            self._is_flush_due = True
            self._replies.acknowledge_later()
        if error is not None:
            self._replies.abort(f"append to {state.segment.name} failed, its outcome is unknown: {error}")
            return
        if state.is_reset:
            return
        state.durable = request.event_number
        state.durable_length = completion.end
        state.request_id = request.request_id
        if request.expected_offset is not None:
            # Never joined with others: a client that appends conditionally waits for the reply to each request by its
            # id. Java clients send the pieces of a large event this way, several at a time.
            self._to_acknowledge.pop(state, None)
            self._acknowledge(state)
            return
        self._to_acknowledge[state] = None

    def send_acknowledgements(self) -> None:
        """Acknowledge newly durable appends, one reply per writer."""
        self._is_flush_due = False
        self.settle()
        if not self._to_acknowledge:
            return
        states, self._to_acknowledge = self._to_acknowledge, {}
        for state in states:
            self._acknowledge(state)

    def _acknowledge(self, state: WriterState) -> None:
        durable = state.durable
        self._replies.send(
            data_appended_frame(state.writer_id, durable, state.acknowledged, state.request_id, state.durable_length)
        )
        state.acknowledged = durable

    def close(self) -> None:
        """Drop all writers; accepted appends stay accepted."""
        self._is_closed = True
        self._slots.close()
        self._writers.clear()
        self._to_acknowledge.clear()
        self.held_appends.close()
        # The lanes refer to this object, see `Connection.connection_lost`.
        self.held_appends = HeldAppends(ClosedOwner())
        self.held_appends.close()
        self._waiting_set_ups.clear()
        self._runs.clear()
        self._block = None


async def _find(container: SegmentContainer, name: str) -> None:
    """Load a segment into memory. Raises `NoSuchSegmentError` if the container may say so."""
    try:
        await container.find(name)
    except NoSuchSegmentError:
        await container.ownership.confirmed()
        raise


def _unknown(writer_id: bytes) -> ProtocolError:
    return ProtocolError(f"append of writer {writer_id.hex()}, which is not set up on this connection")


class _Completion:
    """Called when an append is durable. An object, not a closure: there are many."""

    __slots__ = ("end", "processor", "request", "state")

    def __init__(self, processor: AppendProcessor, state: WriterState, request: AppendRequest) -> None:
        self.processor: AppendProcessor = processor
        self.state: WriterState = state
        self.request: AppendRequest = request
        self.end: int = 0

    def __call__(self, error: BaseException | None) -> None:
        self.processor.completed(self, error)
