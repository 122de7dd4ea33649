"""The commands on jobs that wait or run, for their users."""
