"""Which long-term storage the settings mean, and how flushes suit it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.runtime import real_runtime
from penstock.runtime.settings import load_settings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.server.data_directory import DataDirectory
from penstock.server.long_term_storage import open_long_term_storage, segment_store_settings
from penstock.server.settings import StandaloneSettings


def opened(settings: StandaloneSettings, tmp_path: Path) -> ChunkStorage:
    runtime = real_runtime(1)
    return open_long_term_storage(settings, DataDirectory(str(tmp_path), runtime), runtime)


async def test_a_directory_or_a_bucket_is_opened_as_the_settings_say(tmp_path: Path) -> None:
    assert opened(StandaloneSettings(), tmp_path).place == str(tmp_path / "tier2")
    assert opened(StandaloneSettings(tier2="/mnt/elsewhere"), tmp_path).place == "/mnt/elsewhere"
    bucket = opened(StandaloneSettings(tier2="s3://bucket/some/prefix/"), tmp_path)
    assert bucket.place == "s3://bucket/some/prefix"
    assert not bucket.supports_append
    folder = opened(StandaloneSettings(tier2="hdfs://node:8020/some/root/"), tmp_path)
    assert folder.place == "hdfs://node:8020/some/root"
    assert folder.supports_append


def test_a_flush_to_a_bucket_is_one_long_object() -> None:
    directory = segment_store_settings(StandaloneSettings()).container
    given = StandaloneSettings().segment_store.container
    assert replace(directory, images=given.images) == given
    settings = load_settings(
        StandaloneSettings, flags={"tier2": "s3://bucket", "object_storage.flush_bytes": 32 << 20}
    ).checked()
    container = segment_store_settings(settings).container
    assert container.flush_bytes == container.flush_write_bytes_max == 32 << 20
    assert container.read_ahead_range_bytes == 4 << 20
    assert container.flush_age_s == settings.object_storage.flush_age_s > directory.flush_age_s


@pytest.mark.parametrize(
    ("tier2", "interval_s"),
    [("", 300), ("/mnt/elsewhere", 300), ("s3://bucket", 300), ("gs://bucket/x", 300), ("hdfs://node:8020/x", 300)],
)
def test_containers_write_images_wherever_long_term_storage_is(tier2: str, interval_s: float) -> None:
    """Unless it is set, either way."""
    path = "segment_store.container.images.interval_s"
    for given, expected in ((None, interval_s), (0, 0), (7, 7)):
        flags: dict[str, object] = {"tier2": tier2} if given is None else {"tier2": tier2, path: given}
        settings = load_settings(StandaloneSettings, flags=flags).checked()
        assert segment_store_settings(settings).container.images.interval_s == expected


def test_a_store_in_memory_writes_no_images() -> None:
    assert segment_store_settings(StandaloneSettings(is_memory=True)).container.images.interval_s is None


@pytest.mark.parametrize(
    "values",
    [
        {"tier2": "file://"},
        {"tier2": "s3://"},
        {"tier2": "s3://bucket", "is_memory": True},
        {"tier2": "hdfs://node"},
    ],
)
def test_places_that_cannot_be_are_refused_with_the_settings(values: dict[str, object]) -> None:
    with pytest.raises(InvalidArgumentError):
        StandaloneSettings(**values)  # type: ignore[arg-type]  # Of several types.


def test_without_the_library_a_bucket_is_refused_and_a_directory_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in the core install."""
    for module in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    assert opened(StandaloneSettings(), tmp_path).supports_append
    with pytest.raises(InvalidArgumentError, match=r"the extra 's3' of Penstock"):
        opened(StandaloneSettings(tier2="s3://bucket"), tmp_path)
