"""Real server processes: started, loaded, killed and held."""
