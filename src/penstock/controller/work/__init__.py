"""Announced work and work in the background: its registry, its bounds, and its adoption from dead controllers."""
