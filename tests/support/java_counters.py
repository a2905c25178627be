"""A state for the Java client's state synchronizer, in Python: named counters. Only for the Java process."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TypeVar

import jpype

from support.java_client import JavaObject, content_of

F = TypeVar("F", bound=Callable[..., object])


def java_method(method: F) -> F:
    """Make a method one of the Java interface's."""
    marked: F = jpype.JOverride(method)
    return marked


@jpype.JImplements("io.pravega.client.state.Revisioned")
class Counters:
    """The state at a revision."""

    def __init__(self, stream: JavaObject, revision: JavaObject, values: Mapping[str, int]) -> None:
        self.stream = stream
        self.revision = revision
        self.values = dict(values)

    @java_method
    def getScopedStreamName(self) -> JavaObject:
        """Return the stream that the state lives in."""
        return self.stream

    @java_method
    def getRevision(self) -> JavaObject:
        """Return where in the stream it is."""
        return self.revision


@jpype.JImplements("io.pravega.client.state.Update")
class Addition:
    """Add to a counter."""

    def __init__(self, name: str, amount: int) -> None:
        self.name = name
        self.amount = amount

    @java_method
    def applyTo(self, state: JavaObject, revision: JavaObject) -> JavaObject:
        """Return the next state."""
        values = {**state.values, self.name: state.values.get(self.name, 0) + self.amount}
        return Counters(state.stream, revision, values)


@jpype.JImplements("io.pravega.client.state.InitialUpdate")
class Beginning:
    """Set all counters: a state to begin with, and what a compaction writes."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self.values = dict(values)

    @java_method
    def create(self, stream: JavaObject, revision: JavaObject) -> JavaObject:
        """Return the first state."""
        return Counters(stream, revision, self.values)

    @java_method
    def applyTo(self, state: JavaObject, revision: JavaObject) -> JavaObject:
        """Return the next state."""
        return Counters(state.stream, revision, self.values)


@jpype.JImplements("io.pravega.client.stream.Serializer")
class Serializer:
    """JSON of both kinds of updates."""

    @java_method
    def serialize(self, update: JavaObject) -> JavaObject:
        """Return the bytes of an update."""
        fields = {"values": update.values} if isinstance(update, Beginning) else [update.name, update.amount]
        return jpype.JClass("java.nio.ByteBuffer").wrap(json.dumps(fields).encode())

    @java_method
    def deserialize(self, buffer: JavaObject) -> JavaObject:
        """Return the update of some bytes."""
        fields = json.loads(content_of(buffer))
        return Beginning(fields["values"]) if isinstance(fields, dict) else Addition(*fields)
