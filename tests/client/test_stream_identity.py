"""`Client.stream_identity`: which of the streams that have had a name has it now."""

from __future__ import annotations

import pytest

from penstock import Client, NoSuchStreamError


def test_a_stream_of_the_same_name_has_another_identity(penstock_client: Client) -> None:
    found = []
    for _ in range(2):
        penstock_client.create_stream("identity/stream")
        found.append(penstock_client.stream_identity("identity/stream"))
        assert penstock_client.stream_identity("identity/stream") == found[-1]
        penstock_client.seal_stream("identity/stream")
        penstock_client.delete_stream("identity/stream")
    assert None not in found
    assert found[0] != found[1]
    with pytest.raises(NoSuchStreamError, match="identity/stream"):
        penstock_client.stream_identity("identity/stream")
