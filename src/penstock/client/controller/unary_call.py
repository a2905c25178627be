"""`UnaryCall`: one RPC of a gRPC stub, as used by the client's typed calls; `CallGroup`: the base of these calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Protocol, TypeVar

import grpc.aio

from penstock.client.settings import ClientSettings
from penstock.model.errors import PenstockError
from penstock.rpc import REFUSAL_REASON_KEY

Request = TypeVar("Request", contravariant=True)
Reply = TypeVar("Reply", covariant=True)
Answer = TypeVar("Answer")

_reason: ContextVar[str] = ContextVar("reason_of_refusal", default="")


class UnaryCall(Protocol[Request, Reply]):
    """One RPC of a gRPC stub."""

    def __call__(self, request: Request, *, timeout: float | None = None) -> Awaitable[Reply]:
        """Send `request`, return its reply; raises `grpc.RpcError`."""


class CallGroup(ABC):
    """The calls about one subject, a part of `ControllerClient`, which makes them."""

    _settings: ClientSettings

    @abstractmethod
    async def _ask(self, call: UnaryCall[Request, Reply], request: Request, what: str) -> Reply:
        """Make a call that changes nothing."""

    @abstractmethod
    async def _change(self, call: UnaryCall[Request, Reply], request: Request, what: str) -> tuple[Reply, bool]:
        """Make a call that changes something; also return whether an earlier attempt may have been carried out."""

    @abstractmethod
    async def _attempt(
        self,
        call: UnaryCall[Request, Reply],
        request: Request,
        what: str,
        *,
        is_change: bool,
        on_internal: Callable[[], Awaitable[None]] | None = None,
        unknown_means: type[PenstockError] | None = None,
        on_refused: Callable[[str], None] | None = None,
    ) -> tuple[Reply, bool]:
        """Make a call; also return whether an earlier attempt may have been carried out.

        `on_internal` is called at the first INTERNAL, and may raise an error that explains it.
        """


async def answered(call: Awaitable[Answer]) -> Answer:
    """Wait for the reply of a call, and save the controller's additional text for `reason_of_refusal`."""
    _reason.set("")
    reply = await call
    if isinstance(call, grpc.aio.Call):
        for key, value in await call.trailing_metadata() or ():
            if key == REFUSAL_REASON_KEY and isinstance(value, bytes):
                _reason.set(value.decode(errors="replace"))
    return reply


def reason_of_refusal() -> str:
    """Return the reason in the last rejecting reply of this task; without one, where to find it."""
    return _reason.get() or "see the controller's log for the reason"
