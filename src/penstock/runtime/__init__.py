"""The determinism seam: disk, blocking work, randomness and clocks, real and simulated."""
