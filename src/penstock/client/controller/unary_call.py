"""`UnaryCall`: one RPC of a gRPC stub, as used by the client's typed calls."""

from __future__ import annotations

from collections.abc import Awaitable
from contextvars import ContextVar
from typing import Protocol, TypeVar

import grpc.aio

from penstock.rpc import REFUSAL_REASON_KEY

Request = TypeVar("Request", contravariant=True)
Reply = TypeVar("Reply", covariant=True)
Answer = TypeVar("Answer")

_reason: ContextVar[str] = ContextVar("reason_of_refusal", default="")


class UnaryCall(Protocol[Request, Reply]):
    """One RPC of a gRPC stub."""

    def __call__(self, request: Request, *, timeout: float | None = None) -> Awaitable[Reply]:
        """Send `request`, return its reply; raises `grpc.RpcError`."""


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
