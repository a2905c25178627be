"""Statistics of appends, and offset indexes of the borders between them."""
