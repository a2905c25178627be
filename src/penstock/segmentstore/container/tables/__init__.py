"""Tables of a container: entries, index, compaction, reads."""
