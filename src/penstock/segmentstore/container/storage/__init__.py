"""The way to long-term storage: flushes and what they need."""
