"""Planted bugs of long-term storage in HDFS. See `catalog`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from penstock.model.errors import (
    BadChunkOffsetError,
    RemoteFileExistsError,
    RemoteFileNotClosedError,
)
from penstock.model.segments import Buffer
from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage
from penstock_simulation.mutations.mutation import Mutation, patched, short_profile


@contextmanager
def _take_a_longer_file_for_an_append_that_was_done() -> Iterator[None]:
    original = HdfsChunkStorage._append

    async def append(self: HdfsChunkStorage, name: str, offset: int, content: Buffer) -> None:
        try:
            await original(self, name, offset, content)
        except BadChunkOffsetError as error:
            if error.expected < error.given:
                raise

    with patched(HdfsChunkStorage, "_append", append):
        yield


@contextmanager
def _leave_what_an_earlier_sending_has_begun() -> Iterator[None]:
    async def create_once(self: HdfsChunkStorage, path: str, content: Buffer) -> None:
        try:
            await self.files.create(path, content)
        except (RemoteFileExistsError, RemoteFileNotClosedError):
            pass

    with patched(HdfsChunkStorage, "_create_once", create_once):
        yield


_HDFS = replace(short_profile("crashes over hdfs", "bytes", gap_s=1.0), storage="hdfs")

REMOTE_MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "take a longer file for an append that was done", "a lost reply is neither success nor failure",
        _HDFS, _take_a_longer_file_for_an_append_that_was_done,
    ),
    Mutation(
        "take what an earlier sending has begun for done", "what counts as stored is stored",
        _HDFS, _leave_what_an_earlier_sending_has_begun,
    ),
)  # fmt: skip
"""Planted bugs, part of `MUTATIONS`."""
