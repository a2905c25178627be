"""The report of a soak run: ``python -m penstock_tools.soak.report DIRECTORY``, also while it is running.

Writes ``report.md``, ``report.json`` and the plots into the directory of the run. ``--docs docs`` writes them as
``docs/soak.md`` and below ``docs/assets`` instead. Exits with 1 if a promise was broken or a resource grows.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock_tools.soak.growth import Growth
from penstock_tools.soak.plots import plot
from penstock_tools.soak.results import MIB, Results, is_controller, is_store
from penstock_tools.soak.run import CALM_SHARE, CONTAINERS, CONTROLLERS, STORES, ZOOKEEPERS
from support.cluster_faults import FAULTS

_SHOWN_MAX = 50
_PLOTS = "soak"

INTRODUCTION = f"""\
# Soak run

`./run soak --hours 2` runs a whole cluster under mixed load and faults, checks every promise all the time, and measures
what the processes use. This page is the report of the last run of that length; the command writes the same report for
yours.

| Part | What it does |
| --- | --- |
| Cluster | {STORES} segment stores, {CONTROLLERS} controllers and {ZOOKEEPERS} servers of ZooKeeper, each on a host \
of its own (network namespaces), {CONTAINERS} containers; logs and long-term storage are in one bucket of versitygw |
| Events | 3 writers, 8 routing keys each, about 150 events a second of 20 bytes to 100 KB |
| Readers | a reader of everything; a group of three readers that leave or die after about three minutes and are \
replaced |
| Transactions | 2 clients, one after another; three of ten are aborted |
| Tables | 2 clients change keys of their own and increment a shared counter, by conditional changes |
| Scaling | a stream is split or merged about every four minutes |
| Retention | the events of 15 minutes, the newest 32 MiB of the transactions; both not before the readers \
acknowledged them |
| Spark | a streaming query with a trigger of a minute |
| Export | `penstock export` of the transactions into Parquet files every ten minutes |
| Faults | drawn from the {{fault_kinds}} kinds of the [table of faults](guide/cluster.md), one about every \
minute and a half; a rolling restart of all stores and controllers every 25 minutes; none in the last quarter |

Checked with each event, batch or reply:

- each key's events are read in order, once, without a gap, with the bytes that were written;
- the group delivers each event once, and again only if the reader that had it died;
- of a committed transaction all events are read, once; of an aborted one none, by the reader and in the export;
- a key of a table has its last acknowledged value, or a later one of unknown outcome; no two increments return the \
same;
- the batches of the Spark query contain consecutive events of each key, and together all of them;
- after each fault, all containers are served again.

