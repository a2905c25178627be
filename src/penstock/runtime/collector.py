"""Python's garbage collector in a server: what is looked at, and how often."""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping

#: Objects made, less those that went by themselves, between two collections of the youngest. Python's 700 are made by
#: a few appends; nearly all of them go by themselves soon, and each collection in between looks at them for nothing.
_YOUNG_OBJECTS_MAX = 2_000
#: What lives on is looked at again after a few of these, before it is so much that the look takes 10 ms. What lives on
#: then is put away: no collection looks at it any more, until ...
_YOUNG_COLLECTIONS_MAX = 1
#: ... there are twice as many objects, of any kind, as there were after the last look at all, and so many more. Such a
#: look takes 20 ms for 100 000.
_GROWTH_MIN = 5_000_000
#: Collections of the middle between two of all: where things are put away there is nothing in between to look at.
_MIDDLE_COLLECTIONS_MAX = 0


#: Objects made since the last look that are worth one when it is known that they live long.
_LASTING_OBJECTS_MIN = 1_600

_is_settled = False


class _PutAway:
    """Puts away what has outlived two collections, so that none ever looks at much.

    Python's own looks at all objects come whenever a quarter is new, and take seconds in a process that keeps millions.
    What is put away goes when nothing refers to it, as always; only a cycle that becomes garbage there stays until the
    next look at all. That comes when there are twice as many objects, so such cycles never are more than what was there
    after the last look, and `growth_min`. A process that grows looks at all seldom, one that does not never.
    """

    def __init__(self, growth_min: int) -> None:
        self._growth_min = growth_min
        self._begin()

    def _begin(self) -> None:
        self._is_all_awaited = False
        # Told from the allocator's pages, in a millisecond; to count what is put away takes as long as a look at it.
        self._objects_max = 2 * sys.getallocatedblocks() + self._growth_min

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        """Be told of a collection by Python; it begins none itself."""
        if phase != "stop" or info["generation"] == 0:
            return
        if info["generation"] == 2:
            gc.freeze()
            self._begin()
        elif self._is_all_awaited:
            return
        elif sys.getallocatedblocks() > self._objects_max:
            # The next collection is one of all: nothing lies between.
            gc.unfreeze()
            self._is_all_awaited = True
        else:
            gc.freeze()


def settle_collector() -> None:
    """Tell the collector that the process has started.

    What the start left lives as long as the process: no collection needs to look at it again. From now on young objects
    are looked at more seldom; 2000 of them take about half a millisecond if they live on, and next to nothing if not.
    Python counts what goes against what is made, so that where many old objects go there are several times as many
    young ones. What then lives on is put away likewise, see `_PutAway`. Once is enough.
    """
    global _is_settled  # the collector is the process's, too
    gc.collect()
    gc.freeze()
    if not _is_settled:
        _is_settled = True
        gc.callbacks.append(_PutAway(_GROWTH_MIN))
    gc.set_threshold(_YOUNG_OBJECTS_MAX, _YOUNG_COLLECTIONS_MAX, _MIDDLE_COLLECTIONS_MAX)


def let_live() -> None:
    """Tell the collector, in the course of making very many objects, that what was just made lives long.

    Else it looks at all of them together sooner or later, which takes 20 ms for 100 000 and holds the process up. What
    is garbage among the young is collected first; of all else that lives at this moment, cycles that become garbage
    later stay for good. So this is for starts, not for what goes on all the time. Does nothing in a process that
    did not `settle_collector`: it may be somebody else's program.
    """
    if _is_settled and gc.get_count()[0] >= _LASTING_OBJECTS_MIN:
        gc.collect(1)
        gc.freeze()
