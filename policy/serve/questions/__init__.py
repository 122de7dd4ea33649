"""Users' questions over TCP: what is told, and the port at which it is told."""
