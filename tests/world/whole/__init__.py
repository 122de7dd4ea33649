"""The whole: berthd, slurmctld and the nodes' programs in one script. See docs/develop/world.md."""
