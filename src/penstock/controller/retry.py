"""Repeat safe requests a bounded number of times."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from penstock.controller.settings import ControllerSettings
from penstock.model.errors import OutcomeUnknownError, PenstockError, SegmentStoreBusyError, StorageFullError
from penstock.runtime.pacing import delay_after

T = TypeVar("T")
_logger = logging.getLogger(__name__)

_DELAY_FACTOR = 10


def delay_s(settings: ControllerSettings, attempt: int) -> float:
    """Return the wait in seconds after failed attempt number `attempt` (1, 2, ...)."""
    return delay_after(attempt, settings.retry_delay_ms_first, settings.retry_delay_ms_max, _DELAY_FACTOR) / 1000


def with_several_stores(settings: ControllerSettings) -> ControllerSettings:
    """Return the settings of a controller of several segment stores: shorter waits, and as many more attempts.

    A request to a container that moves would otherwise wait up to `retry_delay_ms_max` longer than the move takes.
    """
    longest_ms = min(settings.retry_delay_ms_max, settings.moved_retry_delay_ms_max)
    shorter = replace(settings, retry_delay_ms_max=longest_ms)
    missing_s = sum(
        delay_s(settings, attempt) - delay_s(shorter, attempt) for attempt in range(1, settings.attempts_max)
    )
    more = math.ceil(round(missing_s * 1000 / longest_ms, 6)) if longest_ms else 0
    return replace(shorter, attempts_max=settings.attempts_max + more)


def conflict_delay_s(settings: ControllerSettings, attempt: int, rng: random.Random) -> float:
    """Draw the wait in seconds after write number `attempt` (1, 2, ...) has lost against another controller's.

    The other write is complete, so the wait only has to separate the losers: it is short and random.
    """
    delay_ms = delay_after(attempt, settings.conflict_delay_ms_first, settings.conflict_delay_ms_max)
    return rng.uniform(0.0, delay_ms) / 1000


def may_repeat(error: PenstockError, *, is_idempotent: bool) -> bool:
    """Say whether a failed request may be sent again at once: the error may be transient, or the reply was lost.

    Not after a full disk or a reached limit, which may last for hours: the client gets the error and has its own
    retries. Work already begun is completed in the background.
    """
    if isinstance(error, (StorageFullError, SegmentStoreBusyError)):
        return False
    return error.is_retriable or (is_idempotent and isinstance(error, OutcomeUnknownError))


async def repeat(
    what: str, call: Callable[[], Awaitable[T]], settings: ControllerSettings, *, is_idempotent: bool
) -> T:
    """Await `call()` until it succeeds, at most `attempts_max` times.

    Errors with `is_retriable` are retried; with `is_idempotent` a lost reply is too. Other errors are raised at once,
    and the error of the last attempt is raised.
    """
    attempt = 1
    while True:
        try:
            return await call()
        except PenstockError as error:
            if not may_repeat(error, is_idempotent=is_idempotent) or attempt >= settings.attempts_max:
                raise
            _logger.info("%s: attempt %d failed (%s), trying again", what, attempt, error)
        await asyncio.sleep(delay_s(settings, attempt))
        attempt += 1
