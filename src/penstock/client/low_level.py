"""What connectors, jobs and commands need of a client and its public classes do not offer.

Functions of the asynchronous client, `penstock.aio.Client`, are called in its event loop; `run` calls them in that of a
blocking client. What they return belongs to the client: it is closed with it. Nothing here is as stable as
`penstock` itself. Importing this module loads no part of the client.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from penstock.client import client as aio
    from penstock.client.controller.controller import ControllerClient
    from penstock.client.reading.chunk_places import ChunkPlaces
    from penstock.client.reading.direct_reads import DirectReads
    from penstock.client.sync.client import Client
    from penstock.client.transport.chunk_layouts import ChunkLayouts, SegmentLayout
    from penstock.client.transport.cluster import Cluster
    from penstock.client.transport.segment_reader import SegmentReader
    from penstock.client.transport.wire_segments import WireSegments
    from penstock.runtime.portal import Portal

T = TypeVar("T")


def run(client: Client, step: Callable[[aio.Client], Coroutine[object, object, T]]) -> T:
    """Run `step` with the asynchronous client of a blocking one, in its loop; return its result, or raise its error."""
    part, portal = client.parts
    return portal.call(step(part))


def parts_of(client: Client) -> tuple[aio.Client, Portal]:
    """Return the asynchronous client of a blocking one, and the portal to its loop."""
    return client.parts


def open_client(client: aio.Client) -> None:
    """Open a client in the running event loop, as `async with` does. Close it with its `close`."""
    client.parts.open()


def note_exception(client: aio.Client) -> None:
    """Let the client be closed as after an error: nothing that its readers hold counts as processed."""
    client.note_exception()


def controller_of(client: aio.Client) -> ControllerClient:
    """Return the calls of the controller."""
    return client.parts.controller


def segments_of(client: aio.Client) -> WireSegments:
    """Return the requests to segment stores."""
    return client.parts.segments


def cluster_of(client: aio.Client) -> Cluster:
    """Return the controller and the segment stores, as the client's own parts use them."""
    return client.parts.cluster


def chunk_layouts_of(client: aio.Client) -> ChunkLayouts:
    """Return the requests for layouts of chunks; see docs/direct-reads.md."""
    return client.parts.chunk_layouts


def chunk_places_of(client: aio.Client) -> ChunkPlaces:
    """Return the places of chunks that the client has found; see docs/direct-reads.md."""
    return client.parts.chunk_places


def direct_reads(
    client: aio.Client, layout: SegmentLayout, *, place: str = "", is_required: bool = False
) -> DirectReads:
    """Return reads by a layout, with a fallback to the store; see `DirectReads`."""
    return client.parts.direct_reads(layout, place=place, is_required=is_required)


def direct_reader(client: aio.Client, reads: DirectReads, layout: SegmentLayout, start: int, end: int) -> SegmentReader:
    """Read `[start, end)` of the segment of a layout by `reads`, ahead of the consumer."""
    return client.parts.direct_reader(reads, layout, start, end)
