"""``penstock retention explain``: what it says, as text, as JSON and as a picture."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import pytest

import penstock
from penstock.cli.retention_map import explanation_lines, explanation_svg
from penstock.client.controller.retention import (
    REASONS,
    RecordedCut,
    RetentionExplanation,
    RetentionSubscriber,
    StreamPlace,
)
from penstock.controller.retention.decision import RetentionRow
from penstock.controller.settings import ControllerSettings, RetentionSettings
from penstock.model.policies import Retention
from penstock.model.stream_cuts import StreamCut
from penstock.rpc import additions_pb2 as added
from penstock.rpc import controller_pb2 as pb
from penstock.rpc.controller_pb2_grpc import ControllerServiceStub
from penstock.runtime.portal import Portal
from penstock.server.settings import StandaloneSettings
from penstock.server.standalone import Standalone
from support.command_line import run_command

from .conftest import Run

_SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    """A server that never checks retention by itself."""
    settings = StandaloneSettings(
        is_memory=True, host="127.0.0.1", controller_port=0, segment_store_port=0,
        controller=ControllerSettings(retention=RetentionSettings(interval_s=90_000.0)),
    )  # fmt: skip
    portal = Portal("retention-server")
    server = Standalone(settings)
    portal.call(server.start(), 60)
    yield server.controller_uri
    portal.call(server.stop(), 60)
    portal.close()


@pytest.fixture
def run(uri: str) -> Run:
    return partial(run_command, uri=uri)


def place(size_bytes: int) -> StreamPlace:
    return StreamPlace(StreamCut("shop", "orders", {0: size_bytes}), size_bytes)


def explanation(**changes: object) -> RetentionExplanation:
    """Return one of a stream of 28 KiB whose slow subscriber lets 4 KiB go."""
    kib = 1024
    fields: dict[str, object] = {
        "stream": "shop/orders", "policy": Retention.by_size(10 * kib, 40 * kib), "is_sealed": False,
        "is_enabled": True, "row": "SIZE_BETWEEN", "head": place(100 * kib), "tail": place(128 * kib),
        "chosen": place(107 * kib), "bound": place(107 * kib), "min_cut": RecordedCut(40, 117 * kib),
        "max_cut": RecordedCut(200, 100 * kib),
        "cuts": tuple(RecordedCut(300 - 100 * number, (100 + 7 * number) * kib) for number in range(3)),
        "cut_count": 3, "subscriber_count": 2, "is_cut_due": True, "interval_s": 30.0, "next_scan_s": 12.3,
        "subscribers": (
            RetentionSubscriber("shop/slow", True, place(107 * kib), True),
            RetentionSubscriber("shop/late", False, place(128 * kib), False),
        ),
    }  # fmt: skip
    return RetentionExplanation(**{**fields, **changes})  # type: ignore[arg-type]


def test_the_text_names_what_is_truncated_why_and_which_subscriber_holds_the_head() -> None:
    """Below it the stream from head to tail: cuts, limits and subscribers in their places."""
    assert explanation_lines(explanation()) == [
        "stream shop/orders: keeps 10.0 KiB, at most 40.0 KiB for subscribers that lag",
        "  holds      28.0 KiB",
        "  now        7.0 KiB would be deleted",
        "  because    the subscribers' unread data is between the minimum and the maximum, so their positions decide",
        "  held by    shop/slow, with 21.0 KiB unread",
        "  cuts       3 recorded, 1m40s to 5m old; the next scan records another",
        "  next scan  in 12s",
        "",
        "             head                                         tail",
        "  stream     [xxxxxxxxxxx====================================]  x 7.0 KiB to delete, = 21.0 KiB to keep",
        "  cuts       |           |           |                          | one, # several",
        "  maximum    ^                                                  a cut 3m20s old, 28.0 KiB after it",
        "  minimum                                 ^                     a cut 40s old, 11.0 KiB after it",
        "  shop/slow              #                                      21.0 KiB unread, holds the head",
        "  shop/late                                                  ^  0 B unread, has published nothing",
    ]


def test_text_explains_a_stream_that_is_not_truncated() -> None:
    """No policy, a sealed stream, retention switched off, nothing before the head, and no subscriber that holds it."""

    def line(what: str, **changes: object) -> str:
        found = [each for each in explanation_lines(explanation(**changes)) if each.startswith(f"  {what} ")]
        return found[0].split(maxsplit=2 if " " in what else 1)[-1]

    nothing: dict[str, object] = {"chosen": None}
    assert explanation_lines(explanation(policy=None, row="", **nothing)) == [
        "stream shop/orders: keeps everything",
        "  holds      28.0 KiB",
        "  now        nothing is deleted: the stream has no retention policy",
    ]
    assert line("now", is_sealed=True, **nothing) == "nothing is deleted: the stream is sealed"
    assert line("next scan", is_sealed=True, **nothing) == "none"
    assert "retention is switched off" in line("now", is_enabled=False)
    assert line("next scan", next_scan_s=None) == "within 30s, by another controller"
    assert line("next scan", next_scan_s=0.0) == "now"
    assert line("because", **nothing).endswith("; but that cut does not exist, or is not after the stream's head")
    assert line("because", row="TIME_WITHOUT_CUT", **nothing) == "no recorded cut is as old as the minimum"
    assert line("because", row="ROW_99") == "ROW_99"  # Of a later release.
    assert line("held by", row="SIZE_PAST_MAX").startswith("none; shop/slow is furthest from the tail")
    assert line("cuts", cuts=(), cut_count=0) == "none is recorded, the next scan records one"


def test_each_row_has_a_reason_and_a_number_in_the_protocol() -> None:
    """None is forgotten when one is added."""
    assert set(REASONS) == {row.name for row in RetentionRow}
    assert set(added.RetentionExplanation.Row.keys()) == {"NONE", *REASONS}


def test_picture_is_complete_for_any_history() -> None:
    """Each cut, limit and subscriber is in it once, between head and tail; also with very many, and of an empty one."""
    many = tuple(
        RetentionSubscriber(f"shop/<group {number}>", True, place(107 * 1024), number < 90) for number in range(100)
    )
    for found in (
        explanation(),
        explanation(subscribers=many, subscriber_count=500),
        explanation(head=place(0), tail=place(0), chosen=None, cuts=(), cut_count=0, min_cut=None, max_cut=None),
        explanation(policy=None, row="", chosen=None, cuts=(), subscribers=(), min_cut=None, max_cut=None),
    ):
        root = ElementTree.fromstring(explanation_svg(found))
        shown = min(len(found.subscribers), 20)
        circles = root.findall(f"{_SVG}circle")
        assert len(circles) == shown + (found.min_cut is not None) + (found.max_cut is not None)
        assert all(224 <= float(circle.get("cx", "")) <= 944 for circle in circles)
        assert all(float(circle.get("cy", "")) < float(root.get("height", "")) for circle in circles)
        lines = explanation_lines(found)
        assert all(len(line) < 200 for line in lines)
    assert "480 more subscribers" in explanation_svg(explanation(subscribers=many, subscriber_count=500))


def test_a_stream_is_explained_from_the_command_line(run: Run, uri: str, tmp_path: Path) -> None:
    """Of a real server, with a subscriber that has published nothing; the client says the same, sync and by JSON."""
    with penstock.connect(uri) as client:
        client.create_stream("shop/orders", retention=penstock.Retention.by_size(100, 100_000))
        with client.event_writer("shop/orders") as writer:
            writer.write_many([bytes(92)] * 10)
        assert run("retention", "explain", "shop/orders").ok.lines[:4] == [
            "stream shop/orders: keeps 100 B, at most 97.7 KiB for subscribers that lag",
            "  holds      1000 B",
            "  now        nothing would be deleted",
            "  because    no group subscribes, so everything before the newest cut that keeps the minimum is deleted; "
            "but that cut does not exist, or is not after the stream's head",
        ]
        with grpc.insecure_channel(uri.removeprefix("tcp://")) as channel:
            config = pb.ReaderGroupConfiguration(
                scope="shop", readerGroupName="silent", retentionType=1,
                startingStreamCuts=[pb.StreamCut(streamInfo=pb.StreamInfo(scope="shop", stream="orders"))],
                endingStreamCuts=[pb.StreamCut(streamInfo=pb.StreamInfo(scope="shop", stream="orders"))],
                maxOutstandingCheckpointRequest=3, automaticCheckpointIntervalMillis=30_000,
                readerGroupId="00000000-0000-0000-0000-000000000000",
            )  # fmt: skip
            ControllerServiceStub(channel).createReaderGroup(config)
        found = client.explain_retention("shop/orders")
        assert found.row == "SIZE_BETWEEN"
        assert [(each.name, each.has_published, each.is_last) for each in found.subscribers] == [
            ("shop/silent", False, True)
        ]
        assert (found.kept_bytes, found.cut_bytes, found.chosen) == (1000, 0, None)
        assert found.tail.cut == client.tail("shop/orders")
        assert found.bound is not None
        assert found.bound.cut == client.head("shop/orders")
        assert found.next_scan_s is not None
        assert 80_000 < found.next_scan_s <= 90_000
        told = run("retention", "explain", "shop/orders", "--json", "--svg", str(tmp_path / "o.svg")).ok.json
        assert (told["type"], told["row"], told["bytes"], told["new_head"]) == ("retention", found.row, 1000, None)
        assert told["policy"] == {"kind": "by_size", "min": 100, "max": 100_000}
        (subscriber,) = told["subscribers"]  # type: ignore[misc]
        assert subscriber["subscriber"] == "shop/silent"  # type: ignore[has-type]
        assert subscriber["unread_bytes"] == 1000  # type: ignore[has-type]
        assert told["tail"] == {"cut": found.tail.cut.to_text(), "size_bytes": 1000}
        assert ElementTree.parse(tmp_path / "o.svg").getroot().tag == f"{_SVG}svg"
        failed = run("retention", "explain", "shop/orders", "--svg", str(tmp_path / "none" / "o.svg"))
        assert failed.code != 0
        assert "cannot write" in failed.stderr
        with pytest.raises(penstock.NoSuchStreamError):
            client.explain_retention("shop/none")
