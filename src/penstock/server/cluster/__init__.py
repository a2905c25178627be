"""The processes of a cluster on several machines: controllers, and parents of segment stores."""
