"""Events, and batch reads of them from stores and from long-term storage."""
