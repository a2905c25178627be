"""Tier 1: the durable log and its implementations."""
