"""The read-only process: metrics, users' questions and the page, by one rule of what each user may see."""
