"""What the model of retention lets pass, and what it does not."""

from __future__ import annotations

import pytest

from penstock.model.policies import Retention, RetentionKind
from penstock_simulation.checks.retained import RetainedModel, chunks_too_many


def by_size(least: int = 100, most: int = 1000) -> RetainedModel:
    return RetainedModel(Retention(RetentionKind.BY_SIZE, least, most), made_s=0.0, said={"group": 0})


def by_time(least_s: float = 2.0, most_s: float = 10.0) -> RetainedModel:
    policy = Retention(RetentionKind.BY_TIME, int(least_s * 1000), int(most_s * 1000))
    return RetainedModel(policy, made_s=0.0, said={"group": 0})


def test_minimum_by_size_counts_bytes_after_the_head() -> None:
    model = by_size()
    model.acknowledge("group", 900)
    assert model.judge(800, 1.0, 900) == []
    model.acknowledge("group", 1000)
    assert "has 99 bytes" in model.judge(901, 1.0, 1000)[0]


def test_unread_events_are_truncated_only_past_the_maximum() -> None:
    model = by_size()
    model.see_cut(1.0, 300)
    model.see_cut(2.0, 600)
    assert model.judge(500, 3.0, 1300) == []
    assert "a subscriber has read to 0" in model.judge(700, 3.0, 1599)[0]
    later = by_size()
    later.see_cut(2.0, 600)
    assert later.judge(700, 3.0, 1600) == []


def test_without_a_maximum_no_unread_event_is_truncated() -> None:
    model = by_size(most=0)
    model.acknowledge("group", 500)
    assert model.judge(500, 1.0, 10_000) == []
    assert model.judge(501, 1.0, 10_000)


def test_the_slowest_subscriber_counts() -> None:
    model = by_size()
    model.said["other"] = 0
    model.acknowledge("group", 700)
    model.acknowledge("other", 200)
    assert model.judge(200, 1.0, 900) == []
    assert "read to 200" in model.judge(300, 1.0, 900)[0]


def test_minimum_by_time_counts_from_when_the_last_byte_before_can_have_been_written() -> None:
    model = by_time()
    model.see_length(5.0, 400)
    model.acknowledge("group", 1000)
    assert model.judge(400, 6.5, 1000) == []
    assert "1.900 s old" in model.judge(401, 6.9, 1000)[0]


def test_maximum_by_time_counts_from_the_cut_before() -> None:
    model = by_time()
    model.see_cut(1.0, 300)
    model.see_cut(4.0, 600)
    assert model.judge(600, 11.1, 1000) == []
    assert "of 4.000 s" in model.judge(700, 13.9, 1000)[0]


def test_a_head_that_moves_back_is_reported() -> None:
    model = by_size()
    model.acknowledge("group", 800)
    assert model.judge(500, 1.0, 900) == []
    assert "began at 500 before" in model.judge(400, 1.0, 900)[0]


@pytest.mark.parametrize(("head", "left"), [(0, []), (99, []), (100, ["a"]), (250, ["a", "b"]), (9_000, ["a", "b"])])
def test_chunks_before_the_one_that_holds_the_head_are_too_many(head: int, left: list[str]) -> None:
    assert chunks_too_many({"a": 0, "b": 100, "c": 250}, head) == left
    assert chunks_too_many({"a": 0, "again": 0}, head) == []
