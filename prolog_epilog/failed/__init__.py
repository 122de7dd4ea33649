"""Failed jobs: waits for what they wrote, and reports the class of the failure."""
