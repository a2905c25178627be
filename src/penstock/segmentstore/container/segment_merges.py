"""`SegmentMerges`: merges of segments into another one, as done when transactions are committed.

A merge is validated, accepted and logged in one turn of the loop, together with the seal of its source, so that a crash
leaves no intermediate state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from penstock.model.errors import (
    BadAttributeError,
    InvalidArgumentError,
    NoSuchSegmentError,
    SegmentMergedError,
    SegmentSealedError,
)
from penstock.segmentstore.container.acceptor import OperationAcceptor, check_live
from penstock.segmentstore.container.attributes.attributes import Attributes
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, evaluate
from penstock.segmentstore.container.catalog import SegmentCatalog
from penstock.segmentstore.container.life import ContainerLife
from penstock.segmentstore.container.segment import Segment


class SegmentMerges:
    """The merges of one container. `find` returns a segment, activated if necessary, or raises as the container's."""

    def __init__(
        self,
        life: ContainerLife,
        acceptor: OperationAcceptor,
        *,
        catalog: SegmentCatalog,
        attributes: Attributes,
        find: Callable[[str], Awaitable[Segment]],
    ) -> None:
        self._life = life
        self._acceptor = acceptor
        self._pipeline = acceptor.pipeline
        self._catalog = catalog
        self._attributes = attributes
        self._find = find

    async def merge(self, target_name: str, source_name: str, updates: Sequence[AttributeUpdate] = ()) -> int:
        """Append all of `source` to `target` and delete it; return the target's length.

        `updates` change the target's attributes in the same step. A source that does not exist counts as already
        merged. Raises `SegmentSealedError` (of the target), `BadAttributeError` if a condition of `updates` fails,
        `InvalidArgumentError` for a truncated source or a table; nothing has changed then.
        """
        target = await self._find(target_name)
        with target.in_use():
            try:
                source = await self._find(source_name)
            except NoSuchSegmentError:
                return target.durable_length
            with source.in_use():
                await self._catalog.forget_record(source)
                await self._attributes.prepare(target, [update.attribute_id for update in updates])
                return await self._merge(target, source, updates)

    async def _merge(self, target: Segment, source: Segment, updates: Sequence[AttributeUpdate]) -> int:
        self._check_running()
        target_name = target.name
        check_live(target)
        if source.is_deleted or source.is_merged:
            await self._pipeline.barrier()
            return target.durable_length
        try:
            self._check_mergeable(target, source)
        except SegmentSealedError:
            await self._pipeline.barrier()
            raise
        try:
            values = evaluate(target_name, target.attributes, updates)
        except BadAttributeError:
            await self._pipeline.barrier()
            raise
        end, merged = self._acceptor.merge(target, source, values)
        await merged
        return end

    async def merge_all(self, target_name: str, source_names: Sequence[str]) -> list[tuple[int, Segment | None]]:
        """Append all of each source to the target, in order, and delete it; return the target's length after each.

        Each length comes with its source, or with None if the source does not exist or was merged before: it counts as
        merged. As many sources as can be active at the same time are accepted in one turn and wait for the log
        together. If one fails, those before it are merged, and those after it are not. Errors as of `merge`, and
        `TooManyActiveSegmentsError`.
        """
        target = await self._find(target_name)
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
            if found and self._catalog.is_full:
                break  # The merge of the sources found so far makes room.
            try:
                source = await self._find(name)
            except (NoSuchSegmentError, SegmentMergedError):
                found.append(None)
                continue
            held.enter_context(source.in_use())
            await self._catalog.forget_record(source)
            found.append(source)
        return found

    async def _merge_found(
        self, target: Segment, sources: Sequence[Segment | None]
    ) -> list[tuple[int, Segment | None]]:
        self._check_running()
        check_live(target)
        result: list[tuple[int, Segment | None]] = []
        merged: list[asyncio.Future[None]] = []
        try:
            for source in sources:
                if source is None or source.is_deleted or source.is_merged:
                    result.append((target.length, None))
                    continue
                self._check_mergeable(target, source)
                end, future = self._acceptor.merge(target, source, {})
                result.append((end, source))
                merged.append(future)
        finally:
            # All results must be durable before the reply, including rejections.
            failed = [one for one in await asyncio.gather(*merged, return_exceptions=True) if one is not None]
        if failed:
            raise failed[0]
        await self._pipeline.barrier()
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

    def _check_running(self) -> None:
        self._life.check_running()
        self._pipeline.check_open()
