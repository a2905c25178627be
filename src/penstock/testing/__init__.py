"""Tools for tests of applications: a server in memory, and fixtures for pytest (`penstock.testing.pytest_plugin`)."""

from __future__ import annotations

from penstock.testing.server import MemoryServer, memory_server

__all__ = ["MemoryServer", "memory_server"]
