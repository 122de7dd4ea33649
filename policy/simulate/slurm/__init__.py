"""One model of Slurm: queue, main pass, backfill, ends; whoever chooses places is plugged in."""
