"""Where segments are, when containers are shared out among several segment stores."""

from __future__ import annotations

import pytest

from penstock.controller.locator import AssignedLocator
from penstock.controller.service import ControllerService
from penstock.model.assignments import share_out
from penstock.model.errors import ConnectionLostError, ContainerNotFoundError
from penstock.model.names import segment_name
from penstock.model.routing import container_of

STREAMS = [f"stream-{number}" for number in range(50)]


def container_of_stream(stream: str) -> int:
    return container_of(segment_name("scope", stream, 0), 6)


async def test_a_segment_is_located_at_the_assigned_store_of_its_container(service: ControllerService) -> None:
    """S-241: an error before any store has reported its address, and for containers of such a store; else its address.

    This holds for callers of the controller, and for the controller itself. The segments need not exist.
    """
    locator = AssignedLocator(share_out(6, 3, range(3)), 3)
    service._locator = locator

    async def found(stream: str) -> tuple[str, int] | None:
        """Return the endpoint of the stream's first segment; None when it is refused, in both ways."""
        container, name = container_of_stream(stream), segment_name("scope", stream, 0)
        if locator.endpoint_of(container) is None:
            with pytest.raises(ContainerNotFoundError, match=f"container {container}: no segment store") as refused:
                service.endpoint_of("scope", stream, 0)
            assert refused.value.is_retriable
            with pytest.raises(ConnectionLostError, match=f"container {container} has not started"):
                await locator.resolve_locally(name)
            return None
        told = service.endpoint_of("scope", stream, 0)
        assert await locator.resolve_locally(name) == ("127.0.0.1", told[1])
        return told

    assert {await found(stream) for stream in STREAMS} == {None}
    for number in (0, 2):
        locator.set_endpoint(number, "store.example", 6000 + number, local_host="127.0.0.1")
    of_store = [("store.example", 6000), None, ("store.example", 6002)]
    for stream in STREAMS:
        assert await found(stream) == of_store[container_of_stream(stream) % 3]
    # The container of the one that has not started moves, and those of another one with it.
    locator.assignment = share_out(6, 3, (2,))
    assert {await found(stream) for stream in STREAMS} == {("store.example", 6002)}
