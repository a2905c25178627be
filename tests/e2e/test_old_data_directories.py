"""Data directories of earlier commits, opened, read and written by the code of today.

`tests/support/old_data_directory.py` made them and says what is in them. They are the proof of what docs/formats.md
promises under "Compatibility". Names: date and commit.
"""

from __future__ import annotations

import hashlib
import lzma
import struct
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.model.checksum import crc32c
from support.old_contents import check_contents, read_and_add
from support.old_data_directory import CONTAINERS
from support.standalone_process import ServerProcessError, StandaloneProcess, run_penstock

pytestmark = pytest.mark.e2e

ARCHIVES = Path(__file__).parents[1] / "data" / "data-directories"
#: Version of `log.epoch` in each.
LOG_VERSIONS = {"2026-11-23-3b1be23": 3, "2026-11-26-209d395": 3, "2026-11-26-ac3ec60": 4}
TODAY = 4


def unpack(name: str, directory: Path) -> None:
    with lzma.open(ARCHIVES / f"{name}.tar.xz") as file, tarfile.open(fileobj=file) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(directory, filter="data")
        else:  # Before Python 3.11.4.
            archive.extractall(directory)


def log_versions(data: Path) -> set[int]:
    return {int.from_bytes(path.read_bytes()[8:10]) for path in data.glob("tier1/*/log.epoch")}


def fingerprints(data: Path) -> dict[str, str]:
    files = (path for path in data.rglob("*") if path.is_file() and path.name != "LOCK")
    return {str(path.relative_to(data)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StandaloneProcess]:
    process = StandaloneProcess(tmp_path, "--containers", str(CONTAINERS))
    yield process
    if process.is_running:
        process.kill9()


@pytest.mark.parametrize("name", LOG_VERSIONS)
def test_a_data_directory_of_an_earlier_commit_is_read_and_written(name: str, server: StandaloneProcess) -> None:
    unpack(name, server.data_dir)
    assert log_versions(server.data_dir) == {LOG_VERSIONS[name]}
    server.start()
    with penstock.connect(server.uri) as client:
        check_contents(client)
        read_and_add(client)
    server.kill9()
    server.start()
    with penstock.connect(server.uri) as client:
        check_contents(client, added=2)
    server.stop()
    assert log_versions(server.data_dir) == {TODAY}
    check = run_penstock("storage", "check", "--data-dir", str(server.data_dir))
    assert check.returncode == 0, check.stdout + check.stderr


def test_a_data_directory_of_a_later_version_is_refused_and_not_changed(
    server: StandaloneProcess, tmp_path: Path
) -> None:
    """As a later version leaves it: its number is in the record of each log. With the old number all is as it was."""
    unpack("2026-11-26-ac3ec60", server.data_dir)
    before = {path: path.read_bytes() for path in server.data_dir.glob("tier1/*/log.epoch")}
    assert len(before) == CONTAINERS
    for path, data in before.items():
        body = data[:8] + (TODAY + 1).to_bytes(2) + data[10:96]
        path.write_bytes(body + struct.pack(">I", crc32c(body, 0)) + data[100:])
    unchanged = fingerprints(server.data_dir)
    for _ in range(2):
        with pytest.raises(ServerProcessError, match=rf"format version {TODAY + 1}, this version reads 3 to {TODAY}"):
            server.start()
        assert fingerprints(server.data_dir) == unchanged
    listed = run_penstock("log", "list", "--data-dir", str(server.data_dir))
    assert listed.stdout.count("later version, ") == CONTAINERS, listed.stdout
    for command in (["log", "enable", "0"], ["log", "salvage", "0"], ["storage", "backup", str(tmp_path / "backup")]):
        refused = run_penstock(*command, "--data-dir", str(server.data_dir))
        assert refused.returncode == 1, refused
        assert "was written by a later version of Penstock" in refused.stderr
    assert fingerprints(server.data_dir) == unchanged
    for path, data in before.items():
        path.write_bytes(data)
    server.start()
    with penstock.connect(server.uri) as client:
        check_contents(client)
