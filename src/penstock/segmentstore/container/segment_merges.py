"""`SegmentMerges`: merges of segments into another one, as done when transactions are committed.

A merge is validated, accepted and logged in one turn of the loop, together with the seal of its source, so that a crash
leaves no intermediate state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from penstock.model.errors import (
    BadAttributeError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, evaluate
from penstock.segmentstore.container.log.operations import Merge
from penstock.segmentstore.container.log.pipeline import completer
from penstock.segmentstore.container.segment import Segment, SegmentFlags
from penstock.segmentstore.container.segment_operations import SegmentOperations


class SegmentMerges(SegmentOperations):
    """The operations of one container, with merges."""

    async def merge(self, target_name: str, source_name: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of `source` to `target` and delete it; return the target's length.

        `updates` change the target's attributes in the same step. A source that does not exist counts as already
        merged. Raises `SegmentSealedError` (of the target), `BadAttributeError` if a condition of `updates` fails,
        `InvalidArgumentError` for a truncated source or a table; nothing has changed then.
        """
        target = await self.find(target_name)
        with target.in_use():
            try:
                source = await self.find(source_name)
            except NoSuchSegmentError:
                return target.durable_length
            with source.in_use():
                await self.catalog.forget_record(source)
                await self.attributes.prepare(target, [update.attribute_id for update in updates])
                return await self._merge(target, source, updates)

    async def _merge(self, target: Segment, source: Segment, updates: Sequence[AttributeUpdate]) -> int:
        self._check_running()
        target_name = target.name
        self._live(target)
        if source.is_deleted or source.is_merged:
            await self.pipeline.barrier()
            return target.durable_length
        try:
            self._check_mergeable(target, source)
        except SegmentSealedError:
            await self.pipeline.barrier()
            raise
        try:
            values = evaluate(target_name, target.attributes, updates)
        except BadAttributeError:
            await self.pipeline.barrier()
            raise
        end, merged = self._accept_merge(target, source, values)
        await merged
        return end

    async def merge_all(self, target_name: str, source_names: Sequence[str]) -> list[tuple[int, Segment | None]]:
        """Append all of each source to the target, in order, and delete it; return the target's length after each.

        Each length comes with its source, or with None if the source does not exist or was merged before: it counts as
        merged. As many sources as can be active at the same time are accepted in one turn and wait for the log
        together. If one fails, those before it are merged, and those after it are not. Errors as of `merge`, and
        `TooManyActiveSegmentsError`.
        """
        target = await self.find(target_name)
        result: list[tuple[int, Segment | None]] = []
        with target.in_use():
            while len(result) < len(source_names):
                with ExitStack() as held:
                    sources = await self._find_sources(source_names[len(result) :], held)
                    result.extend(await self._merge_found(target, sources))
        return result

    async def _find_sources(self, names: Sequence[str], held: ExitStack) -> list[Segment | None]:
        """Find as many of the first segments as can be active, at least one; keep them in use while `held` is open."""
        found: list[Segment | None] = []
        for name in names:
            if found and self.catalog.is_full:
                break  # The merge of the sources found so far makes room.
            try:
                source = await self.find(name)
            except (NoSuchSegmentError, SegmentMergedError):
                found.append(None)
                continue
            held.enter_context(source.in_use())
            await self.catalog.forget_record(source)
            found.append(source)
        return found

    async def _merge_found(
        self, target: Segment, sources: Sequence[Segment | None]
    ) -> list[tuple[int, Segment | None]]:
        self._check_running()
        self._live(target)
        result: list[tuple[int, Segment | None]] = []
        merged: list[asyncio.Future[None]] = []
        try:
            for source in sources:
                if source is None or source.is_deleted or source.is_merged:
                    result.append((target.length, None))
                    continue
                self._check_mergeable(target, source)
                end, future = self._accept_merge(target, source, {})
                result.append((end, source))
                merged.append(future)
        finally:
            # All results must be durable before the reply, including rejections.
            failed = [one for one in await asyncio.gather(*merged, return_exceptions=True) if one is not None]
        if failed:
            raise failed[0]
        await self.pipeline.barrier()
        return result

    @staticmethod
    def _check_mergeable(target: Segment, source: Segment) -> None:
        if target.is_sealed:
            raise SegmentSealedError(target.name)
        if source is target or source.is_table or target.is_table:
            raise InvalidArgumentError(
                f"{source.name} cannot be merged into {target.name}: both must be stream segments"
            )
        if source.start_offset:
            raise InvalidArgumentError(f"{source.name} cannot be merged: it was truncated at {source.start_offset}")

    def _accept_merge(
        self, target: Segment, source: Segment, values: dict[bytes, int]
    ) -> tuple[int, asyncio.Future[None]]:
        """Accept a merge; return the target's length after it, and a future that completes once it is durable."""
        if not source.is_sealed:
            # Accepted directly before the merge, with nothing in between; the merge is durable only if the seal is.
            self._accept_seal(source, lambda _: None)
        offset = target.length
        # The pieces of a large event count as one event.
        event_count = 1 if source.flags & SegmentFlags.TRANSIENT else source.event_count
        operation = Merge(
            target.id, source.id, offset, source.length, event_count, self._runtime.wall_clock_ms(), values
        )
        end = offset + source.length
        future: asyncio.Future[None] = self._loop.create_future()
        complete = completer(future)

        def done(error: BaseException | None) -> None:
            if error is None:
                self.state.durable_merge(target, source, number, offset, end)
            complete(error)

        with self.pipeline.critical_section():
            self.state.accept_merge(target, source, operation)
            number = self.pipeline.add_operation(operation, done)
        return end, future
