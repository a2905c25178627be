"""A server: its settings, its data directory, its long-term storage, and the assembly of its processes."""
