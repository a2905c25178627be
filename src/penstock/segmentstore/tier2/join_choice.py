"""Chooses which adjacent pieces are worth copying into one chunk: a pure function.

Each byte may be copied several times while a segment grows, each time into a longer chunk. The result is at least twice
as long as any chunk that goes into it. So a byte is copied at most as often as lengths double from its first chunk up
to the target, and never repeatedly because of a few new bytes after it.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose_pieces(pieces: Sequence[Sequence[int]], *, count_min: int, full_length: int) -> tuple[int, int] | None:
    """Return the range of pieces to join, the one with most bytes; None if no range is worth joining.

    `pieces`: in order, the chunk lengths of each. A range is worth joining if it has `count_min` chunks, or fewer with
    `full_length` bytes in total, and none of them has more than half of the bytes.
    """
    best: tuple[int, int] | None = None
    best_length = 0
    ahead = [(0, len(pieces))]
    while ahead:
        begin, end = ahead.pop()
        chunks = [length for piece in pieces[begin:end] for length in piece]
        length = sum(chunks)
        if length <= best_length or (len(chunks) < count_min and length < full_length):
            continue
        largest = max(chunks)
        if 2 * largest <= length:
            best, best_length = (begin, end), length
            continue
        # No smaller range that contains the largest chunk is worth joining either.
        at = next(number for number in range(begin, end) if largest in pieces[number])
        ahead += [(begin, at), (at + 1, end)]
    return best
