"""What is read ahead of whom: the pure part."""

from __future__ import annotations

from penstock.segmentstore.container.reads.read_ahead import ReadAhead


def ahead(count_max: int = 2, segments_max: int = 10) -> ReadAhead:
    return ReadAhead(range_bytes=100, count_max=count_max, segments_max=segments_max)


def test_the_second_read_in_a_row_makes_a_reader_sequential() -> None:
    readers = ahead()
    assert readers.stored(1, 30, 100, 1000) == []
    assert readers.stored(1, 100, 200, 1000) == [(200, 300), (300, 400)]


def test_reads_at_another_offset_start_a_new_sequence() -> None:
    readers = ahead()
    readers.stored(1, 0, 100, 1000)
    assert readers.stored(1, 500, 600, 1000) == []
    assert readers.stored(1, 700, 800, 1000) == []
    assert readers.stored(1, 800, 900, 1000) == [(900, 1000)]


def test_reads_here_and_there_displace_no_sequential_reader() -> None:
    """Two readers continue, each in its place, whatever comes between; of the others the last ones are remembered."""
    readers = ahead()
    for start in (0, 5000):
        readers.stored(1, start, start + 100, 10_000)
        assert readers.stored(1, start + 100, start + 200, 10_000) != []
    for start in range(1000, 3000, 150):
        assert readers.stored(1, start, start + 10, 10_000) == []
    assert readers.continues(1, 400)
    assert readers.continues(1, 5400)
    assert readers.continues(1, 2960)
    assert not readers.continues(1, 1010)
    assert readers.stored(1, 400, 500, 10_000) == [(500, 600), (600, 700)]
    assert readers.cached(1, 5250, 10_000) == [(5400, 5500)]


def test_a_reader_that_finds_its_bytes_keeps_its_lead() -> None:
    """One range more each time it enters the next; nothing while it stays inside one."""
    readers = ahead()
    readers.stored(1, 0, 100, 1000)
    readers.stored(1, 100, 200, 1000)
    assert readers.cached(1, 150, 1000) == []
    assert readers.cached(1, 201, 1000) == [(400, 500)]
    assert readers.cached(1, 260, 1000) == []
    assert readers.cached(1, 300, 1000) == []
    assert readers.cached(1, 301, 1000) == [(500, 600)]
    assert readers.cached(1, 900, 1000) == []


def test_no_read_ahead_after_the_limit() -> None:
    readers = ahead()
    readers.stored(1, 0, 100, 250)
    assert readers.stored(1, 100, 200, 250) == [(200, 250)]
    assert readers.cached(1, 250, 250) == []


def test_a_failed_read_ahead_is_repeated_on_demand() -> None:
    """Reading ahead continues from there instead of restarting."""
    readers = ahead()
    readers.stored(1, 0, 100, 1000)
    assert readers.stored(1, 100, 200, 1000) == [(200, 300), (300, 400)]
    readers.not_read(1, 300)
    assert readers.cached(1, 350, 1000) == []
    assert readers.stored(1, 300, 400, 1000) == [(400, 500), (500, 600)]
    readers.forget(1)
    assert not readers.continues(1, 400)


def test_a_bounded_number_of_segments_is_remembered() -> None:
    readers = ahead(segments_max=2)
    for segment_id in (1, 2, 3):
        readers.stored(segment_id, 0, 100, 1000)
    assert len(readers) == 2
    assert readers.stored(1, 100, 200, 1000) == []
    assert readers.stored(3, 100, 200, 1000) != []


def test_it_can_be_off() -> None:
    readers = ahead(count_max=0)
    readers.stored(1, 0, 100, 1000)
    assert readers.continues(1, 100)
    assert readers.stored(1, 100, 200, 1000) == []
    assert readers.continues(1, 200)
