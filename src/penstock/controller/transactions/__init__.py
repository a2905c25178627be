"""Transactions as clients see them: created, pinged, committed, aborted, or run out."""
