"""Moving running jobs that their users called movable: which are worth it, and how they get there."""
