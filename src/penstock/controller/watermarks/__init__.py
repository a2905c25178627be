"""Times of streams: the marks of writers, and the watermarks made from them."""
