"""What is known of waiting jobs."""
