"""`BTreeIndex`: a sorted index as an append-only B+tree in one segment of long-term storage."""
