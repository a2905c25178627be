"""`penstock bench` and `penstock top` against a server, in this process."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.cli.latencies import Latencies
from penstock.cli.top import lines_of
from penstock.client.statistics.statistics import ClusterStatistics, GroupLag, StoreLoad
from penstock.client.sync import Client

from .conftest import Run


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 1000.0), min_size=1, max_size=200), st.sampled_from([50, 95, 99, 99.9, 100]))
def test_percentiles_are_right_to_a_percent(seconds: list[float], percent: float) -> None:
    """Against the sorted list of all."""
    latencies = Latencies()
    for each in seconds:
        latencies.add(each)
    wanted = sorted(seconds)[max(0, -(-len(seconds) * percent // 100).__int__() - 1)]
    assert latencies.percentile_s(percent) == pytest.approx(wanted, rel=0.0101)
    assert latencies.max_s == max(seconds)


def test_of_no_measurements_there_are_no_percentiles() -> None:
    """0, and not an error; and what a clock cannot tell counts as the shortest there is."""
    latencies = Latencies()
    assert set(latencies.in_ms().values()) == {0.0}
    latencies.add(-1.0)
    assert latencies.count == 1


@pytest.mark.parametrize("more", [[], ["--rate", "20000"], ["--segments", "4", "--size", "8"]])
def test_a_written_load_is_counted_and_its_stream_deleted(penstock: Run, more: list[str]) -> None:
    """All of it is acknowledged; latencies are of one event in each step."""
    told = penstock("bench", "write", "--count", "3500", "--seconds", "60", "--json", *more).ok.json
    size = 8 if "--size" in more else 100
    assert (told["bench"], told["events"], told["bytes"]) == ("write", 3500, 3500 * size)
    latency = told["latency_ms"]
    assert isinstance(latency, dict)
    assert 0 < latency["p50"] <= latency["p95"] <= latency["p99"] <= latency["p99_9"] <= latency["max"]
    assert isinstance(told["latency_count"], int)
    assert told["latency_count"] >= 4
    assert penstock("stream", "list", "penstock-bench").code == 1


def test_a_load_ends_after_its_duration_and_keeps_a_named_stream(penstock: Run) -> None:
    """Which is read by the next measurement, whole."""
    penstock("stream", "create", "measured/stream").ok  # noqa: B018
    load = ("--stream", "measured/stream", "--seconds", "0.2", "--rate", "5000")
    told = penstock("bench", "write", *load, "--json").ok.json
    assert isinstance(told["events"], int)
    assert 0 < told["events"] <= 1001 + 5000
    read = penstock("bench", "read", "--stream", "measured/stream", "--json").ok.json
    assert (read["events"], read["bytes"]) == (told["events"], told["bytes"])
    assert "first events after" in penstock("bench", "read", "--stream", "measured/stream").ok.lines[1]


def test_a_stream_of_its_own_is_filled_and_read(penstock: Run) -> None:
    """And deleted."""
    read = penstock("bench", "read", "--count", "5000", "--segments", "3", "--json").ok.json
    assert (read["events"], read["bytes"], read["latency_count"]) == (5000, 500_000, 1)
    assert penstock("scope", "describe", "penstock-bench").code == 1


def test_latencies_from_end_to_end_are_of_all_events(penstock: Run) -> None:
    """Every one that was written is read."""
    told = penstock("bench", "end-to-end", "--count", "500", "--rate", "5000", "--seconds", "60", "--json").ok.json
    assert (told["events"], told["latency_count"]) == (500, 500)
    shown = penstock("bench", "end-to-end", "--count", "50", "--seconds", "60", is_screen=True)
    assert shown.code == 0
    assert "latency ms: p50" in shown.stdout
    assert "events/s" in shown.stdout


def test_top_shows_the_rates_of_a_cluster(penstock: Run, penstock_client: Client) -> None:
    """Once when the output is not a terminal; with JSON as often as requested."""
    penstock("stream", "create", "busy/stream").ok  # noqa: B018
    penstock("group", "create", "busy/group", "busy/stream").ok  # noqa: B018
    penstock("write", "busy/stream", stdin=b"0123456789\n" * 500).ok  # noqa: B018
    for _ in range(60):
        polls = [json.loads(line) for line in penstock("top", "--json", "-n", "1", "--rows", "1000").ok.lines]
        if "busy/stream" in {stream["name"] for stream in polls[0]["streams"]}:
            break
        penstock("top", "-n", "2", "--interval-s", "0.1")
    (poll,) = polls
    assert [(store["problem"], store["failures"]) for store in poll["stores"]] == [(None, {})]
    assert [container["id"] for container in poll["containers"]] == [0, 1, 2, 3]
    assert (poll["container_count"], poll["missing_containers"]) == (4, [])
    (group,) = [group for group in poll["groups"] if group["name"] == "busy/group"]
    assert (group["total_unread_bytes"], group["reader_count"]) == (9000, 0)
    shown = penstock("top", "--rows", "1000").ok.stdout
    assert "containers: 4 of 4" in shown
    assert any(line.split()[:1] == ["busy/stream"] for line in shown.splitlines())
    assert any(line.split() == ["busy/group", "0", "8.8", "KiB", "1"] for line in shown.splitlines())


def test_top_draws_on_a_terminal(penstock: Run) -> None:
    """On a screen of its own, which is left again."""
    drawn = penstock("top", "-n", "2", "--interval-s", "0.1", is_screen=True)
    assert (drawn.code, drawn.stderr) == (0, "")
    assert drawn.stdout.startswith("\x1b[?1049h")
    assert drawn.stdout.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h"))
    assert drawn.stdout.count("containers: 4 of 4") >= 2


def test_top_shows_problems_first() -> None:
    """A store that is silent, storage that is away, containers that do not run, groups that cannot be inspected."""
    found = ClusterStatistics(
        stores={
            "a:1": StoreLoad("a:1", problem="no answer within 2 s"),
            "b:1": StoreLoad("b:1", storage_problem="not mounted", failures={3: "its log is damaged"}),
        },
        containers={},
        segments={},
        groups={
            "s/g": GroupLag("s/g", {}, 0, 0, problem="its stream is gone"),
            "s/h": GroupLag("s/h", {}, 1, 904, recreated=["s/orders"]),
            "s/i": GroupLag("s/i", {}, 0, 904, is_finished=True),
        },
        missing_containers=(1, 2),
        container_count=4,
    )
    lines = lines_of(found, 15)
    assert lines[0].startswith("0 events/s")
    assert lines[1:9] == [
        "! store a:1 does not answer: no answer within 2 s",
        "! store b:1, long-term storage: not mounted",
        "! store b:1, container 3 does not run: its log is damaged",
        "! no report of containers 1, 2",
        "! group s/g: its stream is gone",
        "! group s/h: stream s/orders was deleted and created again; it does not read the new stream",
        "! group s/h: segments without a reader: 904",
        "  group s/i is finished: it read every stream to its end",
    ]
    many = replace(found, groups={f"s/{index}": GroupLag(f"s/{index}", {}, 0, 0) for index in range(20)})
    assert "... and 5 more groups" in lines_of(many, 15)
