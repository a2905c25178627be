"""`Call`: one call of the gRPC service, with its handler and error replies.

A handler returns the reply of a success and raises errors. Errors that the reply's enum can express are in the call's
row of the table; the others become a gRPC status (`status`). FAILURE is reserved for errors that no retry can fix in
the current state: Java's client does not retry it, and the Rust client retries ten times.

Source: controller-api 4, 5 and 10.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from google.protobuf.message import Message

from penstock.controller.errors import PERMANENT_ERRORS, EarlyArgumentError, WorkElsewhereError
from penstock.controller.grpc.access import AccessOf
from penstock.controller.locator import ContainerLocator
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

if TYPE_CHECKING:
    from penstock.controller.cluster.control import ClusterControl
    from penstock.security.audit_log import AuditLog

_logger = logging.getLogger(__name__)

#: Why the last call served in this context was refused by a value of its reply's enum; empty: it was not.
refusal_reason: ContextVar[str] = ContextVar("refusal_reason", default="")

#: The account of the present call; empty: it has none.
principal: ContextVar[str] = ContextVar("principal", default="")


@dataclass(frozen=True, slots=True)
class Front:
    """The dependencies of handlers.

    `endpoints`: published host and port of each live controller. `locator`: where clients of this front reach segment
    stores; None: as the service says. `cluster`: its members; None: it is a single server. `audit`: the log of changes;
    None: there is none.
    """

    service: ControllerService
    endpoints: Callable[[], list[tuple[str, int]]]
    locator: ContainerLocator | None = None
    cluster: ClusterControl | None = None
    audit: AuditLog | None = None


#: Maps an error to a value of the reply's enum, or to another error to raise in its place. The first matching class
#: applies.
Errors = Mapping[type[PenstockError], "int | type[PenstockError]"]


@dataclass(frozen=True, slots=True)
class Call:
    """A row of the table.

    Attributes:
        name: name of the call.
        answer: the handler; takes a `Front` and the request.
        access: the access that the caller requires.
        errors: see `Errors`.
        failure: the value of the reply's enum for errors that a retry cannot fix; None: there is none.
        refusal: builds the error reply from the request and a value of the enum.
    """

    name: str
    answer: Callable[..., Awaitable[Message]]
    access: AccessOf
    errors: Errors = field(default_factory=dict)
    failure: int | None = None
    refusal: Callable[..., Message] | None = None

    async def serve(self, front: Front, request: Message) -> Message:
        """Answer a request. Raises errors that the reply cannot express."""
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
        # An operation forbidden by the stream's state is a mistake of the client; data lost by a store is not.
        is_of_client = isinstance(error, (StreamError, MetadataConflictError))
        _logger.log(logging.INFO if is_of_client else logging.WARNING, "%s is refused: %s", self.name, error)
        return self.failure


def is_final(error: PenstockError) -> bool:
    """Say whether a retry cannot succeed in the current state.

    FAILURE means that the controller will not perform the call, and Java's client does not retry it. So it is used for
    operations forbidden by the state of a stream, and for permanent errors. All other errors of a store (no space,
    storage that hangs or fails, another controller at work) may pass: the work then continues, and the client is asked
    to retry, and to expect that an existing result may be its own.
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
