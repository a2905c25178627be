"""`ServiceManager`: reports the state of this process to systemd, for units with ``Type=notify``.

Source: sd_notify(3) and sd_watchdog_enabled(3) of systemd. Outside such a unit nothing is sent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping

_log = logging.getLogger(__name__)

#: A message that cannot be sent within this time is dropped: a service manager that hangs does not stop the server.
_SEND_TIMEOUT_S = 1.0


class ServiceManager:
    """Sends messages to a socket. `watchdog_s`: the longest time between two keep-alive messages; 0: none are sent."""

    def __init__(self, address: str, watchdog_s: float = 0.0) -> None:
        self._address = address
        self.watchdog_s: float = watchdog_s
        self._watchdog: asyncio.Task[None] | None = None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> ServiceManager:
        """Return the one that has started this process; messages to a missing one are dropped."""
        address = environment.get("NOTIFY_SOCKET", "")
        watchdog_s = 0.0
        pid = environment.get("WATCHDOG_PID", "")
        if address and pid in ("", str(os.getpid())):
            try:
                watchdog_s = int(environment.get("WATCHDOG_USEC", "0")) / 1e6
            except ValueError:
                _log.warning("WATCHDOG_USEC=%r is not a number: no watchdog", environment.get("WATCHDOG_USEC"))
        return cls(address, max(watchdog_s, 0.0))

    def ready(self, status: str) -> None:
        """Report that the process serves, and begin to send keep-alive messages: one per turn of a timer here."""
        self._send(f"READY=1\nSTATUS={status}")
        if self.watchdog_s and self._watchdog is None:
            self._watchdog = asyncio.get_running_loop().create_task(self._show_life(), name="watchdog of systemd")

    def status(self, text: str) -> None:
        """Show a line in ``systemctl status``."""
        self._send(f"STATUS={text}")

    def stopping(self) -> None:
        """Report that the process stops. Signs of life continue until it ends: a hung stop is noticed, too."""
        self._send("STOPPING=1\nSTATUS=stopping")

    async def _show_life(self) -> None:
        while True:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 3)

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ names a socket without a file.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sending:
                sending.settimeout(_SEND_TIMEOUT_S)
                sending.sendto(message.encode(), address)
        except OSError as error:
            _log.warning("cannot report %s to the service manager: %s", message.partition("\n")[0], error)
