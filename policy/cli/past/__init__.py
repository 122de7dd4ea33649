"""The commands on jobs that have ended."""
