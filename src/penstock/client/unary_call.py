"""`UnaryCall`: one RPC of a gRPC stub, as the client's typed calls see it."""

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
    """Wait for the reply of a call, and note for `reason_of_refusal` what the controller adds to it."""
    _reason.set("")
    reply = await call
    if isinstance(call, grpc.aio.Call):
        for key, value in await call.trailing_metadata() or ():
            if key == REFUSAL_REASON_KEY and isinstance(value, bytes):
                _reason.set(value.decode(errors="replace"))
    return reply


def reason_of_refusal() -> str:
    """Return why the reply that this task has received last refuses; where to find out if the reply does not say it."""
    return _reason.get() or "the controller's log says why"
