"""What simulated clients do to a simulated cluster, and how a seed decides that. See ``docs/simulation.md``."""
