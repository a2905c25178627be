"""Waits for tasks: `first_of` several, and `cancel_and_wait`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until all have ended. Their results and errors are discarded.

    A cancellation of the caller propagates after the tasks have ended.
    """
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def first_of(*waits: Awaitable[object], timeout_s: float | None = None) -> bool:
    """Wait until one of `waits` ends, and cancel the others. Return False if none has ended within `timeout_s`.

    Raises the error of one that has ended with an error.
    """
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel_and_wait(*tasks)
    for task in done:
        task.result()
    return bool(done)
