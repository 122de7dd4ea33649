"""The answering process: it answers the hook within milliseconds, from the last snapshot."""
