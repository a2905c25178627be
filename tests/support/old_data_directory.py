"""Makes the data directories of `tests/data/data-directories`, each with the code of an earlier commit.

    git worktree add --detach /tmp/old COMMIT
    PYTHONPATH=/tmp/old/src python tests/support/old_data_directory.py NAME.tar.xz --end kill

NAME is the commit's date and number. It uses only what all of these commits have. What it writes, the constants say;
`tests/e2e/test_old_data_directories.py` reads it with the code of today. A transaction stays open, its event is never
read. `--end kill` leaves the log as a crash does, `--end stop` as an orderly stop does.
"""

from __future__ import annotations

import argparse
import io
import lzma
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock import Client

#: Events of `old/events` by routing key, in order; 32 of them came by a transaction.
EVENTS = {f"key-{key}": [f"{key}:{number}" for number in range(16)] for key in range(8)}
#: Events of `old/sealed`.
SEALED = [f"sealed-{number}" for number in range(10)]
#: Key-value table `old/table`.
TABLE = {f"name-{number}": "changed" if number == 3 else f"value-{number}" for number in range(20) if number != 7}
#: How many events of `old/events` the group `audit` has read.
READ_COUNT = 24
CONTAINERS = 2
_SETTINGS = """
[segment_store.container]
flush_age_s = 0.2
writer_interval_s = 0.1
"""
_WAIT_S = 60.0


def write_all(uri: str) -> None:
    """Write all but the open transaction, through the client of the commit."""
    import penstock

    with penstock.connect(uri) as client:
        client.create_scope("old")
        client.create_stream("old/events", scaling=penstock.Scaling.fixed(2))
        client.create_stream("old/sealed")
        with client.event_writer("old/events") as writer:
            for number in range(8):
                for key in EVENTS:
                    writer.write(EVENTS[key][number].encode(), routing_key=key)
            writer.flush()
        with client.reader_group("audit", ["old/events"]) as group, group.reader("one") as reader:
            for _ in range(READ_COUNT):
                assert reader.read(timeout_s=_WAIT_S) is not None
            reader.commit()
        with client.begin_transaction("old/events") as transaction:
            for number in range(8, 12):
                for key in EVENTS:
                    transaction.write(EVENTS[key][number].encode(), routing_key=key)
        until_committed(client, transaction.id)
        with client.event_writer("old/events") as writer:
            for number in range(12, 16):
                for key in EVENTS:
                    writer.write(EVENTS[key][number].encode(), routing_key=key)
        with client.event_writer("old/sealed") as writer:
            for text in SEALED:
                writer.write(text.encode())
        client.seal_stream("old/sealed")
        client.create_table("old/table", key_length=16)
        with client.table("old/table", keys=penstock.TextKeys()) as table:
            for number in range(20):
                table.put(f"name-{number}", f"value-{number}".encode())
            table.put("name-3", b"changed")
            table.remove("name-7")


def until_committed(client: Client, transaction: str) -> None:
    """Return once a transaction of `old/events` is part of the stream: a commit returns before that."""
    deadline = time.monotonic() + _WAIT_S
    while (state := str(client.transaction_state("old/events", transaction)).lower()) != "committed":
        if time.monotonic() > deadline:
            raise TimeoutError(f"the transaction is {state}")
        time.sleep(0.05)


def leave_a_transaction_open(uri: str) -> object:
    """Return what has it: it is aborted when that is closed."""
    import penstock

    client = penstock.connect(uri)
    transaction = client.begin_transaction("old/events")
    transaction.write(b"never read", routing_key="key-0")
    transaction.flush()
    return client, transaction


def until_flushed(tier2: Path) -> None:
    """Return once long-term storage has chunks of the streams and of the table."""
    deadline = time.monotonic() + _WAIT_S
    wanted = ("old/events", "old/sealed", "old/table")
    while not all(any((tier2 / name).parent.glob(f"{Path(name).name}*/*.E-*")) for name in wanted):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{sorted(map(str, tier2.rglob('*')))}")
        time.sleep(0.1)


def packed(directory: Path) -> bytes:
    """Return a directory as a tar archive, compressed: most of it is zeros."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in sorted(directory.rglob("*")):
            if path.name != "LOCK" and "cache" not in path.relative_to(directory).parts[:1]:
                archive.add(path, arcname=str(path.relative_to(directory)), recursive=False)
    return lzma.compress(raw.getvalue(), preset=9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", type=Path)
    parser.add_argument("--end", choices=("stop", "kill"), default="stop")
    arguments = parser.parse_args()
    from penstock.server.standalone_process import StandaloneProcess

    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / "settings.toml"
        config.write_text(_SETTINGS)
        server = StandaloneProcess(Path(name), "--containers", str(CONTAINERS), "--config", str(config))
        server.start()
        write_all(server.uri)
        kept = leave_a_transaction_open(server.uri)
        until_flushed(server.data_dir / "tier2")
        if arguments.end == "kill":
            server.kill9()
        else:
            server.stop()
        data = packed(server.data_dir)
    arguments.target.parent.mkdir(parents=True, exist_ok=True)
    arguments.target.write_bytes(data)
    print(f"{arguments.target}: {len(data)} bytes", flush=True)  # noqa: T201  # Its only output.
    assert kept
    os._exit(0)  # Nothing is closed: there is no server any more.


if __name__ == "__main__":
    main()
