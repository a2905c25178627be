"""Generators of source files of Penstock: in the repository only."""
