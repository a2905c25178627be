"""State that clients share in streams of revisions."""
