"""`LayoutSettings`: how a store treats segments that an older Pravega left in long-term storage (PDP-34).

The older layout is RollingStorage. Its data are adopted in place, and from then on written in the new layout. This
cannot be undone, so a mode that precedes the current one is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from penstock.model.errors import StorageLayoutError
from penstock.runtime.fixed_values import fixed
from penstock.segmentstore.later_format import LaterFormatError


class LayoutMode(StrEnum):
    """The four modes of PDP-34, by its names.

    The first two concern writing the older layout, which this store never does: an older Pravega serves then, and a
    store with such a setting does not start. `INSTALL_NEW` does not search for older segments.
    """

    NO_UPGRADE = "no_upgrade"
    CODE_ONLY_UPGRADE = "code_only_upgrade"
    LAYOUT_UPGRADE = "layout_upgrade"
    INSTALL_NEW = "install_new"


#: Key of the layout mode of the last incarnation, unless that is `install_new`.
LAYOUT_KEY = b"\0layout"
#: Mode -> modes that may follow it.
_FOLLOWING = {
    LayoutMode.INSTALL_NEW: (LayoutMode.INSTALL_NEW, LayoutMode.LAYOUT_UPGRADE),
    LayoutMode.LAYOUT_UPGRADE: (LayoutMode.LAYOUT_UPGRADE,),
}


@dataclass(frozen=True, slots=True)
class LayoutSettings:
    """How segments in the layout of an older Pravega are treated. See docs/rolling-storage.md.

    Attributes:
        mode: `install_new`: older segments are not searched; `layout_upgrade`: each is adopted permanently on its first
            request. With `no_upgrade` and `code_only_upgrade`, under which an older Pravega serves, nothing starts. Not
            given: unchanged, and `install_new` at first.
        adopted_bytes_max: maximum length of a segment that is adopted on request: it is read before it is served.
            Longer ones require `penstock storage import`.
        lookup_timeout_s: time limit of the lookup of an older segment.
    """

    mode: LayoutMode | None = None
    adopted_bytes_max: int = fixed(1024 * 1024 * 1024)
    lookup_timeout_s: float = fixed(30.0)


def layout_of(pinned: Mapping[bytes, bytes]) -> LayoutMode:
    """Return the mode of the last incarnation from a container's pinned records.

    Raises `LaterFormatError` for a mode of a later version.
    """
    stored = pinned.get(LAYOUT_KEY, LayoutMode.INSTALL_NEW.encode()).decode(errors="replace")
    try:
        return LayoutMode(stored)
    except ValueError as error:
        known = ", ".join(LayoutMode)
        raise LaterFormatError("mode of layout", found=stored, known=known, oldest=known) from error


def next_mode(before: LayoutMode, wanted: LayoutMode | None) -> LayoutMode:
    """Return the mode of a container that ran under `before`. Raises `StorageLayoutError` if it cannot be `wanted`."""
    mode = wanted or before
    if mode not in _FOLLOWING:
        raise StorageLayoutError(
            f"segment_store.container.layout.mode is {mode}: in this mode an older Pravega serves and writes its own "
            "layout, which this store does not; to import its segments permanently, stop it and set "
            f"{LayoutMode.LAYOUT_UPGRADE}"
        )
    if mode not in _FOLLOWING[before]:
        raise StorageLayoutError(
            f"segment_store.container.layout.mode is {mode}, but this store has run in mode {before}, which cannot be "
            f"reverted: set it to {before}, or omit it"
        )
    return mode
