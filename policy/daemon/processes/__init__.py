"""berthd's processes: how one is started beside it, watched, told of and ended."""
