"""Which of some pieces that lie beside each other are worth copying into one chunk: a pure core.

Each byte may be copied several times while a segment grows, each time into a longer chunk. The result is at least twice
as long as any chunk that goes into it: so a byte is copied at most as often as lengths double from the first chunk it
was in up to the target, and never again and again because of what little comes behind it.
"""

from __future__ import annotations

from collections.abc import Sequence


def choose_pieces(
    pieces: Sequence[Sequence[int]], *, count_min: int, full_length: int
) -> tuple[int, int] | None:
    """Return the range of pieces to be joined, the one of most bytes; None when nothing is worth it.

    `pieces`: in order, the lengths of the chunks of each. Worth it are `count_min` chunks, or fewer of `full_length`
    bytes together, if none of them has more than half of the bytes.
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
        # With the largest in it nothing less is worth it either.
        at = next(number for number in range(begin, end) if largest in pieces[number])
        ahead += [(begin, at), (at + 1, end)]
    return best
