"""Stand-ins for Penstock's seams that applications and Penstock's own tests may use."""
