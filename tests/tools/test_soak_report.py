"""Growth, plots and report of the soak run, from made-up samples."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from penstock_tools.soak.growth import GrowthBound, judge, slope
from penstock_tools.soak.plots import plot
from penstock_tools.soak.report import write_report
from penstock_tools.soak.results import MIB
from penstock_tools.soak.run import commit_of

BOUND = GrowthBound("memory", "MiB", 0.1, 5)
BEGIN = 1_800_000_000.0


def test_the_slope_of_a_line_is_that_of_the_line_also_with_outliers() -> None:
    points = [(hours / 10, 50 + 3 * hours / 10) for hours in range(20)]
    assert slope(points) == pytest.approx(3)
    for at in (3, 9, 15):
        points[at] = (points[at][0], 900.0)
    assert slope(points) == pytest.approx(3, abs=0.5)


def test_noise_is_not_growth_and_a_leak_is() -> None:
    rng = random.Random(1)
    steady = [(at / 60, 100 + rng.uniform(-10, 10)) for at in range(60)]
    leaking = [(hours, value + 40 * hours) for hours, value in steady]
    assert judge(BOUND, "s1", steady).is_bounded is True
    found = judge(BOUND, "s1", leaking)
    assert found.is_bounded is False
    assert found.per_hour == pytest.approx(40, abs=5)
    assert found.permitted == pytest.approx(5 + 0.1 * 120, abs=1)


@pytest.mark.parametrize("points", [[], [(0.0, 1.0)] * 10, [(0.0, 1.0), (1.0, 9.0)]])
def test_too_few_samples_say_nothing(points: list[tuple[float, float]]) -> None:
    assert judge(BOUND, "s1", points).is_bounded is None


def test_a_plot_is_xml_and_has_each_series() -> None:
    text = plot("Memory <of> all", "MiB", {"a & b": [(0, 1), (1, 5)], "c": []}, hours=1, calm_hours=0.75, marks=[0.5])
    names = [element.text for element in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")]
    assert {"Memory <of> all, MiB", "a & b", "c"} <= set(names)


def made_run(directory: Path, *, leak_mib_per_hour: float = 0.0, violations: int = 0) -> None:
    """Write the files of a run of an hour."""

    def write(name: str, records: list[dict[str, object]]) -> None:
        (directory / name).write_text("".join(json.dumps(record) + "\n" for record in records))

    samples = []
    for minute in range(60):
        hours = minute / 60
        resident = round((80 + leak_mib_per_hour * hours) * MIB)
        processes = {
            name: {"pid": 1, "resident_bytes": resident if name == "s1 store 0" else 70 * MIB, "descriptors": 30}
            for name in ("s1 store 0", "s1 parent", "c1", "clients")
        }
        bucket = {part: {"objects": 100, "bytes": 50 * MIB} for part in ("data", "log")}
        samples.append(
            {"at": BEGIN + minute * 60, "load": 1.0, "processes": processes, "bucket": bucket, "zookeeper_nodes": 31}
        )
    write("run.jsonl", [{"begin": BEGIN, "seconds": 3600, "seed": 7, "commit": "0a1b2c3d"}, {"end": BEGIN + 3600}])
    write("samples.jsonl", samples)
    write("status.jsonl", [{"at": BEGIN + 10, "acknowledged": 5, "read": 5, "group_read": 4, "counts": {}}])
    write("faults.jsonl", [{"at": BEGIN + 60, "fault": "a store drained", "lasted_s": 1, "settled_s": 2}])
    write("violations.jsonl", [{"at": BEGIN, "text": f"event {number} is lost"} for number in range(violations)])


def test_a_run_without_faults_in_it_is_well(tmp_path: Path) -> None:
    made_run(tmp_path)
    (tmp_path / "notes.md").write_text("The machine was busy.\n")
    assert write_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "**Every promise was kept.** No resource grows beyond its bound." in page
    assert "**grows**" not in page
    assert "UTC, commit 0a1b2c3d, seed 7, " in page
    assert "The machine was busy." in page
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["is_over"]
    assert report["commit"] == "0a1b2c3d"
    assert {row["is_bounded"] for row in report["growth"]} == {True}
    assert all((tmp_path / name).exists() for name in ("soak-memory.svg", "soak-bucket-bytes.svg", "soak-lag.svg"))


def test_a_store_that_leaks_is_named(tmp_path: Path) -> None:
    made_run(tmp_path, leak_mib_per_hour=60)
    assert not write_report(tmp_path)
    grown = [row for row in json.loads((tmp_path / "report.json").read_text())["growth"] if row["is_bounded"] is False]
    assert [(row["resource"], row["of"]) for row in grown] == [("resident memory of segment stores", "s1 store 0")]


def test_nodes_that_stores_leave_when_they_end_are_no_growth_and_others_are(tmp_path: Path) -> None:
    """Only in the part without faults no store ends: from minute 45 of this hour on, and some minutes later."""
    for first, is_well in ((0, True), (46, False)):
        made_run(tmp_path)
        lines = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
        for minute, sample in enumerate(lines):
            sample["zookeeper_nodes"] = 31 + min(max(minute - first, 0), 44)
        (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in lines))
        assert write_report(tmp_path) is is_well


def test_a_broken_promise_is_in_the_report(tmp_path: Path) -> None:
    made_run(tmp_path, violations=2)
    assert not write_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "**2 broken promises.**" in page
    assert "- event 1 is lost" in page


def test_the_page_of_the_documents_names_its_images(tmp_path: Path) -> None:
    made_run(tmp_path)
    (tmp_path / "docs").mkdir()
    write_report(tmp_path, tmp_path / "docs")
    page = (tmp_path / "docs" / "soak.md").read_text()
    for image in (tmp_path / "docs" / "assets").glob("*.svg"):
        assert f"(assets/{image.name})" in page


def test_the_commit_of_a_run_is_that_of_its_checkout(tmp_path: Path) -> None:
    """A changed file is marked. A folder that is no checkout has no commit, as an unpacked source distribution."""
    assert commit_of(tmp_path) == ""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org"]
    (tmp_path / "file").write_text("1")
    for command in (["init", "-q"], ["add", "file"], ["commit", "-qm", "Add a file"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    full = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit_of(tmp_path) == full[:8]
    (tmp_path / "file").write_text("2")
    assert commit_of(tmp_path) == f"{full[:8]}+"
