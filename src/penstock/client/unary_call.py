"""`UnaryCall`: one RPC of a gRPC stub, as the client's typed calls see it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol, TypeVar

Request = TypeVar("Request", contravariant=True)
Reply = TypeVar("Reply", covariant=True)


class UnaryCall(Protocol[Request, Reply]):
    """One RPC of a gRPC stub."""

    def __call__(self, request: Request, *, timeout: float | None = None) -> Awaitable[Reply]:
        """Send `request`, return its reply; raises `grpc.RpcError`."""
