"""The formats of messages between berthd, the plugins, the nodes and Slurm (docs/develop/formats.md)."""
