"""What applications and Penstock's own tests may use: a server in memory, and stand-ins for Penstock's seams."""

from __future__ import annotations

from penstock.testing.server import MemoryServer, memory_server

__all__ = ["MemoryServer", "memory_server"]
