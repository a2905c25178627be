"""Administration of a store: backups, checks, recovery and salvage, mostly of stopped servers."""
