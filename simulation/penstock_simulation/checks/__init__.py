"""Histories of what clients saw, and what judges them and the insides of servers."""
