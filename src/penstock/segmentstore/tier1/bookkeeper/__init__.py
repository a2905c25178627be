"""The durable log in Apache BookKeeper: ledgers that a record in ZooKeeper lists. Protocol: docs/bookkeeper-log.md."""
