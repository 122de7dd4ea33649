"""What became of a cluster's GPU jobs, as Philly's study looked at it: waits, places, use, ends and tries."""
