"""How streams change their number of segments."""
