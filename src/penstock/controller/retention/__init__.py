"""Truncation of streams by their retention policies and subscribers."""
