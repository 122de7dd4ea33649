"""What nodes and guards tell berthd, and what it makes of it."""
