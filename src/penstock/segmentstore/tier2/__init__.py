"""Tier 2: chunked long-term storage."""
