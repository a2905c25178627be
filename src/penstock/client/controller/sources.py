"""The sources of a writer's segments: a stream, or one transaction on it. See `SegmentSource`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.client.controller.controller import ControllerClient
from penstock.client.controller.stream_segments import SegmentRange
from penstock.model.errors import TransactionError
from penstock.model.names import transaction_segment_name


class StreamSource:
    """The segments of a stream, from the controller."""

    def __init__(self, controller: ControllerClient, scope: str, stream: str) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream

    @property
    def name(self) -> str:
        """See `SegmentSource`."""
        return f"{self._scope}/{self._stream}"

    async def segments(self) -> Sequence[SegmentRange]:
        """See `SegmentSource`."""
        return await self._controller.current_segments(self._scope, self._stream)

    async def successors(self, sealed: SegmentRange) -> Sequence[SegmentRange]:
        """See `SegmentSource`."""
        following = await self._controller.successors(self._scope, self._stream, sealed.segment_id)
        return [successor.segment for successor in following]

    def segment_name(self, segment: SegmentRange) -> str:
        """See `SegmentSource`."""
        return segment.name


class TransactionSource:
    """The segments of one transaction. They have no successors: a sealed or missing one means it is over."""

    def __init__(
        self,
        scope: str,
        stream: str,
        segments: Sequence[SegmentRange],
        *,
        high_bits: int,
        low_bits: int,
        why_over: Callable[[], Awaitable[TransactionError]],
    ) -> None:
        self._name = f"{scope}/{stream}"
        self._segments = segments
        self._high_bits = high_bits
        self._low_bits = low_bits
        self._why_over = why_over

    @property
    def name(self) -> str:
        """See `SegmentSource`."""
        return self._name

    async def segments(self) -> Sequence[SegmentRange]:
        """See `SegmentSource`."""
        return self._segments

    async def successors(self, sealed: SegmentRange) -> Sequence[SegmentRange]:
        """See `SegmentSource`. Raises the subclass of `TransactionError` that names the cause."""
        raise await self._why_over()

    def segment_name(self, segment: SegmentRange) -> str:
        """See `SegmentSource`."""
        return transaction_segment_name(segment.name, self._high_bits, self._low_bits)
