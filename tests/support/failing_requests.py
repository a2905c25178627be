"""`Failing`: a controller that dies at one request to its store, before or after what that does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from penstock.model.errors import StorageError

Call = Callable[..., Awaitable[object]]


class Failing:
    """Makes one request of a store fail permanently, before or after its effect."""

    CALLS = ("segment_info", "segment_infos", "read", "append", "get_attribute", "update_attribute",
             "truncate_segment", "truncate_segments", "delete_segments",
             "table_get", "table_put", "table_remove", "table_entries")  # fmt: skip

    def __init__(self, store: object, step: int, *, is_applied: bool) -> None:
        self.store = store
        self.left = step
        self.is_applied = is_applied
        self.has_failed = False
        self.is_dead = False
        for name in self.CALLS:
            setattr(store, name, self.wrap(getattr(store, name)))

    def wrap(self, call: Call) -> Call:
        async def wrapped(*arguments: Any, **options: Any) -> object:
            if self.is_dead:
                raise StorageError("the controller is gone")
            self.left -= 1
            if self.left >= 0:
                return await call(*arguments, **options)
            self.has_failed = self.is_dead = True
            if self.is_applied:
                await call(*arguments, **options)
            raise StorageError("the controller is gone")

        return wrapped

    def undo(self) -> None:
        for name in self.CALLS:
            delattr(self.store, name)
