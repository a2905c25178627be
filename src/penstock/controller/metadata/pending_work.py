"""Work that was begun and must be finished: one record for every kind of it.

What is to be done is an `Order`, tagged with its kind; `penstock.controller.work_registry` knows which function
finishes it. Stored form: ``docs/formats.md``; who may write it: ``docs/controller-ownership.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from penstock.controller.metadata.records import ScaleOrder
from penstock.model.policies import StreamConfig

#: Version of no configuration: see `TruncateStream`.
CONFIGURATION_ANY = -1


class SubjectKind(Enum):
    """What work can be about."""

    STREAM = "stream"
    GROUP = "group"
    TABLE = "table"
    SCOPE = "scope"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is worked on. `name` is empty for a scope.

    At most one piece of work is pending for each.
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

    `configuration_version`: of the configuration whose retention policy chose the cut. With another one in force
    nothing is truncated. `CONFIGURATION_ANY`: a caller chose it.
    """

    stream_cut: dict[int, int]
    configuration_version: int = CONFIGURATION_ANY


class SealStream(msgspec.Struct, frozen=True, tag_field="kind", tag="seal_stream"):
    """Let a stream take nothing more."""


class DeleteStream(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_stream"):
    """Delete a sealed stream."""


class CommitTransactions(msgspec.Struct, frozen=True, tag_field="kind", tag="commit_transactions"):
    """Merge a batch of a stream's transactions: the one on record, or the next one."""


class ScaleStream(msgspec.Struct, frozen=True, tag_field="kind", tag="scale_stream"):
    """Replace segments of a stream by others."""

    scale: ScaleOrder


class CreateGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="create_group"):
    """Create a reader group. What is wanted stands in its record; without one nothing that lasted was begun."""


class UpdateGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="update_group"):
    """Give a reader group the configuration that its record says is to come."""


class DeleteGroup(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_group"):
    """Delete a reader group whose record says so."""


class CreateTable(msgspec.Struct, frozen=True, tag_field="kind", tag="create_table"):
    """Create a key-value table as its record says."""


class DeleteTable(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_table"):
    """Delete a key-value table whose record says so."""


class DeleteScope(msgspec.Struct, frozen=True, tag_field="kind", tag="delete_scope"):
    """Delete a scope with all that it holds."""


#: What was ordered, with its arguments. In the stored form ``kind`` says which of them it is.
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
        subject: what is worked on; the row's key follows from it.
        order: what is to be done there.
        life: id (a UUID) of the life of the subject that is meant; a later one of the same name is left alone.
        owner: the controller that does it.
        created_ms: when it was announced, in milliseconds of the wall clock.
        work_id: a UUID that tells this announcement from every other one.
        attempt: 1 for the controller that announced it, one more for each that took it over.
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
        """What it takes turns with."""
        return Lane.COMMIT if isinstance(self.order, CommitTransactions) else Lane.CHANGE

    @property
    def kind(self) -> str:
        """What is done, in words, for the log."""
        return str(self.order.__struct_config__.tag).replace("_", " ")


class Lane(Enum):
    """Kinds of work that take turns on a stream, so that neither many commits nor many changes keep the others out."""

    CHANGE = "change"
    COMMIT = "commit"


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A name in line: somebody who has found other work where he wants to begin his own.

    Attributes:
        subject: key of what is to be worked on.
        lane: what kind of work waits.
        owner: the controller where it waits.
        ticket: a UUID that tells this name from every other one.
    """

    subject: str
    lane: Lane
    owner: str
    ticket: str


@dataclass(frozen=True, slots=True)
class AnnouncementFence:
    """Counts the announcements of one bucket of names, and has the line of those who wait to make one.

    Written with each announcement: no request to announce works twice, and a name in line is used up by the same write.
    """

    count: int
    waiting: tuple[WaitingRequest, ...] = ()
