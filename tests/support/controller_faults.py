"""Segment stores under a controller that hang, duplicate, lose or refuse: wrappers around `MemorySegments`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.model.errors import OutcomeUnknownError, PenstockError
from penstock_simulation.memory_segments import MemorySegments
from support.failing_segments import WRITES, OneByOne


class BlockedSegments(OneByOne):
    """Passes calls on; those to segments of which `is_of_blocked` is true do not come back while `is_blocked`.

    With `call_name` only calls of this name.
    """

    def __init__(
        self, store: MemorySegments, is_of_blocked: Callable[[str], bool], *, call_name: str | None = None
    ) -> None:
        self.call_name = call_name
        self.store = store
        self.is_of_blocked = is_of_blocked
        self.is_blocked = False
        self._released = asyncio.Event()

    def release(self) -> None:
        self.is_blocked = False
        self._released.set()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        async def forward(segment: Any, *arguments: Any, **options: Any) -> object:
            is_data = isinstance(segment, str) and "/_tables/" not in segment
            is_meant = is_data and self.call_name in (None, name) and self.is_of_blocked(segment)
            if self.is_blocked and is_meant:
                await self._released.wait()
            return await call(segment, *arguments, **options)

        return forward


class ScriptedSegments(OneByOne):
    """Passes calls on to `store` and notes writes; `rule(name, arguments)` may return an error to raise instead.

    With `OutcomeUnknownError` from `after_rule` the write is done and its reply lost.
    """

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.rule: Callable[[str, tuple[object, ...]], PenstockError | None] = lambda name, arguments: None
        self.after_rule: Callable[[str, tuple[object, ...]], bool] = lambda name, arguments: False
        self.writes: list[tuple[str, tuple[object, ...], dict[str, object]]] = []
        self.calls = 0

    async def repeat(self, number: int) -> None:
        """Let a late duplicate of a write arrive; its answer is dropped."""
        name, arguments, options = self.writes[number]
        try:
            await getattr(self.store, name)(*arguments, **options)
        except PenstockError:
            return

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        async def forward(*arguments: Any, **options: Any) -> object:
            self.calls += 1
            error = self.rule(name, arguments)
            if error is not None:
                raise error
            if name in WRITES:
                self.writes.append((name, arguments, options))
            result = await call(*arguments, **options)
            if self.after_rule(name, arguments):
                raise OutcomeUnknownError("the reply is lost")
            return result

        return forward


class StalledSegments(OneByOne):
    """Passes calls on to a store; write number `at`, counted from `stall_at` on, does not begin before `go_on`."""

    def __init__(self, store: MemorySegments) -> None:
        self.store = store
        self.count = self.at = 0
        self.reached, self.go_on = asyncio.Event(), asyncio.Event()

    def stall_at(self, at: int) -> None:
        self.count, self.at = 0, at

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.store, name)

        async def forward(*arguments: Any, **options: Any) -> object:
            if name in WRITES:
                self.count += 1
                if self.count == self.at:
                    self.reached.set()
                    await self.go_on.wait()
            return await call(*arguments, **options)

        return forward
