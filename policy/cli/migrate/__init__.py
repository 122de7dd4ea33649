# SPDX-License-Identifier: Apache-2.0
"""Takes a site from plain Slurm to Berth in the steps of docs/admin/rollout.md, and back (`berth migrate`).

conf_text    Slurm's configuration files as text: every byte that is not changed stays
node_lines   NodeName lines of slurm.conf and gres.conf
berth_conf   single keys of berth.conf
rungs        the configuration of each rung, from the one that is there
exact        the words of the exact layout, from the topology files
waiting      the requests of jobs that wait meanwhile
drained      the nodes that `berth migrate` keeps from jobs
site         the files, and the jobs that Slurm knows
state        copies of what was changed, to undo it
advice       the steps up and back
command      the commands
"""

from policy.cli.migrate.command import register

__all__ = ["register"]
