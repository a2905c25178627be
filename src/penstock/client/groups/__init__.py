"""Reader groups, their record, and readers."""
