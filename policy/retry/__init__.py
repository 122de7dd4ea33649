"""What a job failed of, and whether trying again is worth it (after Philly's study of 39,776 failed trials)."""
