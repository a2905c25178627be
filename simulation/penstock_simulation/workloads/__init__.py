"""Workloads of simulated clients on a simulated cluster, drawn from a seed. See ``docs/simulation.md``."""
