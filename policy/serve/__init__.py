"""The read-only process: metrics, users' questions and the page, by one rule of who may see what."""
