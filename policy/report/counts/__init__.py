"""One file for each figure of the report: waits, places, use, losses, ends, and what Berth saved."""
