"""`PinnedSegment`: keeps the segment of a request in memory until the request is done."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from penstock.model.errors import (
    BadOffsetError,
    NoSuchSegmentError,
    SegmentError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.segment import Segment

_REFUSALS = (BadOffsetError, NoSuchSegmentError, SegmentMergedError, SegmentSealedError)


class PinnedSegment:
    """Finds a segment when its block begins, activates it if necessary, and keeps it in memory while the block runs.

    A refusal raised by the block waits until a crash cannot undo its cause. With `is_reading` the block's answer could
    be stale if the container was fenced: `OwnershipUnconfirmedError` is raised instead then. A class and not a
    generator, of which this would be three nested ones: there is one for each request.
    """

    __slots__ = ("_check", "_container", "_found", "_is_reading", "_locate", "_name")

    def __init__(
        self,
        name: str,
        locate: Callable[[str], SegmentContainer],
        *,
        check: Callable[[Segment], None] | None = None,
        is_reading: bool = False,
        found: Segment | None = None,
    ) -> None:
        """`locate` finds the container of `name`; `check` may refuse the segment found.

        `found`: the segment, if already found, even if its name now belongs to another one.
        """
        self._name = name
        self._locate = locate
        self._check = check
        self._is_reading = is_reading
        self._found = found
        self._container: SegmentContainer | None = None

    async def __aenter__(self) -> tuple[SegmentContainer, Segment]:
        """Raises `NoSuchSegmentError`, `ContainerNotFoundError`, `TooManyActiveSegmentsError`."""
        container = self._container = self._locate(self._name)
        found = self._found
        if found is None:
            try:
                found = self._found = await container.find(self._name)
            except NoSuchSegmentError:
                await container.ownership.confirmed()
                raise
        found.use_count += 1
        if self._check is not None:
            try:
                self._check(found)
            except BaseException as error:
                await self._end(container, found, error)
                raise
        return container, found

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Release the segment."""
        assert self._container is not None
        assert self._found is not None
        await self._end(self._container, self._found, error)

    async def _end(self, container: SegmentContainer, found: Segment, error: BaseException | None) -> None:
        try:
            if error is None:
                if self._is_reading:
                    await container.ownership.confirmed()
            elif isinstance(error, _REFUSALS):
                await container.pipeline.barrier()  # The cause of a refusal must not be undone by a crash.
                await container.ownership.confirmed()
            elif isinstance(error, SegmentError):
                # A refusal may be based on state that a successor has changed.
                await container.ownership.confirmed()
        finally:
            found.use_count -= 1
