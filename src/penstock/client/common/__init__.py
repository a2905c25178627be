"""Parts of every call of a client: deadlines, retries, life cycles, pickling, serializers."""
