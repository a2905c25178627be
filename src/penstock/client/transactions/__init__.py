"""Transactions of events and of values."""
