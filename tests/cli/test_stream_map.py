"""The segments of a stream over time: as text, as a picture, as JSON."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Client, Scaling
from penstock.cli.stream_map import map_lines, map_svg
from penstock.client.controller.stream_segments import SegmentRange
from penstock.client.streams.stream_history import StreamEpoch, StreamHistory
from penstock.model.names import SegmentId, segment_id
from support.command_line import Ran

Run = Callable[..., Ran]
_SVG = "{http://www.w3.org/2000/svg}"


def history_of(
    *epochs: list[tuple[int, float, float]], first: int = 0, count: int = 0, is_sealed: bool = False
) -> StreamHistory:
    """Return a history of segments, given as (id, low, high)."""
    made = tuple(
        StreamEpoch(
            first + index,
            tuple(SegmentRange("shop", "orders", SegmentId(number), low, high) for number, low, high in segments),
        )
        for index, segments in enumerate(epochs)
    )
    return StreamHistory("shop", "orders", made, count or first + len(epochs), is_sealed)


def equal(count: int, epoch: int = 0, number: int = 0) -> list[tuple[int, float, float]]:
    """Return segments with equal ranges."""
    return [(segment_id(number + index, epoch), index / count, (index + 1) / count) for index in range(count)]


SPLIT_AND_MERGED = history_of(
    equal(1), equal(2, 1, 1), [equal(2, 1, 1)[0], (segment_id(3, 2), 0.5, 0.75), (segment_id(4, 2), 0.75, 1.0)]
)


def test_text_shows_a_line_for_each_epoch() -> None:
    """Borders where segments begin, what is new filled, with its number."""
    assert map_lines(SPLIT_AND_MERGED) == [
        "EPOCH  SEGMENTS  KEYS",
        "    0         1  |=======================0=======================|",
        "    1         2  |===========1===========|===========2===========|",
        "    2         3  |                       |=====3=====|=====4=====|",
        "= new in that epoch, with its number; the id is the number + 2^32 times the epoch",
    ]  # fmt: skip


@pytest.mark.parametrize("count", [1, 10, 24, 48, 100, 200, 10_000])
def test_lines_are_short_however_many_segments_there_are(count: int) -> None:
    """Where several begin at one place there is one sign for them."""
    lines = map_lines(history_of(equal(count), equal(1, 1, count)))
    assert all(len(line) < 100 for line in lines)
    bars = [line.split(maxsplit=2)[2] for line in lines[1:3]]
    assert {len(bar) for bar in bars} == {49}
    assert ("#" in bars[0]) == (count > 48)


def test_text_says_that_there_were_epochs_before() -> None:
    """And how to see them."""
    lines = map_lines(history_of(equal(2, 7, 20), equal(1, 8, 30), first=7))
    assert "epochs 7 to 8 of 9: --epochs shows more" in lines


@pytest.mark.parametrize("count", [1, 10, 200, 10_000])
def test_picture_has_a_rectangle_for_each_life(count: int) -> None:
    """They cover all keys of all epochs; numbers are in those that have room; each tells the rest when pointed at."""
    history = history_of(equal(count), equal(count), equal(1, 2, count))
    root = ElementTree.fromstring(map_svg(history))
    groups = root.findall(f"{_SVG}g")
    assert len(groups) == count + 1
    area = sum(float(g.find(f"{_SVG}rect").get("width")) * float(g.find(f"{_SVG}rect").get("height")) for g in groups)
    height = float(root.get("height")) - 64 - 56
    assert area == pytest.approx(880 * height, rel=0.01)
    assert height <= 2400
    labels = [g.findtext(f"{_SVG}text") for g in groups]
    assert labels[-1] == str(count)
    assert (labels[0] == "0") == (count <= 200)
    assert groups[0].findtext(f"{_SVG}title") == (f"segment 0 (number 0): keys [0, {1 / count:.6g}), epochs 0 to 1")


def test_picture_of_many_epochs_names_some_of_them() -> None:
    """Labels do not run into each other; the picture stays of a size that can be inspected."""
    history = history_of(*(equal(1, epoch, epoch) for epoch in range(1000)), is_sealed=True)
    root = ElementTree.fromstring(map_svg(history))
    assert float(root.get("width")) <= 4100
    texts = [text.text for text in root.findall(f"{_SVG}text")]
    assert {"0", "1000"} & set(texts) == {"0"}
    assert "epochs 0 to 999 of 1000; 1 segment to the end: sealed" in texts
    numbers = [int(text.get("x").split(".")[0]) for text in root.findall(f"{_SVG}text") if text.text.isdecimal()]
    assert len(numbers) > 50


def test_a_scaled_stream_is_described_with_its_map(penstock: Run, penstock_client: Client, tmp_path: Path) -> None:
    """As text, into a file, and for programs; a stream that never changed needs none."""
    stream = "mapped/orders"
    penstock_client.create_stream(stream)
    assert "EPOCH" not in penstock("stream", "describe", stream).ok.stdout
    penstock_client.update_stream(stream, scaling=Scaling.fixed(2))
    text = penstock("stream", "describe", stream).ok.stdout
    assert "    1         2  |===========1===========|===========2===========|" in text
    picture = tmp_path / "map.svg"
    drawn = penstock("stream", "describe", stream, "--svg", str(picture)).ok.stdout
    assert f"the segments over time are drawn to {picture}" in drawn
    assert len(ElementTree.parse(picture).getroot().findall(f"{_SVG}g")) == 3
    told = penstock("stream", "describe", stream, "--json", "--epochs", "1").ok.json
    assert told["epoch_count"] == 2
    assert told["epochs"] == [
        {
            "epoch": 1,
            "segment_count": 2,
            "sealed": [],
            "created": [
                {"segment": segment_id(1, 1), "key_low": 0.0, "key_high": 0.5},
                {"segment": segment_id(2, 1), "key_low": 0.5, "key_high": 1.0},
            ],
        }
    ]
    both = penstock("stream", "describe", stream, "--json").ok.json
    assert both["epochs"][1]["sealed"] == [0]


def test_a_picture_that_cannot_be_written_is_reported(penstock: Run, penstock_client: Client, tmp_path: Path) -> None:
    """With the file and the reason."""
    penstock_client.create_stream("mapped/nowhere")
    failed = penstock("stream", "describe", "mapped/nowhere", "--svg", str(tmp_path / "none" / "map.svg"))
    assert failed.code == 2
    assert "cannot write" in failed.stderr
    assert "No such file or directory" in failed.stderr
