"""The read-only process: metrics and users' questions, from one state file, by one rule of who may see what."""
