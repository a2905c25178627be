"""`ObjectLog`: the durable log in a bucket. Protocol and failure cases: docs/object-log.md."""
