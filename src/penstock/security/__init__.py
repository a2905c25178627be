"""Who may do what: accounts and their permissions, passwords, and delegation tokens for segment stores."""
