"""What appends leave behind: statistics and borders between them."""
