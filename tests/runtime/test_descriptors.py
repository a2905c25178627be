"""How descriptors are shared out between files and connections."""

from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.model.errors import InvalidArgumentError
from penstock.runtime.descriptors import DescriptorSettings, share_descriptors
from penstock.segmentstore.settings import ConnectionSettings
from penstock.segmentstore.tier2.directory import DirectoryChunkStorageSettings


def test_files_have_their_share_however_few_there_are() -> None:
    """Of 1024, 512 are set aside; of 200, half; the rest is split between the two kinds of connections."""
    settings = DescriptorSettings()
    both = share_descriptors(1024, settings, has_segment_store=True, has_controller=True)
    assert both.controller_connections == 128
    assert both.segment_store_connections + both.accept_backlog == 384
    few = share_descriptors(200, settings, has_segment_store=True, has_controller=True)
    assert few.controller_connections + few.segment_store_connections + few.accept_backlog == 100
    alone = share_descriptors(1024, settings, has_segment_store=False, has_controller=True)
    assert alone.controller_connections == 512
    child = share_descriptors(1024, settings, has_segment_store=True, has_controller=False)
    assert child.segment_store_connections + child.accept_backlog == 512


def test_limits_of_connections_never_grow_by_a_budget() -> None:
    few = share_descriptors(200, DescriptorSettings(), has_segment_store=True, has_controller=True)
    many = share_descriptors(1 << 20, DescriptorSettings(), has_segment_store=True, has_controller=True)
    settings = ConnectionSettings(connections_max=100, accept_backlog=50)
    assert settings.within(many) == settings
    assert settings.within(few).connections_max == few.segment_store_connections < 100
    assert settings.within(few).accept_backlog == few.accept_backlog < 50


def test_chunks_are_kept_open_only_as_far_as_there_are_descriptors() -> None:
    """Half of what is set aside for files: the logs, directories and what is in use need the others."""
    few = share_descriptors(1024, DescriptorSettings(), has_segment_store=True, has_controller=True)
    many = share_descriptors(1 << 20, DescriptorSettings(), has_segment_store=True, has_controller=True)
    settings = DirectoryChunkStorageSettings(open_files_max=1000)
    assert settings.within(many) == settings
    assert settings.within(few).open_files_max == 256


@pytest.mark.parametrize("percent", [0, 100])
def test_shares_that_leave_a_side_without_descriptors_are_refused(percent: int) -> None:
    with pytest.raises(InvalidArgumentError):
        DescriptorSettings(controller_percent=percent)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such limit")
def test_soft_limit_is_raised_to_the_hard_one() -> None:
    """In a process of its own, whose soft limit is far below."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300));"
        "from penstock.runtime.descriptors import raise_descriptor_limit; print(raise_descriptor_limit())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "300"
