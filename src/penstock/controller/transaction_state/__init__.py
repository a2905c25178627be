"""What a controller knows of transactions in progress: those being created, their commit order, and those committed."""
