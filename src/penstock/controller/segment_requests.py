"""`SegmentRequests`: the requests of workflows to segment stores, made repeatable.

Each request is idempotent: "exists already", "is sealed already" and "is gone already" count as success, so a workflow
may be repeated from any point, and a request whose reply was lost is sent again.

Source: controller-api 11.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TypeVar

from penstock.controller.container_waits import waiting_for
from penstock.controller.retry import delay_s, may_repeat, repeat
from penstock.controller.settings import ControllerSettings
from penstock.controller.steps import pages
from penstock.model.errors import (
    NoSuchSegmentError,
    PenstockError,
    SegmentExistsError,
    SegmentSealedError,
    SegmentTruncatedError,
)
from penstock.model.policies import Scaling
from penstock.model.routing import container_of
from penstock.model.segments import SegmentData, SegmentInfo, Segments

T = TypeVar("T")
_logger = logging.getLogger(__name__)

#: Requests that are started before the event loop runs other tasks: some milliseconds of work.
REQUESTS_PER_TURN = 200


class SegmentRequests:
    """Retries requests that are safe to repeat, and limits the requests in flight to each container.

    An unresponsive container delays only requests to its own segments, and a request that waits for its next attempt
    holds no slot.
    """

    def __init__(self, segments: Segments, settings: ControllerSettings, container_count: int) -> None:
        self._segments = segments
        self._settings = settings
        self._slots = [asyncio.Semaphore(settings.segment_requests_max) for _ in range(container_count)]
        self._batch_slots = [asyncio.Semaphore(settings.segment_batches_max) for _ in range(container_count)]

    async def _send(self, what: str, segment: str, call: Callable[[], Awaitable[T]]) -> T:
        slots = self._slots[container_of(segment, len(self._slots))]

        async def attempt() -> T:
            async with slots:
                return await call()

        with waiting_for(segment):
            return await repeat(f"{what} {segment}", attempt, self._settings, is_idempotent=True)

    async def _send_all(
        self,
        what: str,
        segments: Sequence[str],
        call: Callable[[Sequence[str]], Awaitable[Sequence[T | PenstockError]]],
        is_done: Callable[[str, PenstockError], bool],
    ) -> dict[str, T]:
        """Send requests about many segments in batches, each to one container; return the answers by segment.

        An error of a segment for which `is_done` returns True counts as success, without an answer. After a transient
        error that segment alone is retried; the first other error is raised, and all batches are cancelled.
        """
        by_container: dict[int, list[str]] = {}
        for page in pages(segments):
            for segment in page:
                by_container.setdefault(container_of(segment, len(self._slots)), []).append(segment)
            await asyncio.sleep(0)
        answers: dict[str, T] = {}

        async def ask(container: int, batch: Sequence[str]) -> None:
            attempt = 1
            while batch:
                async with self._batch_slots[container]:
                    try:
                        results = await call(batch)
                    except PenstockError as error:
                        results = [error] * len(batch)
                failed: dict[str, PenstockError] = {}
                for segment, result in zip(batch, results, strict=True):
                    if not isinstance(result, PenstockError):
                        answers[segment] = result
                    elif not is_done(segment, result):
                        failed[segment] = result
                for segment, failure in failed.items():
                    if attempt >= self._settings.attempts_max or not may_repeat(failure, is_idempotent=True):
                        raise failure
                    _logger.info("%s %s: attempt %d failed (%s), trying again", what, segment, attempt, failure)
                if failed:
                    await asyncio.sleep(delay_s(self._settings, attempt))
                batch, attempt = list(failed), attempt + 1

        async def ask_container(container: int, names: Sequence[str]) -> None:
            with waiting_for(names[0]):
                for start in range(0, len(names), self._settings.segment_batch_max):
                    await ask(container, names[start : start + self._settings.segment_batch_max])

        await together(ask_container(container, names) for container, names in sorted(by_container.items()))
        return answers

    async def create(self, segment: str, scaling: Scaling, rollover_bytes: int) -> None:
        """Create a segment that reports its load against `scaling`."""
        try:
            await self._send(
                "create",
                segment,
                lambda: self._segments.create_segment(
                    segment,
                    scale_type=int(scaling.kind),
                    target_rate=scaling.target_rate,
                    rollover_bytes=rollover_bytes,
                ),
            )
        except SegmentExistsError:
            return

    async def seal(self, segment: str) -> None:
        """Seal a segment. Raises `NoSuchSegmentError`."""
        try:
            await self._send("seal", segment, lambda: self._segments.seal_segment(segment))
        except SegmentSealedError:
            return

    async def delete(self, segment: str) -> None:
        """Delete a segment."""
        try:
            await self._send("delete", segment, lambda: self._segments.delete_segment(segment))
        except NoSuchSegmentError:
            return

    async def create_table(self, segment: str, key_bytes: int, rollover_bytes: int) -> None:
        """Create a table segment whose keys have `key_bytes` bytes."""
        try:
            await self._send(
                "create table",
                segment,
                lambda: self._segments.create_table(segment, key_length=key_bytes, rollover_bytes=rollover_bytes),
            )
        except SegmentExistsError:
            return

    async def delete_table(self, segment: str) -> None:
        """Delete a table segment with its entries."""
        try:
            await self._send("delete table", segment, lambda: self._segments.delete_table(segment))
        except NoSuchSegmentError:
            return

    async def table_exists(self, segment: str) -> bool:
        """Say whether a table segment of this name exists."""
        try:
            await self._send("read table", segment, lambda: self._segments.table_info(segment))
        except NoSuchSegmentError:
            return False
        return True

    async def truncate(self, segment: str, offset: int) -> None:
        """Truncate the bytes before `offset`. Does nothing if the segment starts later already, or does not exist."""
        try:
            await self._send("truncate", segment, lambda: self._segments.truncate_segment(segment, offset))
        except SegmentTruncatedError as error:
            # This error is also raised for an offset past the end, which is a mistake of the caller: raise it.
            if offset > error.start_offset:
                raise
        except NoSuchSegmentError:
            return

    async def truncate_all(self, offsets: Mapping[str, int]) -> None:
        """`truncate` for many segments."""

        def is_done(segment: str, error: PenstockError) -> bool:
            is_behind = isinstance(error, SegmentTruncatedError) and offsets[segment] <= error.start_offset
            return is_behind or isinstance(error, NoSuchSegmentError)

        await self._send_all(
            "truncate",
            list(offsets),
            lambda batch: self._segments.truncate_segments([(segment, offsets[segment]) for segment in batch]),
            is_done,
        )

    async def delete_all(self, segments: Sequence[str]) -> None:
        """`delete` for many segments."""
        await self._send_all(
            "delete", segments, self._segments.delete_segments, lambda _, error: isinstance(error, NoSuchSegmentError)
        )

    async def infos(self, segments: Sequence[str]) -> dict[str, SegmentInfo]:
        """`info` for many segments."""
        return await self._send_all("ask for", segments, self._segments.segment_infos, lambda _, error: False)

    async def infos_in_time(self, segments: Sequence[str], timeout_s: float) -> dict[str, SegmentInfo]:
        """Return the states of the segments that answer within `timeout_s`; each gets one request.

        A segment is missing if its container is offline or hangs, or if it does not exist; it delays no other segment.
        """
        by_container: dict[int, list[str]] = {}
        for page in pages(segments):
            for segment in page:
                by_container.setdefault(container_of(segment, len(self._slots)), []).append(segment)
            await asyncio.sleep(0)
        found: dict[str, SegmentInfo] = {}

        async def ask(container: int, names: Sequence[str]) -> None:
            try:
                async with asyncio.timeout(timeout_s):
                    for start in range(0, len(names), self._settings.segment_batch_max):
                        batch = names[start : start + self._settings.segment_batch_max]
                        async with self._batch_slots[container]:
                            results = await self._segments.segment_infos(batch)
                        for segment, result in zip(batch, results, strict=True):
                            if not isinstance(result, PenstockError):
                                found[segment] = result
            except (TimeoutError, PenstockError) as error:
                _logger.debug("container %d does not report the lengths of segments: %s", container, error)

        await together(ask(container, names) for container, names in sorted(by_container.items()))
        return found

    async def update_policy(self, segment: str, scaling: Scaling) -> None:
        """Make a segment report its load against `scaling`."""
        await self._send(
            "update the policy of",
            segment,
            lambda: self._segments.update_policy(
                segment, scale_type=int(scaling.kind), target_rate=scaling.target_rate
            ),
        )

    async def merge(self, target: str, sources: Sequence[str]) -> Sequence[int]:
        """Merge the sources in order; return the target's length after each. Raises `NoSuchSegmentError`."""
        return await self._send("merge into", target, lambda: self._segments.merge_segments(target, sources))

    async def info(self, segment: str) -> SegmentInfo:
        """Return a segment's state. Raises `NoSuchSegmentError`."""
        return await self._send("ask for", segment, lambda: self._segments.segment_info(segment))

    async def read(self, segment: str, offset: int, length: int) -> SegmentData:
        """Read up to `length` available bytes. Raises `NoSuchSegmentError`, `SegmentTruncatedError`."""
        return await self._send("read", segment, lambda: self._segments.read(segment, offset, length))

    async def append(self, segment: str, data: bytes, *, expected_offset: int) -> None:
        """Append at an offset. Raises `NoSuchSegmentError`, `SegmentSealedError`.

        `BadOffsetError`: the offset is already written, possibly with this data if a first reply was lost.
        """
        await self._send(
            "append to", segment, lambda: self._segments.append(segment, data, expected_offset=expected_offset)
        )

    async def get_attribute(self, segment: str, attribute: bytes) -> int:
        """Return an attribute, or `NO_VALUE`. Raises `NoSuchSegmentError`."""
        return await self._send(
            "read an attribute of", segment, lambda: self._segments.get_attribute(segment, attribute)
        )

    async def update_attribute(self, segment: str, attribute: bytes, *, value: int, expected: int) -> None:
        """Replace an attribute if it equals `expected`; otherwise do nothing. Raises `NoSuchSegmentError`."""
        await self._send(
            "set an attribute of",
            segment,
            lambda: self._segments.update_attribute(segment, attribute, value=value, expected=expected),
        )


async def together(requests: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """Run requests concurrently; return their answers in order. Other tasks run while many requests are being started.

    When one fails, the rest are cancelled and the first error is raised, not in an `ExceptionGroup`.
    """
    tasks: list[asyncio.Task[T]] = []
    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                tasks.append(group.create_task(request))
                if len(tasks) % REQUESTS_PER_TURN == 0:
                    await asyncio.sleep(0)
    except ExceptionGroup as errors:
        # In the order of the requests, not of the failures: the same run reports the same error.
        failed = next((task.exception() for task in tasks if not task.cancelled() and task.exception()), None)
        raise (failed or errors) from None
    return [task.result() for task in tasks]
