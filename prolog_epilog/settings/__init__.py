"""What berth.conf says on nodes: the tables of its keys, and the reader."""
