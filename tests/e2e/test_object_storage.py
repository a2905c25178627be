"""``penstock standalone --tier2 s3://...``: a real server over a real S3 server, killed, cut off, and badly set up."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.server.errors import ServerProcessError
from penstock.server.standalone_process import StandaloneProcess
from support.command_line import run_command
from support.s3_server import ACCESS_KEY, SECRET_KEY, S3Server, S3UnavailableError

pytestmark = pytest.mark.e2e

STREAM = "shop/orders"
EVENT_COUNT = 2_000
#: Flushes at once and of little, so that nearly all is in the bucket when the server is killed.
SETTINGS = """
[object_storage]
flush_bytes = 65536
flush_age_s = 0.05

[object_storage.store]
endpoint = "{endpoint}"
region = "us-east-1"
access_key_id = "{access_key}"
secret_access_key = "{secret_key}"

[segment_store.container]
writer_interval_s = 0.02
writer_retry_s = 0.05
checkpoint_log_bytes_idle = 65536

[segment_store.storage_guard]
check_interval_s = 0.2
retry_interval_s = 0.1
"""
#: No test waits so long for the next thing to happen.
GUARD_S = 120.0

Make = Callable[..., StandaloneProcess]


def over(
    s3: S3Server, make_server: Make, tmp_path: Path, *, bucket: str = "", secret_key: str = SECRET_KEY,
    segment_stores: int = 1,
) -> tuple[StandaloneProcess, Path]:  # fmt: skip
    """Return a server that is not started yet, and the directory of its objects."""
    name = bucket or s3.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    config = tmp_path / "settings.toml"
    config.write_text(SETTINGS.format(endpoint=s3.endpoint, access_key=ACCESS_KEY, secret_key=secret_key))
    options = ("--config", str(config), "--tier2", f"s3://{name}/some/prefix")
    return make_server(*options, segment_stores=segment_stores), s3.directory / "data" / name / "some" / "prefix"


def event(number: int) -> bytes:
    return b"%08d " % number + bytes([number % 251]) * 400


def write(server: StandaloneProcess, first: int) -> None:
    """Write events, and wait until they are acknowledged."""
    with penstock.connect(server.uri) as client:
        client.create_stream(STREAM, scaling=penstock.Scaling.fixed(3), exist_ok=True)
        with client.event_writer(STREAM) as writer:
            for number in range(first, first + EVENT_COUNT):
                writer.write(event(number), routing_key=str(number % 17))


def read(server: StandaloneProcess) -> list[bytes]:
    """Return all events, sorted."""
    with penstock.connect(server.uri) as client, client.batch(STREAM) as batch:
        return sorted(bytes(each.data) for part in batch.ranges for each in batch.events(part))


def chunk_bytes(folder: Path) -> int:
    """Return how much of the stream is in the bucket."""
    return sum(path.stat().st_size for path in (folder / STREAM).rglob("*") if path.is_file())


def wait_until(happens: Callable[[], bool]) -> None:
    end_s = time.monotonic() + GUARD_S
    while not happens():
        assert time.monotonic() < end_s
        time.sleep(0.05)


@pytest.mark.parametrize("segment_stores", [1, 2])
def test_acknowledged_events_survive_kills(
    s3_server: S3Server, make_server: Make, tmp_path: Path, segment_stores: int
) -> None:
    """Killed right after the last acknowledgement, twice; then all is flushed, and read from the bucket."""
    server, folder = over(s3_server, make_server, tmp_path, segment_stores=segment_stores)
    for cycle in range(2):
        server.start()
        write(server, cycle * EVENT_COUNT)
        server.kill9()
    server.start()
    expected = [event(number) for number in range(2 * EVENT_COUNT)]
    assert read(server) == expected
    # With 8 bytes before each event. What a kill left without a record comes on top, for a minute.
    wait_until(lambda: chunk_bytes(folder) >= sum(8 + len(each) for each in expected))
    server.kill9()
    # Its cache is empty: what is in the bucket is read from there.
    server.start()
    assert read(server) == expected
    assert (folder / "penstock-storage.toml").exists()
    assert not list(server.data_dir.glob("tier2/*"))


def test_a_bucket_that_is_away_for_a_while_stops_no_writer(make_server: Make, tmp_path: Path) -> None:
    """Writes are acknowledged from the log meanwhile; what waits is flushed when it is back."""
    try:
        s3 = S3Server(tmp_path / "s3").start()
    except S3UnavailableError as error:
        pytest.skip(str(error))
    try:
        server, folder = over(s3, make_server, tmp_path)
        server.start()
        write(server, 0)
        s3.kill()
        wait_until(lambda: "long-term storage is unavailable" in server.log)
        write(server, EVENT_COUNT)
        s3.start()
        expected = [event(number) for number in range(2 * EVENT_COUNT)]
        wait_until(lambda: chunk_bytes(folder) >= sum(8 + len(each) for each in expected))
        assert read(server) == expected
        assert "cannot be reached" in server.log
    finally:
        s3.kill()


def test_a_new_server_with_wrong_credentials_or_no_bucket_says_so_and_ends(
    s3_server: S3Server, make_server: Make, tmp_path: Path
) -> None:
    for options, said in (
        ({"secret_key": "wrong"}, "refuses these credentials (SignatureDoesNotMatch): check the access key"),
        ({"bucket": "no-such-bucket"}, "s3://no-such-bucket is not there (NoSuchBucket): create the bucket"),
    ):
        server, _ = over(s3_server, make_server, tmp_path, **options)  # type: ignore[arg-type]
        with pytest.raises(ServerProcessError) as raised:
            server.start()
        assert said in str(raised.value)


def test_a_bucket_belongs_to_one_cluster(s3_server: S3Server, make_server: Make, tmp_path: Path) -> None:
    bucket = s3_server.make_bucket(f"b{uuid.uuid4().hex[:12]}").bucket
    over(s3_server, make_server, tmp_path, bucket=bucket)[0].start()
    second, _ = over(s3_server, make_server, tmp_path, bucket=bucket)
    with pytest.raises(ServerProcessError, match="is not this cluster's long-term storage"):
        second.start()


def test_long_term_storage_may_be_another_directory(make_server: Make, tmp_path: Path) -> None:
    server = make_server("--tier2", str(tmp_path / "elsewhere"))
    server.start()
    write(server, 0)
    server.kill9()
    server.start()
    assert read(server) == [event(number) for number in range(EVENT_COUNT)]
    assert (tmp_path / "elsewhere" / "penstock-storage.toml").exists()


def test_a_bucket_is_tried_before_and_its_chunks_verified_while_a_server_runs(
    s3_server: S3Server, make_server: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`penstock storage probe` and `penstock verify`; one chunk is damaged in the bucket, one is taken away."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    server, folder = over(s3_server, make_server, tmp_path)
    place = f"s3://{folder.parent.parent.name}/some/prefix"
    told = run_command("storage", "probe", "--tier2", place, "--json").ok.json
    assert (told["place"], told["has_identity"], told["supports_append"]) == (place, False, False)
    server.start()
    write(server, 0)
    wait_until(lambda: run_command("verify", STREAM, "--json", uri=server.uri).ok.json["unflushed_bytes"] == 0)
    told = run_command("storage", "probe", "--tier2", place, "--json").ok.json
    assert told["has_identity"]
    well = run_command("verify", STREAM, "--json", uri=server.uri).ok.json
    assert well["checked_bytes"] == sum(8 + len(event(number)) for number in range(EVENT_COUNT))
    assert not (folder / "_probe").exists()

    damaged, missing = sorted(path for path in (folder / STREAM).rglob("*.E-*") if path.is_file())[:2]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    missing.unlink()
    found = run_command("verify", STREAM, "--json", uri=server.uri)
    assert found.code == 3
    assert {(each["kind"], each["chunk"].rpartition("/")[2]) for each in found.json["problems"]} == {  # type: ignore[attr-defined]
        ("block_damaged", damaged.name),
        ("chunk_missing", missing.name),
    }
