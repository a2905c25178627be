"""What is kept of streams, as their policies say and their subscribers need it."""
