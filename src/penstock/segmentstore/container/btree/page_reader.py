"""`PageReader`: loads verified pages from memory or from storage, with a few concurrent reads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.runtime.waits import cancel_and_wait
from penstock.segmentstore.container.btree.page_cache import PageCache
from penstock.segmentstore.container.btree.pages import Pointer, check_level, verify_page
from penstock.segmentstore.container.btree.sorted_index import IndexStorage
from penstock.segmentstore.container_settings import IndexSettings

#: Pages looked up in memory before yielding to the event loop.
_SLICE_PAGES: Final = 1024


class PageReader:
    """Loads pages of one index. See `LoadPages`."""

    def __init__(self, name: str, storage: IndexStorage, cache: PageCache, settings: IndexSettings) -> None:
        self._name = name
        self._storage = storage
        self._cache = cache
        self._settings = settings
        self._turns = asyncio.Semaphore(settings.reads_max)

    async def load(self, pointers: Sequence[Pointer], level: int, *, keeps: bool) -> Sequence[bytes]:
        """Return the pages of `level` at distinct `pointers`, in order; with `keeps` the pages read are cached.

        Raises `CorruptionError`, `SegmentTruncatedError` and errors of storage.
        """
        pages: dict[int, bytes] = {}
        missing = []
        for number, pointer in enumerate(pointers, 1):
            page = self._cache.get(pointer.offset, pointer.length)
            if page is None:
                missing.append(pointer)
            else:
                check_level(self._name, pointer.offset, page, level)
                pages[pointer.offset] = page
            if number % _SLICE_PAGES == 0:
                await asyncio.sleep(0)
        if len(missing) < len(pointers):
            self._cache.touch()
        if missing:
            await self._read(missing, level, pages, keeps=keeps)
        return [pages[pointer.offset] for pointer in pointers]

    async def _read(self, missing: list[Pointer], level: int, pages: dict[int, bytes], *, keeps: bool) -> None:
        runs = self._runs(sorted(missing))
        if len(missing) == 1:
            await self._read_runs(runs, level, pages, keeps=keeps)
            return
        # The workers share the iterator: each takes the next run when it has completed one.
        workers = [
            asyncio.ensure_future(self._read_runs(runs, level, pages, keeps=keeps))
            for _ in range(min(self._settings.reads_max, len(missing)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            await cancel_and_wait(*workers)

    def _runs(self, pointers: Sequence[Pointer]) -> Iterator[list[Pointer]]:
        """Group adjacent pages into runs."""
        run: list[Pointer] = []
        length = 0
        for pointer in pointers:
            follows = run and run[-1].offset + run[-1].length == pointer.offset
            if run and not (follows and length + pointer.length <= self._settings.read_bytes_max):
                yield run
                run, length = [], 0
            run.append(pointer)
            length += pointer.length
        if run:
            yield run

    async def _read_runs(
        self, runs: Iterator[list[Pointer]], level: int, pages: dict[int, bytes], *, keeps: bool
    ) -> None:
        for run in runs:
            async with self._turns:
                if len(run) == 1 and (page := self._cache.get(run[0].offset, run[0].length)) is not None:
                    # Another read has loaded it while this one was queued.
                    check_level(self._name, run[0].offset, page, level)
                    pages[run[0].offset] = page
                    continue
                start = run[0].offset
                data = await self._storage.read(start, run[-1].offset + run[-1].length - start)
            for offset, length, _ in run:
                page = data if len(run) == 1 else data[offset - start : offset - start + length]
                verify_page(self._name, offset, page, level=level)
                pages[offset] = page
                if keeps:
                    self._cache.put(offset, page)
