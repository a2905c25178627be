"""Resources of the cluster during the soak run, measured from outside: processes, bucket, ZooKeeper."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

from support.network_cluster import NetworkCluster


def sample(cluster: NetworkCluster, bucket: Path, others: dict[str, int | None]) -> dict[str, object]:
    """Measure once. `bucket`: its directory. `others`: process ids of clients, by name."""
    processes: dict[str, object] = {}
    for name, process in list(cluster.processes.items()):
        if process.is_running and process.process is not None:
            pid = process.process.pid
            _add(processes, name if name.startswith("c") else f"{name} parent", pid)
            for number, child in enumerate(_children(pid)):
                _add(processes, f"{name} store {number}", child)
    for name, pid_or_none in others.items():
        if pid_or_none is not None:
            _add(processes, name, pid_or_none)
    return {
        "at": round(time.time(), 3),
        "load": os.getloadavg()[0],
        "processes": processes,
        "bucket": bucket_sizes(bucket),
        "zookeeper_nodes": cluster.zookeepers.node_count(),
        "process_log_bytes": sum(process.log_path.stat().st_size for process in list(cluster.processes.values())),
    }


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _add(processes: dict[str, object], name: str, pid: int) -> None:
    """Add the figures of a process, unless it has just ended."""
    try:
        status = dict(
            line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
        )
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return
    if "VmRSS" not in status:
        return
    processes[name] = {
        "pid": pid,
        "resident_bytes": int(status["VmRSS"].split()[0]) * 1024,
        "descriptors": descriptors,
        "threads": int(status["Threads"]),
        "cpu_s": (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK"),
    }


def bucket_sizes(bucket: Path) -> dict[str, dict[str, int]]:
    """Return number and bytes of the objects of each first part of their names: ``log`` and ``data``."""
    count: Counter[str] = Counter()
    length: Counter[str] = Counter()
    for folder, _, names in os.walk(bucket):
        part = Path(folder).relative_to(bucket).parts[:1]
        for name in names:
            try:
                size = os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue
            count[part[0] if part else ""] += 1
            length[part[0] if part else ""] += size
    return {name: {"objects": count[name], "bytes": length[name]} for name in sorted(count)}
