"""Tools for tests of applications and of Penstock: an in-memory server, and test doubles for Penstock's seams."""

from __future__ import annotations

from penstock.testing.server import MemoryServer, memory_server

__all__ = ["MemoryServer", "memory_server"]
