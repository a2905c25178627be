"""`LayoutSettings`: what a store does about segments that an older Pravega left in long-term storage (PDP-34).

The older layout is RollingStorage. Its data are taken over as they lie, and from then on written in the new layout.
There is no way back, so a mode that says less than the one before is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from penstock.model.errors import StorageLayoutError


class LayoutMode(StrEnum):
    """The four modes of PDP-34, by its names.

    The first two are about writing the older layout, which this store never does: an older Pravega serves then, and a
    store with such a setting does not start. `INSTALL_NEW` looks for no older segments.
    """

    NO_UPGRADE = "no_upgrade"
    CODE_ONLY_UPGRADE = "code_only_upgrade"
    LAYOUT_UPGRADE = "layout_upgrade"
    INSTALL_NEW = "install_new"


#: Mode -> those that may follow it.
_FOLLOWING = {
    LayoutMode.INSTALL_NEW: (LayoutMode.INSTALL_NEW, LayoutMode.LAYOUT_UPGRADE),
    LayoutMode.LAYOUT_UPGRADE: (LayoutMode.LAYOUT_UPGRADE,),
}


@dataclass(frozen=True, slots=True)
class LayoutSettings:
    """What is done about segments in the layout of an older Pravega. See docs/rolling-storage.md.

    Attributes:
        mode: `install_new`: they are not looked for; `layout_upgrade`: each is taken over when somebody asks for it,
            for good. With `no_upgrade` and `code_only_upgrade`, under which an older Pravega serves, nothing starts.
            Not given: as before, and `install_new` at first.
        adopted_bytes_max: of a segment that is taken over because somebody asks for it: it is read before it is served.
            Longer ones are for `penstock storage import`.
        look_timeout_s: how long it may take to look whether there is one.
    """

    mode: LayoutMode | None = None
    adopted_bytes_max: int = 1024 * 1024 * 1024
    look_timeout_s: float = 30.0


def next_mode(before: LayoutMode, wanted: LayoutMode | None) -> LayoutMode:
    """Return the mode of a container that ran under `before`. Raises `StorageLayoutError` if it cannot be `wanted`."""
    mode = wanted or before
    if mode not in _FOLLOWING:
        raise StorageLayoutError(
            f"segment_store.container.layout.mode is {mode}: then an older Pravega serves, and writes its own layout, "
            "which this store does not; to take its segments over, for good, stop it and say "
            f"{LayoutMode.LAYOUT_UPGRADE}"
        )
    if mode not in _FOLLOWING[before]:
        raise StorageLayoutError(
            f"segment_store.container.layout.mode is {mode}, and this store has run under {before}, from which there "
            f"is no way back: set it to {before}, or leave it out"
        )
    return mode
