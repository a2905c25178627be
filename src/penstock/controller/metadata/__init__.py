"""What the controller remembers: records, the tables they live in, and the store that keeps the tables."""
