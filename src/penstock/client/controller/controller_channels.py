"""`ControllerChannels`: a client's connections to the controllers of its cluster. One of them is used for its calls.

There is one channel for each address, so addresses may be host names, and a certificate is checked for its own host.
Only the channel in use is connected, until it is lost or its controller is silent. A controller is *silent* if it does
not answer a request for a sign of life: its process is stopped, or its machine is lost and no packet says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, cast

import grpc
import grpc.aio

from penstock.client.controller.unary_call import UnaryCall
from penstock.rpc import controller_pb2 as pb

#: The next address is tried, too, if a connection takes longer; the first one that succeeds is used.
_NEXT_AFTER_S = 0.25
_CLOSE_TIMEOUT_S = 1.0
#: Codes of gRPC itself, which are no answer of a controller.
_NO_ANSWER = frozenset(
    {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
)  # fmt: skip


class SignStub(Protocol):
    """The smallest request that every controller answers, as a sign of life."""

    getControllerServerList: UnaryCall[pb.ServerRequest, pb.ServerResponse]


#: Sends the request for a sign of life by the stub of a channel.
Ask = Callable[[SignStub], Awaitable[object]]


class ControllerChannels:
    """See the module. `channels`: one for each address; `make_stub` makes the calls of one of them.

    `silent_last_s`: connections to controllers that were silent are used again after this time, if there is no other.
    """

    def __init__(
        self,
        channels: Sequence[grpc.aio.Channel],
        make_stub: Callable[[grpc.aio.Channel], SignStub],
        *,
        silent_last_s: float,
    ) -> None:
        self._channels = list(channels)
        self._stubs = [make_stub(channel) for channel in channels]
        self._silent_last_s = silent_last_s
        self._current = 0
        self._silent: set[int] = set()
        #: Waits for a connection on behalf of all calls. gRPC keeps such a wait after it is no longer awaited, and ends
        #: it when the channel closes; the loop must not be closed before that.
        self._connecting: dict[int, asyncio.Task[None]] = {}
        self._signs: dict[int, asyncio.Task[bool]] = {}

    @property
    def has_several(self) -> bool:
        """Whether there is another controller to go to."""
        return len(self._channels) > 1

    @property
    def current(self) -> int:
        """Number of the channel in use."""
        return self._current

    @property
    def is_connected(self) -> bool:
        """Whether the channel in use is connected. If it is not, it begins to connect."""
        state = self._channels[self._current].get_state(try_to_connect=True)
        return state is grpc.ChannelConnectivity.READY and self._current not in self._silent

    @property
    def waits(self) -> Sequence[asyncio.Task[None]]:
        """The waits for connections, for observers."""
        return list(self._connecting.values())

    def call(self, name: str) -> Callable[..., Awaitable[object]]:
        """Return an RPC. Each request is sent by the channel that is in use then."""

        def send(request: object, **options: object) -> Awaitable[object]:
            rpc = getattr(self._stubs[self._current], name)
            return cast(Awaitable[object], rpc(request, **options))

        return send

    async def connect(self) -> None:
        """Wait until a channel is connected, and use it. Begins with the one in use, then takes them in turn."""
        count = len(self._channels)
        order = [(self._current + step) % count for step in range(count)]
        order.sort(key=lambda index: index in self._silent)
        begun: dict[int, asyncio.Task[None]] = {}
        for index in order:
            if index in self._silent and begun:
                await asyncio.wait(begun.values(), timeout=self._silent_last_s, return_when=asyncio.FIRST_COMPLETED)
            if any(task.done() for task in begun.values()):
                break
            begun[index] = self._connection(index)
            await asyncio.wait(
                begun.values(),
                timeout=_NEXT_AFTER_S if self.has_several else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        await asyncio.wait(begun.values(), return_when=asyncio.FIRST_COMPLETED)
        self._current = next(index for index, task in begun.items() if task.done())
        self._silent.discard(self._current)

    def _connection(self, index: int) -> asyncio.Task[None]:
        task = self._connecting.get(index)
        if task is None or task.done():
            task = self._connecting[index] = asyncio.ensure_future(_until_connected(self._channels[index]))
        return task

    async def is_alive(self, index: int, ask: Ask) -> bool:
        """Return whether a controller gives a sign of life. If not, another channel is used from now on.

        `ask` has a time limit. There is one request at a time for all callers.
        """
        task = self._signs.get(index)
        if task is None or task.done():
            task = self._signs[index] = asyncio.ensure_future(_answers(ask(self._stubs[index])))
        is_alive = await asyncio.shield(task)
        if not is_alive and index == self._current:
            self._silent.add(index)
            self._current = (index + 1) % len(self._channels)
        return is_alive

    async def close(self) -> None:
        """Close all channels; calls in flight fail."""
        for task in self._signs.values():
            task.cancel()
        await asyncio.gather(*(channel.close(None) for channel in self._channels))
        if waiting := [*self._connecting.values(), *self._signs.values()]:
            await asyncio.wait(waiting, timeout=_CLOSE_TIMEOUT_S)


async def _answers(sign: Awaitable[object]) -> bool:
    try:
        await sign
    except grpc.RpcError as error:
        return error.code() not in _NO_ANSWER
    return True


async def _until_connected(channel: grpc.aio.Channel) -> None:
    """Wait for a connection, or for the channel's close."""
    state = channel.get_state(try_to_connect=True)
    while state not in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.SHUTDOWN):
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
