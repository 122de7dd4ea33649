"""What the guard tells berthd."""