Slow answers are not failures here: the clients wait for up to half an hour. How long a fault may last for clients is
asserted by other tests, and listed in the [guide](guide/cluster.md).
"""


def _verdict(results: Results, growth: list[Growth]) -> str:
    grown = [each for each in growth if each.is_bounded is False]
    unknown = [each for each in growth if each.is_bounded is None]
    parts = [
        f"**{len(results.violations)} broken promises.**" if results.violations else "**Every promise was kept.**",
        f"**{len(grown)} of {len(growth)} series grow.**" if grown else "No resource grows beyond its bound.",
    ]
    if unknown:
        parts.append(f"{len(unknown)} series are too short to say.")
    if not results.is_over:
        parts.append("*The run is not over, or did not end in order: these are its figures so far.*")
    return " ".join(parts)


def _counts(results: Results) -> Iterator[str]:
    last = results.status[-1] if results.status else {}
    sample: dict[str, Any] = {**(results.samples[-1] if results.samples else {}), **results.end}
    counts = last.get("counts", {})
    yield "| What | Count |"
    yield "| --- | --- |"
    for text, value in (
        ("events acknowledged", last.get("acknowledged")),
        ("events read by the one reader", last.get("read")),
        ("events read by the group", last.get("group_read")),
        ("of these delivered again, after a reader died", last.get("group_repeated")),
        ("readers of the group started; died", f"{counts.get('readers started', 0)}; {counts.get('readers died', 0)}"),
        ("transactions committed; aborted", f"{last.get('committed')}; {last.get('aborted')}"),
        ("conditional changes of tables", counts.get("table changes", 0) + counts.get("table increments", 0)),
        ("scales", sum(count for kind, count in counts.items() if kind.startswith("scales"))),
        ("events in batches of the Spark query", sample.get("spark_events")),
        (
            "it has all events",
            {True: "yes", False: "no, it was late", None: "the run is not over"}[sample.get("spark_is_complete")],
        ),
        ("its failures, after which it was started again", sample.get("spark_failures", 0)),
        ("exports; failed", f"{sample.get('exports')}; {sample.get('exports_failed')}"),
        ("events exported", sample.get("exported")),
        ("errors of calls that clients saw", sum(count for kind, count in counts.items() if kind.startswith("error"))),
    ):
        yield f"| {text} | {f'{value:,}' if isinstance(value, int) else value} |"
    errors = {kind.removeprefix("error "): count for kind, count in counts.items() if kind.startswith("error ")}
    if errors:
        yield ""
        yield "Errors by kind: " + ", ".join(f"`{kind}` {count}" for kind, count in sorted(errors.items())) + "."


def _growth_table(growth: list[Growth]) -> Iterator[str]:
    yield "| Resource | Of | Median | Slope per hour | Permitted | Measured for | |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for each in growth:
        unit = f" {each.bound.unit}" if each.bound.unit else ""
        rate = "-" if each.per_hour is None else f"{each.per_hour:+.1f}{unit}"
        said = {True: "bounded", False: "**grows**", None: "too short"}[each.is_bounded]
        yield (
            f"| {each.bound.name} | {each.series} | {each.median:,.1f}{unit} | {rate} | {each.permitted:.1f}{unit} | "
            f"{each.hours * 60:.0f} min | {said} |"
        )


def _faults(results: Results) -> Iterator[str]:
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results.faults:
        kinds[each["fault"]].append(each)
    yield "| Fault | Times | Until all was served and even again, median / longest |"
    yield "| --- | --- | --- |"
    for name, found in sorted(kinds.items()):
        settled = [each["settled_s"] for each in found]
        yield f"| {name} | {len(found)} | {statistics.median(settled):.1f} / {max(settled):.1f} s |"


def write_plots(results: Results, folder: Path) -> dict[str, str]:
    """Write the plots; return their titles by the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    memory = results.of_process("resident_bytes", MIB)
    descriptors = results.of_process("descriptors")
    servers = [name for name in memory if is_store(name) or is_controller(name)]
    lag = [(results.hours(each), float(each["acknowledged"] - each["read"])) for each in results.status]
    group_lag = [(results.hours(each), float(each["acknowledged"] - each["group_read"])) for each in results.status]
    made = {
        "memory": ("Resident memory of servers", "MiB", {name: memory[name] for name in servers}),
        "client-memory": (
            "Resident memory of clients and of other servers", "MiB",
            {name: points for name, points in memory.items() if name not in servers and " parent" not in name},
        ),
        "descriptors": ("Open descriptors", "", {name: descriptors[name] for name in servers}),
        "bucket-bytes": (
            "Bytes in the bucket", "MiB",
            {
                "long-term storage": results.of_bucket("data", "bytes", MIB),
                "logs": results.of_bucket("log", "bytes", MIB),
            },
        ),
        "bucket-objects": (
            "Objects in the bucket", "",
            {"long-term storage": results.of_bucket("data", "objects"), "logs": results.of_bucket("log", "objects")},
        ),
        "zookeeper": ("Nodes in ZooKeeper", "", {"nodes": results.zookeeper_nodes}),
        "lag": ("Events acknowledged and not yet read", "", {"one reader": lag, "group": group_lag}),
    }  # fmt: skip
    marks = [results.hours(each) for each in results.faults]
    for name, (title, unit, series) in made.items():
        text = plot(
            title, unit, series, hours=max(results.length_hours, 1e-6), calm_hours=results.calm_hours, marks=marks
        )
        (folder / f"{_PLOTS}-{name}.svg").write_text(text)
    return {f"{_PLOTS}-{name}.svg": title for name, (title, _, _) in made.items()}


