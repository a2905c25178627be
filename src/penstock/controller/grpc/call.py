"""`Call`: what one call of the gRPC service answers, and to whom.

A handler returns what a success is answered with and raises everything else. What the reply's enum can say of an error
is in the call's row of the table; the rest becomes a gRPC status (`status`). FAILURE is kept for what no retry can mend
as things are: Java's client does not ask again, and the Rust client asks ten times.

Source: controller API specification, sections 4, 5 and 10.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from google.protobuf.message import Message

from penstock.controller.errors import PERMANENT_ERRORS, WorkElsewhereError
from penstock.controller.grpc.access import AccessOf
from penstock.controller.grpc.status import EarlyArgumentError
from penstock.controller.service import ControllerService
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
)
from penstock.rpc import controller_pb2 as pb

_logger = logging.getLogger(__name__)

#: Why the call that was served last in this context was refused by a value of its reply's enum; empty: it was not.
refusal_reason: ContextVar[str] = ContextVar("refusal_reason", default="")


@dataclass(frozen=True, slots=True)
class Front:
    """What handlers answer from. `endpoints`: host and port of each live controller, as clients are to know them."""

    service: ControllerService
    endpoints: Callable[[], list[tuple[str, int]]]


#: How an error is answered: by a value of the reply's enum, or as if it were another error. The first class that fits
#: decides.
Errors = Mapping[type[PenstockError], "int | type[PenstockError]"]


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the table.

    Attributes:
        name: of the call.
        answer: the handler, of a `Front` and the request.
        access: what the caller must be allowed to do.
        errors: see `Errors`.
        failure: the value of the reply's enum for what the state of things forbids; None: there is none.
        refusal: makes the reply that says no, of the request and a value of the enum.
    """

    name: str
    answer: Callable[..., Awaitable[Message]]
    access: AccessOf
    errors: Errors = field(default_factory=dict)
    failure: int | None = None
    refusal: Callable[..., Message] | None = None

    async def serve(self, front: Front, request: Message) -> Message:
        """Answer a request. Raises what is not for the reply to say."""
        refusal_reason.set("")
        try:
            return await self.answer(front, request)
        except PenstockError as error:
            wanted = self._answer_to(error)
            if isinstance(wanted, type):
                raise wanted(f"{self.name}: {error}" if wanted is ControllerUnavailableError else str(error)) from error
            if wanted is None or self.refusal is None:
                raise
            refusal_reason.set(str(error))
            return self.refusal(request, wanted)

    def _answer_to(self, error: PenstockError) -> int | type[PenstockError] | None:
        if isinstance(error, EarlyArgumentError):
            return None
        for kind, answer in self.errors.items():
            if isinstance(error, kind):
                _logger.debug("%s: %s", self.name, error)
                return answer
        if self.failure is None or not is_final(error):
            return None
        # What the state of a stream forbids is a mistake of the client; what a store has lost is not.
        is_of_client = isinstance(error, (StreamError, MetadataConflictError))
        _logger.log(logging.INFO if is_of_client else logging.WARNING, "%s is refused: %s", self.name, error)
        return self.failure


def is_final(error: PenstockError) -> bool:
    """Say whether asking again is of no use as things are.

    FAILURE says that the controller will not do it, and Java's client does not ask again. So it is for what the state
    of a stream forbids, and for what nobody can mend. Whatever else a store answers, that it has no room, that its
    storage hangs or fails, that another controller is at work there, may pass: the work goes on when it does, the
    client is told to ask again, and takes what it finds then for what may be its own.
    """
    if isinstance(error, (InvalidArgumentError, OutcomeUnknownError, ControllerUnavailableError, WorkElsewhereError)):
        return False
    return isinstance(error, (StreamError, *PERMANENT_ERRORS))


def need_names(**names: str) -> None:
    """Raise `EarlyArgumentError` if one of the names that a request must give is empty."""
    if not all(names.values()):
        given = ", ".join(f"{what} {name!r}" for what, name in names.items())
        raise EarlyArgumentError(f"{given}: no name may be empty")


def need_stream(info: pb.StreamInfo) -> None:
    """Raise `EarlyArgumentError` if scope or stream is empty."""
    need_names(scope=info.scope, stream=info.stream)
