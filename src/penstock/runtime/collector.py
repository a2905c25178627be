"""Tuning of Python's garbage collector for servers: which objects a collection traverses, and how often."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping

#: Allocations minus deallocations between two collections of the youngest generation. Python's default of 700 is
#: reached after a few appends, whose objects are nearly all short-lived, so that most collections find nothing.
_YOUNG_OBJECTS_MAX = 2_000
#: Young collections between two of the middle generation, which must stay below 10 ms. Its survivors are frozen: no
#: later collection traverses them, until a full collection.
_YOUNG_COLLECTIONS_MAX = 1
#: A full collection runs when the process has twice as many objects, of any kind, as after the last one, plus this
#: many. It takes 20 ms for 100 000 objects.
_GROWTH_MIN = 5_000_000
#: Middle collections between two full ones. Survivors are frozen after each, so the middle generation stays empty.
_MIDDLE_COLLECTIONS_MAX = 0


#: Minimum number of new long-lived objects for which `let_live` runs a collection.
_LASTING_OBJECTS_MIN = 1_600

_is_settled = False


class _PutAway:
    """Freezes objects that have survived two collections, so that no collection traverses many objects.

    Python runs a full collection whenever a quarter of the objects is new, which takes seconds in a process that keeps
    millions. Frozen objects are still freed by their reference counts; only a cycle that becomes garbage stays until
    the next full collection. That runs when the number of objects has doubled, so garbage cycles never exceed the
    number of objects after the last full collection plus `growth_min`. A process that grows rarely runs a full
    collection; one that does not grow never runs one.
    """

    def __init__(self, growth_min: int) -> None:
        self._growth_min = growth_min
        self._begin()

    def _begin(self) -> None:
        self._is_all_awaited = False
        # Estimated from the allocator in a millisecond. Counting frozen objects takes as long as a full collection.
        self._objects_max = 2 * sys.getallocatedblocks() + self._growth_min

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """The callback of `gc.callbacks`. It starts no collection."""
        if phase != "stop" or info["generation"] == 0:
            return
        if info["generation"] == 2:
            gc.freeze()
            self._begin()
        elif self._is_all_awaited:
            return
        elif sys.getallocatedblocks() > self._objects_max:
            # The next collection of the middle generation is then a full one.
            gc.unfreeze()
            self._is_all_awaited = True
        else:
            gc.freeze()


def settle_collector() -> None:
    """Freeze what the start of the process has allocated, and set the thresholds of the collector.

    Objects made at start live as long as the process, so no collection needs to traverse them. Young collections become
    rarer; one of 2000 objects takes about half a millisecond if they survive, and almost nothing if not. Python counts
    allocations minus deallocations, so where many old objects are freed, a collection covers several times as many
    young ones. Survivors are frozen, see `_PutAway`. One call per process is enough.
    """
    global _is_settled  # The collector is global to the process, too.
    gc.collect()
    gc.freeze()
    if not _is_settled:
        _is_settled = True
        gc.callbacks.append(_PutAway(_GROWTH_MIN))
    gc.set_threshold(_YOUNG_OBJECTS_MAX, _YOUNG_COLLECTIONS_MAX, _MIDDLE_COLLECTIONS_MAX)


def let_live() -> None:
    """Freeze the objects that were just made, when the caller makes very many that live long.

    Otherwise a later collection traverses all of them at once, which takes 20 ms for 100 000 objects and blocks the
    process. Garbage among the young objects is collected first. All other objects that are alive now are frozen: cycles
    of them that become garbage later are not collected before the next full collection. So this is for the start, not
    for steady operation. Has no effect without `settle_collector`: the process may not be a server of ours.
    """
    if _is_settled and gc.get_count()[0] >= _LASTING_OBJECTS_MIN:
        gc.collect(1)
        gc.freeze()
