"""The commands for users and admins; nothing here imports numpy at start."""
