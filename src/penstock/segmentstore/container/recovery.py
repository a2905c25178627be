"""Recovery: a container's state from its log.

Source: segment store specification, section 2.7.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.errors import CorruptionError
from penstock.segmentstore.container.frames import RecordReader
from penstock.segmentstore.container.operations import Checkpoint, decode_operation
from penstock.segmentstore.container.state import ContainerState
from penstock.segmentstore.tier1.durable_log import DurableLog, LogAddress


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery read: the last record's number, the last frame's address (None: an empty log), and counts."""

    last_sequence_number: int
    last_address: LogAddress | None
    operation_count: int
    frame_count: int
    byte_count: int
    has_checkpoint: bool


async def recover(log: DurableLog, state: ContainerState) -> Recovered:
    """Replay every frame of an opened log into an empty `state`.

    Raises `CorruptionError` when the frames cannot be what was written; nothing may be served then.
    """
    reader = RecordReader()
    last = 0
    operations = frames = byte_count = 0
    address: LogAddress | None = None
    has_checkpoint = False
    container = f"log of container {state.metadata.container_id}"
    async for frame in log.frames():
        frames += 1
        byte_count += len(frame.data)
        if address is not None and frame.address <= address:
            raise CorruptionError(container, frame.address, f"frame address does not follow {address}")
        address = frame.address
        try:
            for record in reader.feed(frame.data):
                number, operation = decode_operation(record)
                if not has_checkpoint:
                    if isinstance(operation, Checkpoint):
                        state.restore(operation.snapshot)
                        has_checkpoint = True
                        last = number
                    continue
                if number <= last:
                    raise ValueError(f"sequence number {number} does not follow {last}")
                last = number
                state.replay(number, operation)
                operations += 1
        except (KeyError, ValueError) as error:
            raise CorruptionError(container, frame.address, f"record cannot be replayed: {error!r}") from error
    if log.is_truncated and not has_checkpoint:
        # It was truncated right before a checkpoint that was durable. Without that the container would come up empty.
        raise CorruptionError(
            container, address or 0, "the log was truncated, but the checkpoint that it then began with is gone"
        )
    return Recovered(last, address, operations, frames, byte_count, has_checkpoint)
