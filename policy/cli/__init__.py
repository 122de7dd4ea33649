"""User commands; nothing here imports numpy at start."""
