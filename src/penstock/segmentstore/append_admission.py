"""`admit`: what becomes of one append of a writer: it is accepted, it failed, or it must be held.

The result is a value; `AppendProcessor` sends the replies and holds what must be held.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from penstock.model.errors import (
    AttributesNotLoadedError,
    BadEventNumberError,
    PenstockError,
    SegmentInactiveError,
)
from penstock.segmentstore.container.append_request import AppendRequest
from penstock.segmentstore.container.log.pipeline import OnDone
from penstock.segmentstore.writer_state import WriterState


class Admitted(msgspec.Struct, frozen=True, gc=False):
    """The container has accepted it. `end`: the length of the segment after it."""

    end: int


class Failed(msgspec.Struct, frozen=True):
    """It was not accepted, and nothing has changed."""

    error: PenstockError


class HeldForRoom(msgspec.Struct, frozen=True):
    """The container has no room. The append waits for its throttle, with the writer's later ones."""


class HeldForQuota(msgspec.Struct, frozen=True):
    """The segment is over its quota. The writer is reset, and set up again when there is room."""


class HeldForLoad(msgspec.Struct, frozen=True):
    """Its segment or the writer's last event number is not in memory. It waits until `load` has returned."""

    load: Callable[[], Awaitable[object]]


Held = HeldForRoom | HeldForQuota | HeldForLoad
_FOR_ROOM = HeldForRoom()
_FOR_QUOTA = HeldForQuota()


def admit(
    state: WriterState, request: AppendRequest, on_done: OnDone, *, failure: PenstockError | None, has_room: bool
) -> Admitted | Failed | Held:
    """Validate an append and give it to its container, unless it must be held.

    `on_done` is called once it is durable. `failure`: why what it was held for has failed. `has_room`: the throttle of
    its container has admitted it.
    """
    container = state.container
    if state.segment.is_stuck and container.quota.must_wait(state.segment):
        return _FOR_QUOTA
    if not has_room and failure is None and container.back_pressure.must_wait(is_urgent=state.is_urgent):
        return _FOR_ROOM
    first_number = request.first_event_number
    try:
        if failure is not None:
            raise failure
        if first_number <= state.stored:
            raise BadEventNumberError(
                state.segment.name, writer_id=request.writer_id, event_number=first_number, stored=state.stored
            )
        return Admitted(container.acceptor.append(state.segment, request, on_done, stored_event_number=state.stored))
    except (SegmentInactiveError, AttributesNotLoadedError) as error:
        return HeldForLoad(partial(_bring_in, state, error))
    except PenstockError as error:
        return Failed(error)


async def _bring_in(state: WriterState, error: SegmentInactiveError | AttributesNotLoadedError) -> None:
    """Load what an append needs: its segment, which may have been unloaded meanwhile, or a value."""
    state.segment = await state.container.find(state.segment.name)
    if isinstance(error, AttributesNotLoadedError):
        await state.container.attributes.load(state.segment, error.attribute_ids)
