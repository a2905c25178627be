"""Which controllers are alive, and which of them does which periodic work."""
