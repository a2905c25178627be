"""What the calls of the gRPC service share in turning errors into replies."""

from __future__ import annotations

import logging
from collections.abc import Awaitable

from penstock.controller.errors import PERMANENT_ERRORS
from penstock.controller.grpc.status import LateArgumentError
from penstock.controller.metadata.catalog import NamePage
from penstock.model.errors import (
    ControllerUnavailableError,
    InvalidArgumentError,
    MetadataConflictError,
    OutcomeUnknownError,
    PenstockError,
    StreamError,
)

_logger = logging.getLogger(__name__)


async def page_of(listing: Awaitable[NamePage]) -> NamePage:
    """Await a page; a token that makes no sense is an error of the kind that Pravega finds late."""
    try:
        return await listing
    except InvalidArgumentError as error:
        raise LateArgumentError(str(error)) from error


def give_up_unless_retriable(error: PenstockError, what: str, name: str) -> None:
    """Raise what the client should learn as a gRPC status; otherwise note why the answer is FAILURE.

    FAILURE says that the controller will not do it, and Java's client does not ask again. So it is for what the state
    of a stream forbids, and for what nobody can mend. Whatever else a store answers, that it has no room, that its
    storage hangs or fails, may pass: the work goes on when it does, the client is told to ask again, and takes what it
    finds then for what may be its own.
    """
    if isinstance(error, (InvalidArgumentError, OutcomeUnknownError, ControllerUnavailableError)):
        raise error
    if not isinstance(error, (StreamError, *PERMANENT_ERRORS)):
        raise error
    level = logging.INFO if isinstance(error, MetadataConflictError) else logging.WARNING
    _logger.log(level, "%s of %s failed: %s", what, name, error)
