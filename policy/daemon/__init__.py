"""berthd: one process answers, one plans."""
