"""A connection ends when the token of any of its writers expires."""

from __future__ import annotations

import asyncio

from penstock.segmentstore.writer_tokens import WriterTokens
from support.containers import until

A, B = b"a" * 16, b"b" * 16


async def test_the_token_that_expires_first_ends_the_connection_in_whatever_order_writers_are_set_up() -> None:
    reasons: list[str] = []
    tokens = WriterTokens(asyncio.get_running_loop(), reasons.append)
    tokens.note(A, 3600.0)
    tokens.note(B, 0.05)
    await until(lambda: bool(reasons))
    assert reasons == ["the delegation token of a writer has expired"]
    tokens.close()


async def test_a_writer_that_is_set_up_again_with_a_later_token_keeps_the_connection() -> None:
    reasons: list[str] = []
    tokens = WriterTokens(asyncio.get_running_loop(), reasons.append)
    tokens.note(A, 0.05)
    tokens.note(B, None)
    tokens.note(A, 3600.0)
    await asyncio.sleep(0.2)
    assert reasons == []
    tokens.close()
