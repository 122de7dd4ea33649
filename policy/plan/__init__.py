# SPDX-License-Identifier: Apache-2.0
"""The plan: gives waiting jobs their GPUs, now or later, and says why others wait.

    answer      a submission becomes a reply; what berthd says of a job, and what it would have chosen
    relocation  running jobs that move to other GPUs
    queue       the walk along the queue in Slurm's order: the plan of one pass, and why jobs wait
    opinions    guests, shares, reservations and other capabilities, asked by one contract
    jobs        the waiting jobs, read from Slurm's facts
    ledger      which job holds what, from when to when, and the changes that are planned to that

A room uses the rooms below its own.
"""
