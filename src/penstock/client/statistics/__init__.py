"""Statistics of a cluster, its streams and its groups."""
