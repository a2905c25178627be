"""Work that was begun and must be finished: one record type for all kinds.

The work is described by an `Order`, tagged with its kind; `penstock.controller.work.work_registry` maps kinds to the
functions that finish them. Stored form: ``docs/formats.md``; write access: ``docs/controller-ownership.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from penstock.controller.metadata.records import ScaleOrder
from penstock.model.policies import StreamConfig

#: Means any configuration version: see `TruncateStream`.
CONFIGURATION_ANY = -1


class SubjectKind(Enum):
    """Kinds of subjects of work."""

    STREAM = "stream"
    GROUP = "group"
    TABLE = "table"
    SCOPE = "scope"


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of work. `name` is empty for a scope.

    At most one piece of work is pending for each subject.
    """

    kind: SubjectKind
    scope: str
    name: str = ""

    @property
    def key(self) -> str:
        """Key of its announcement."""
        return f"{self.kind.value}/{self.scope}/{self.name}"

    @classmethod
    def of_key(cls, key: str) -> Subject:
        """Return the subject with this key."""
        kind, scope, name = key.split("/")
        return cls(SubjectKind(kind), scope, name)

    def __str__(self) -> str:
        if self.kind is SubjectKind.SCOPE:
            return f"scope {self.scope}"
        what = {SubjectKind.GROUP: "reader group", SubjectKind.TABLE: "key-value table"}.get(self.kind, "stream")
        return f"{what} {self.scope}/{self.name}"


class CreateStream(msgspec.Struct, frozen=True, tag_field="kind", tag="create_stream"):
    """Create a stream with this configuration."""

    configuration: StreamConfig


class UpdateStream(msgspec.Struct, frozen=True, tag_field="kind", tag="update_stream"):
    """Replace a stream's configuration."""

    configuration: StreamConfig


class TruncateStream(msgspec.Struct, frozen=True, tag_field="kind", tag="truncate_stream", omit_defaults=True):
    """Make a stream begin at a cut: segment id to offset in bytes.

    `configuration_version`: version of the configuration whose retention policy chose the cut. If another one is in
    force, nothing is truncated. `CONFIGURATION_ANY`: a caller chose the cut.
    """

    stream_cut: dict[int, int]
    configuration_version: int = CONFIGURATION_ANY


class SealStream(msgspec.Struct, frozen=True, tag_field="kind", tag="seal_stream"):
    """Make a stream accept no more data."""


class DeleteStream(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_stream"):
    """Delete a sealed stream."""


class CommitTransactions(msgspec.Struct, frozen=True, tag_field="kind", tag="commit_transactions"):
    """Merge a batch of a stream's transactions: the recorded batch, or the next one."""


class ScaleStream(msgspec.Struct, frozen=True, tag_field="kind", tag="scale_stream"):
    """Replace segments of a stream by others."""

    scale: ScaleOrder


class CreateGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="create_group"):
    """Create a reader group. Its record describes it; without a record nothing lasting was begun."""


class UpdateGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="update_group"):
    """Apply the new configuration in a reader group's record."""


class DeleteGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_group"):
    """Delete a reader group that its record marks as being deleted."""


class CreateTable(msgspec.Struct, frozen=True, tag_field="kind", tag="create_table"):
    """Create a key-value table as described in its record."""


class DeleteTable(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_table"):
    """Delete a key-value table that its record marks as being deleted."""


class DeleteScope(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_scope"):
    """Delete a scope with its contents."""


#: An order with its arguments. In the stored form ``kind`` identifies its type.
Order = (
    CreateStream
    | UpdateStream
    | TruncateStream
    | SealStream
    | DeleteStream
    | CommitTransactions
    | ScaleStream
    | CreateGroup
    | UpdateGroup
    | DeleteGroup
    | CreateTable
    | DeleteTable
    | DeleteScope
)


@dataclass(frozen=True, slots=True)
class PendingWork:
    """The announcement of a piece of work that was begun and must be finished.

    Attributes:
        subject: the subject of the work; the row's key follows from it.
        order: the work to do.
        life: id (a UUID) of the incarnation of the subject; a later one of the same name is not changed.
        owner: the controller that does it.
        created_ms: when it was announced, in milliseconds of the wall clock.
        work_id: a UUID that identifies this announcement.
        attempt: 1 for the controller that announced it, one more for each take-over.
    """

    subject: Subject
    order: Order
    life: str
    owner: str
    created_ms: int
    work_id: str
    attempt: int = 1

    @property
    def lane(self) -> Lane:
        """The lane in which it takes turns."""
        return Lane.COMMIT if isinstance(self.order, CommitTransactions) else Lane.CHANGE

    @property
    def kind(self) -> str:
        """The kind of work in words, for the log."""
        return str(self.order.__struct_config__.tag).replace("_", " ")


class Lane(Enum):
    """Kinds of work that take turns on a stream, so that neither many commits nor many changes starve the other."""

    CHANGE = "change"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A place in line for work that was blocked by other work on its subject.

    Attributes:
        subject: key of the subject.
        lane: the kind of work that waits.
        owner: the controller where it waits.
        ticket: a UUID that identifies this place.
    """

    subject: str
    lane: Lane
    owner: str
    ticket: str


@dataclass(frozen=True, slots=True)
class AnnouncementFence:
    """Counts the announcements of one bucket of subjects, and holds the line of waiting requests.

    Written with each announcement: a duplicate request to announce fails, and the same write uses up a place in line.
    """

    count: int
    waiting: tuple[WaitingRequest, ...] = ()
