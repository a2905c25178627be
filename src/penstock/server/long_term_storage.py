"""`open_long_term_storage`: the chunk storage named by the settings: a directory, a bucket or a folder in HDFS."""

from __future__ import annotations

from dataclasses import replace

from penstock.runtime.descriptors import descriptor_limit, share_descriptors
from penstock.runtime.files import FilePlace
from penstock.runtime.objects import ObjectPlace
from penstock.runtime.runtime import Runtime
from penstock.segmentstore.settings import SegmentStoreSettings
from penstock.segmentstore.tier2.chunk_storage import ChunkStorage
from penstock.segmentstore.tier2.directory import DirectoryChunkStorage
from penstock.server.data_directory import DataDirectory
from penstock.server.settings import StandaloneSettings

#: Default interval of images, where long-term storage outlives the process.
_IMAGES_INTERVAL_S = 300.0


def open_long_term_storage(settings: StandaloneSettings, directory: DataDirectory, runtime: Runtime) -> ChunkStorage:
    """Return long-term storage; does no I/O.

    Raises `InvalidArgumentError` for unusable settings, and when the libraries for it are not installed.
    """
    if settings.is_hdfs_storage:
        from penstock.segmentstore.tier2.hdfs_storage import HdfsChunkStorage

        folder = FilePlace.parse(settings.tier2)
        files = runtime.open_files(folder, settings.hdfs_storage.files, runtime.work)
        return HdfsChunkStorage(files, runtime.rng, folder.root, settings.hdfs_storage)
    if not settings.is_object_storage:
        budget = share_descriptors(
            descriptor_limit(), settings.descriptors, has_segment_store=True, has_controller=False
        )
        chunks = settings.long_term_storage.within(budget)
        return DirectoryChunkStorage(settings.tier2 or directory.tier2, directory.held, chunks)
    from penstock.segmentstore.tier2.object_storage import ObjectChunkStorage

    place = ObjectPlace.parse(settings.tier2)
    objects = runtime.open_objects(place, settings.object_storage.store)
    return ObjectChunkStorage(objects, runtime.rng, settings.object_storage, prefix=place.prefix)


def segment_store_settings(settings: StandaloneSettings) -> SegmentStoreSettings:
    """Return the settings of a segment store, with flushes, read-ahead and images adapted to its long-term storage."""
    store, objects = settings.segment_store, settings.object_storage
    container = store.container
    # A log in a bucket outlives the machine as long-term storage does.
    if container.images.interval_s is None and not settings.is_memory and not settings.log:
        container = replace(container, images=replace(container.images, interval_s=_IMAGES_INTERVAL_S))
    if not settings.is_object_storage:
        return replace(store, container=container)
    container = replace(
        container,
        flush_bytes=objects.flush_bytes,
        flush_age_s=objects.flush_age_s,
        read_ahead_range_bytes=objects.read_ahead_range_bytes,
        # Longer writes would be split into several objects.
        flush_write_bytes_max=max(container.flush_write_bytes_max, objects.flush_bytes),
    )
    return replace(store, container=container)
