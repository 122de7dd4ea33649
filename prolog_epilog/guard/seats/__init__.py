"""The seats of a node: each GPU with its owner and its guest, looked at ten times a second."""
