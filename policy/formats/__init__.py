"""The formats of messages between berthd, the plugins, the nodes and Slurm, as docs/formats.md describes them."""
