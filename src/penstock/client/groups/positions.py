"""`Positions`: when a reader's positions advance in its group."""

from __future__ import annotations

from enum import Enum


class Positions(Enum):
    """When a reader's positions advance in its group: see ``docs/reader-groups.md``."""

    #: An event is done when the application reads again. Positions are stored periodically, and on a clean close.
    AUTOMATIC = "automatic"
    #: An event is done when `Reader.commit` says so.
    MANUAL = "manual"
    #: As `AUTOMATIC`, but stored only at a clean end, or when a segment is given up or ends.
    AT_EXIT = "at_exit"
