"""The simulation of Penstock: whole clusters in one seeded process with virtual time, with faults and checks.

For the development of Penstock: it is in the repository, and no wheel has it. See ``docs/simulation.md``.
"""
