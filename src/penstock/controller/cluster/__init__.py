"""The leader among the controllers of a cluster: it assigns containers to segment stores."""
