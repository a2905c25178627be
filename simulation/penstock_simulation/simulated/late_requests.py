"""`LateRequests`: requests of the controller that arrive long after their caller has given them up.

A request delayed by a network, a kernel or a store is given up and sent again; then the first one arrives. At the seam
between the controller and segment stores this has two effects: a repeatable request is executed a second time, much
later (`duplicate_rate`); any other fails with a lost reply, and is executed much later or never (`stuck_rate`). The
late answer is discarded.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from penstock.model.errors import OutcomeUnknownError, PenstockError
from penstock.model.segments import VERSION_ANY, Segments, TableRemoval, TableUpdate

#: Writes that the controller repeats when a reply is lost; puts and removals only without versions.
_REPEATABLE = frozenset(
    {
        "create_segment", "delete_segment", "seal_segment", "truncate_segment", "update_policy", "merge_segments",
        "create_table", "delete_table", "delete_segments", "truncate_segments",
    }
)  # fmt: skip
_CONDITIONAL = frozenset({"table_put", "table_remove"})


@dataclass(frozen=True, slots=True)
class LateRequestSettings:
    """How often requests are late, and by how much.

    Attributes:
            duplicate_rate: probability that a repeatable request arrives a second time.
            stuck_rate: probability that a conditional request is not answered; it arrives late, or never.
            delay_s_max: longest delay.
    """

    duplicate_rate: float = 0.05
    stuck_rate: float = 0.02
    delay_s_max: float = 10.0


class LateRequests:
    """Wraps the `Segments` of a controller; everything except writes is passed through.

    Late requests are lost with the process that made them.
    """

    def __init__(
        self, segments: Segments, rng: random.Random, settings: LateRequestSettings, counts: Counter[str]
    ) -> None:
        self._segments = segments
        self._rng = rng
        self._settings = settings
        self._counts = counts
        self._late: set[asyncio.Task[None]] = set()
        #: Late requests are disabled from now on.
        self.is_healed = False

    def __getattr__(self, name: str) -> object:
        call = getattr(self._segments, name)
        if name not in _REPEATABLE and name not in _CONDITIONAL:
            return call

        async def forward(*arguments: object, **options: object) -> object:
            rng, settings = self._rng, self._settings
            may_repeat = name in _REPEATABLE or _is_unconditional(arguments[1])
            if not self.is_healed and not may_repeat and rng.random() < settings.stuck_rate:
                if rng.random() < 0.7:
                    self._send_late(lambda: call(*arguments, **options))
                self._counts["late request"] += 1
                raise OutcomeUnknownError(f"{name}: no reply")
            result = await call(*arguments, **options)
            if not self.is_healed and may_repeat and rng.random() < settings.duplicate_rate:
                self._send_late(lambda: call(*arguments, **options))
                self._counts["late duplicate"] += 1
            return result

        return forward

    def _send_late(self, call: Callable[[], Awaitable[object]]) -> None:
        delay_s = self._rng.random() ** 2 * self._settings.delay_s_max
        task = asyncio.get_running_loop().create_task(self._arrive(call, delay_s), name="late request")
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _arrive(self, call: Callable[[], Awaitable[object]], delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        try:
            await call()
        except PenstockError:
            return


def _is_unconditional(changes: object) -> bool:
    return all(change.version == VERSION_ANY for change in cast("list[TableUpdate | TableRemoval]", changes))
