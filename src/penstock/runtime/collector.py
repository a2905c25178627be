"""Python's garbage collector in a server: what is looked at, and how often."""

from __future__ import annotations

import gc

#: Objects made, less those that went by themselves, between two collections of the youngest. Python's 700 are made by
#: a few appends; nearly all of them go by themselves soon, and each collection in between looks at them for nothing.
_YOUNG_OBJECTS_MAX = 10_000
#: What lives on is looked at again after a few of these, before it is so much that the look takes 10 ms, ...
_YOUNG_COLLECTIONS_MAX = 2
#: ... and all of it together after so many of those.
_MIDDLE_COLLECTIONS_MAX = 200


#: Objects made since the last look that are worth one when it is known that they live long.
_LASTING_OBJECTS_MIN = 4_000

_is_settled = False


def settle_collector() -> None:
    """Tell the collector that the process has started.

    What the start left lives as long as the process: no collection needs to look at it again. From now on young objects
    are looked at more seldom; 10 000 of them take one or two milliseconds if they live on, and next to nothing if not.
    """
    global _is_settled  # the collector is the process's, too
    _is_settled = True
    gc.collect()
    gc.freeze()
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
