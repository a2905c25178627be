"""The blocking `ClientCore`. Generated from `penstock.client.client_core`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from penstock.client.settings import ClientSettings
from penstock.client.sync.client_life import ClientLife


class ClientCore(ClientLife):
    """The common base of a `Client`: the controller, the segment stores, the settings."""

    @property
    def uri(self) -> str:
        """The address of the controller."""
        return self._part.uri

    @property
    def settings(self) -> ClientSettings:
        """The client's settings."""
        return self._part.settings