def markdown(results: Results, growth: list[Growth], images: dict[str, str], base: str) -> str:
    """Return the page. `base`: where its images are."""
    begun = datetime.fromtimestamp(results.begin, UTC)
    loads = [each["load"] for each in results.samples] or [0.0]
    commit = f"commit {results.commit}, " if results.commit else ""
    kinds = len({each["fault"] for each in results.faults})
    parts = [
        INTRODUCTION.replace("{fault_kinds}", str(len(FAULTS))),
        "## The run",
        f"{begun:%Y-%m-%d %H:%M} UTC, {commit}seed {results.seed}, {results.length_hours:.2f} of "
        f"{results.seconds / 3600:g} hours, {os.cpu_count()} cores, beside other work: load average "
        f"{statistics.median(loads):.1f} (median), {max(loads):.1f} (highest).",
        "",
        _verdict(results, growth),
        "",
        *([results.notes] if results.notes else []),
        *_counts(results),
        "",
    ]
    if results.violations:
        parts += ["### Broken promises", ""]
        parts += [f"- {each['text']}" for each in results.violations[:_SHOWN_MAX]]
        parts.append("")
    parts += [
        "## Growth",
        "The slope is the median of the slopes between all pairs of samples. Bucket and clients: after the first 30 % "
        "of the run. Servers: in the part without faults, where each is one process; shaded in the plots. ZooKeeper: "
        "there, too, because each store that ends leaves a node, of which the newest 1 000 are kept.",
        "",
        *_growth_table(growth),
        "",
        *(f"![{title}]({base}{name})\n" for name, title in images.items()),
        "The short lines at the bottom are faults.",
        "",
        "## Faults",
        f"{len(results.faults)} faults of {kinds} kinds. A cluster is even when every container is served by the store "
        "that it is assigned to, and no store has many more than another one. The times include the commands "
        "that ask for it.",
        "",
        *_faults(results),
        "",
    ]
    return "\n".join(parts)


def as_json(results: Results, growth: list[Growth]) -> dict[str, object]:
    """Return the report for programs."""
    return {
        "begin": results.begin,
        "seconds": results.seconds,
        "seed": results.seed,
        "commit": results.commit,
        "is_over": results.is_over,
        "violations": results.violations,
        "counts": results.status[-1] if results.status else {},
        "faults": len(results.faults),
        "growth": [
            {
                "resource": each.bound.name, "of": each.series, "unit": each.bound.unit,
                "median": round(each.median, 2),
                "per_hour": None if each.per_hour is None else round(each.per_hour, 3),
                "permitted_per_hour": round(each.permitted, 2), "hours": round(each.hours, 3),
                "is_bounded": each.is_bounded,
            }
            for each in growth
        ],
    }  # fmt: skip


def write_report(directory: Path, docs: Path | None = None, calm_share: float = CALM_SHARE) -> bool:
    """Write the report of a run; return whether every promise was kept and nothing grows."""
    results = Results.read(directory, calm_share)
    growth = results.growth()
    if docs is None:
        page, folder, data, base = directory / "report.md", directory, directory / "report.json", ""
    else:
        page, folder, data, base = docs / "soak.md", docs / "assets", docs / "assets" / "soak.json", "assets/"
    images = write_plots(results, folder)
    page.write_text(markdown(results, growth, images, base))
    data.write_text(json.dumps(as_json(results, growth), indent=1) + "\n")
    return not results.violations and all(each.is_bounded is not False for each in growth)


def main() -> int:
    """Write the report of a directory."""
    parser = argparse.ArgumentParser(prog="python -m penstock_tools.soak.report", description=__doc__)
    parser.add_argument("directory", type=Path, help="of the run")
    parser.add_argument("--docs", type=Path, help="directory of the documents: write soak.md there")
    arguments = parser.parse_args()
    return 0 if write_report(arguments.directory, arguments.docs) else 1


if __name__ == "__main__":
    sys.exit(main())
