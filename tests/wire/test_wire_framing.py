"""`FrameReceiver`: frames come out whole and in order however the bytes were split, and garbage is refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidArgumentError, ProtocolError
from penstock.wire.codec import FRAME_LENGTH_MAX
from penstock.wire.framing import FrameReceiver

Frame = tuple[int, bytes, bool]


def frame(type_code: int, payload: bytes) -> bytes:
    return struct.pack(">ii", type_code, len(payload)) + payload


def feed(receiver: FrameReceiver, data: bytes) -> list[Frame]:
    """Give `data` as one read after the other, each as long as the receiver has room for."""
    frames: list[Frame] = []
    while data:
        room = receiver.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        frames += [(code, bytes(payload), owned) for code, payload, owned in receiver.buffer_updated(count)]
        data = data[count:]
    return frames


def body(length: int) -> bytes:
    return (bytes(range(251)) * (length // 251 + 1))[:length]


def test_every_split_into_two_reads_gives_the_same_frames() -> None:
    sent = [(-127, b"\0\0\0\x10\0\0\0\5"), (100, b""), (4, body(70)), (1, b"x"), (9, body(33))]
    data = b"".join(frame(*one) for one in sent)
    for buffer_length in (48, 96, 1024):
        for split in range(len(data) + 1):
            receiver = FrameReceiver(buffer_length=buffer_length)
            received = feed(receiver, data[:split]) + feed(receiver, data[split:])
            assert received == [(code, payload, len(payload) + 8 > buffer_length) for code, payload in sent]
            assert receiver.incomplete_length == 0


def test_single_bytes_give_the_same_frames() -> None:
    sent = [(1, b""), (2, body(200)), (3, body(15)), (4, body(64))]
    for buffer_length in (8, 16, 64, 4096):
        receiver = FrameReceiver(buffer_length=buffer_length)
        received = []
        for byte in b"".join(frame(*one) for one in sent):
            received += feed(receiver, bytes([byte]))
        assert [one[:2] for one in received] == sent


@given(
    st.lists(st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.binary(max_size=300)), max_size=12),
    st.integers(8, 400),
    st.data(),
)
def test_any_frames_come_out_whole_under_any_splits(
    sent: list[tuple[int, bytes]], buffer_length: int, data: st.DataObject
) -> None:
    receiver = FrameReceiver(buffer_length=buffer_length)
    stream = b"".join(frame(*one) for one in sent)
    received: list[Frame] = []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        received += feed(receiver, stream[:count])
        stream = stream[count:]
    assert [one[:2] for one in received] == sent
    assert all(owned == (len(payload) + 8 > buffer_length) for _, payload, owned in received)
    assert receiver.incomplete_length == 0


def test_frames_inside_the_buffer_are_not_copied() -> None:
    receiver = FrameReceiver()
    data = frame(1, b"one") + frame(2, b"two")
    room = receiver.get_buffer()
    room[: len(data)] = data
    (_, one, _), (_, two, _) = receiver.buffer_updated(len(data))
    room[8] = ord("O")
    room[8 + 3 + 8] = ord("T")
    assert (bytes(one), bytes(two)) == (b"One", b"Two")


def test_an_owned_payload_is_not_changed_by_later_reads() -> None:
    receiver = FrameReceiver(buffer_length=64)
    long = frame(7, body(5000))
    kept = []
    data = long + long
    while data:
        room = receiver.get_buffer()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        kept += [payload for _, payload, owned in receiver.buffer_updated(count) if owned]
        data = data[count:]
    feed(receiver, frame(1, b"z" * 40) * 20)
    assert [bytes(payload) for payload in kept] == [body(5000), body(5000)]


def test_read_into_an_owned_frame_stops_at_its_end() -> None:
    receiver = FrameReceiver(buffer_length=64)
    start = frame(7, body(100))[:60]
    assert feed(receiver, start) == []
    assert receiver.incomplete_length == 60
    assert len(receiver.get_buffer()) == 48


def test_claimed_length_allocates_only_as_bytes_arrive() -> None:
    """A header that announces 16 MiB gets 16 KiB; memory stays within four times what has come."""
    receiver = FrameReceiver()
    feed(receiver, struct.pack(">ii", 3, FRAME_LENGTH_MAX - 8))
    assert len(receiver.get_buffer()) == 16 * 1024
    arrived = 0
    while arrived < 1024 * 1024:
        room = receiver.get_buffer()
        assert len(room) <= max(16 * 1024, 4 * arrived)
        count = min(len(room), 50_000)
        assert receiver.buffer_updated(count) == []
        arrived += count


def test_buffer_grows_when_reads_fill_it_and_shrinks_when_they_do_not() -> None:
    receiver = FrameReceiver()
    assert len(receiver.get_buffer()) == 16 * 1024
    small = frame(1, body(92))
    for _ in range(40):
        assert len(feed(receiver, small * 5000)) == 5000
    assert len(receiver.get_buffer()) == 256 * 1024
    for _ in range(31):
        feed(receiver, small)
    assert len(receiver.get_buffer()) == 256 * 1024
    feed(receiver, small)
    assert len(receiver.get_buffer()) == 16 * 1024


def test_reads_that_are_kept_short_give_the_same_frames_and_do_not_make_the_buffer_grow() -> None:
    receiver = FrameReceiver(buffer_length=1 << 20)
    sent = [(4, body(3000)) for _ in range(40)]
    data = b"".join(frame(*one) for one in sent)
    received: list[tuple[int, bytes]] = []
    while data:
        room = receiver.get_buffer(4000)
        assert 0 < len(room) <= 4000
        count = min(len(room), len(data))
        room[:count] = data[:count]
        received += [(code, bytes(payload)) for code, payload, _ in receiver.buffer_updated(count)]
        assert receiver.was_filled == (count == len(room))
        data = data[count:]
    assert received == sent
    assert len(receiver.get_buffer()) <= 16 * 1024


def test_a_long_frame_is_not_read_in_short_pieces() -> None:
    receiver = FrameReceiver(buffer_length=4096)
    head = frame(4, body(1 << 20))[:4096]
    receiver.get_buffer(100_000)[:4096] = head
    assert receiver.buffer_updated(4096) == []
    assert len(receiver.get_buffer(64)) > 64


def test_trim_keeps_a_frame_under_way_and_payloads_handed_out() -> None:
    receiver = FrameReceiver()
    data = frame(1, body(20_000)) * 20
    feed(receiver, data)
    feed(receiver, data[:100])
    receiver.trim()
    assert receiver.incomplete_length == 100
    room = receiver.get_buffer()
    rest = data[100:20_008]
    room[: len(rest)] = rest
    ((_, payload, owned),) = receiver.buffer_updated(len(rest))
    assert not owned
    receiver.trim()
    receiver.get_buffer()[:3] = b"new"
    assert bytes(payload) == body(20_000)
    assert len(receiver.get_buffer()) == 16 * 1024


@pytest.mark.parametrize("length", [-1, -(1 << 31), 93, (1 << 31) - 1])
def test_bad_length_is_refused_permanently(length: int) -> None:
    """Negative, or one byte past the largest frame; the message says what came; later calls raise it again."""
    receiver = FrameReceiver(frame_length_max=100)
    header = struct.pack(">ii", 77, length)
    assert feed(receiver, header[:7]) == []
    with pytest.raises(ProtocolError, match=r"frame of type 77 with .*received 0000004d") as first:
        feed(receiver, header[7:])
    with pytest.raises(ProtocolError) as second:
        receiver.get_buffer()
    with pytest.raises(ProtocolError):
        receiver.buffer_updated(0)
    assert second.value is first.value


def test_largest_frame_is_accepted() -> None:
    for buffer_length in (16, 64, 1000):
        receiver = FrameReceiver(frame_length_max=100, buffer_length=buffer_length)
        ((code, payload, _),) = feed(receiver, frame(77, body(92)))
        assert (code, payload) == (77, body(92))


@pytest.mark.parametrize("garbage", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-OpenSSH_9.6", b"\xff" * 20])
def test_other_protocols_are_refused(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        feed(FrameReceiver(), garbage)


@given(st.binary(max_size=500))
def test_arbitrary_bytes_raise_nothing_but_protocol_errors(garbage: bytes) -> None:
    try:
        feed(FrameReceiver(buffer_length=32), garbage)
    except ProtocolError:
        pass


def test_wrong_count_is_the_callers_mistake() -> None:
    receiver = FrameReceiver(buffer_length=16)
    with pytest.raises(InvalidArgumentError):
        receiver.buffer_updated(1)
    room = receiver.get_buffer()
    with pytest.raises(InvalidArgumentError):
        receiver.buffer_updated(len(room) + 1)
    with pytest.raises(InvalidArgumentError):
        receiver.buffer_updated(-1)


def test_bounds_that_can_not_work_are_refused() -> None:
    with pytest.raises(InvalidArgumentError):
        FrameReceiver(buffer_length=7)
    with pytest.raises(InvalidArgumentError):
        FrameReceiver(frame_length_max=7)
