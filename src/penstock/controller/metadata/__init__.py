"""The controller's persistent state: records, the tables that hold them, and the store of the tables."""
