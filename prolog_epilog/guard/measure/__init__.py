"""What the guard measures: the devices, the hosts' heartbeats, and how long a host's step takes."""
