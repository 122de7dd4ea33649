# SPDX-License-Identifier: Apache-2.0
"""Holds the texts of docs/results/tables.md that stand beside its tables."""

PLACEMENTS = """
`make test` (`tests/slurm/test_best_set.py`): every row is two jobs on a real Slurm, seen by the device files that
opened. In brackets GB/s across the narrowest cut and over the widest path of the weakest pair. Each of Berth's sets is
compared with all subsets by brute force. The rows below are those where Slurm alone chose less.
"""
MATRIX = """
`make test-hard` (`tests/slurm/test_matrix.py`; `make test` tries a third of it): every form of asking for GPUs x every
form of `srun` inside, plus the same request to `srun` and `salloc`; plain Slurm beside Berth with berthd alive and
dead. "Same" is the exit code and the number of GPUs opened; requests by socket get one GPU or two, as the sockets
happen to be free, with plain Slurm too. Forms that name a model are compared with the same request by feature, in the
test itself.
"""
FAILING = """
`make test-hard` (`tests/slurm/test_failing.py`): each way to fail is a real one, of a job with `--retry=auto` on a real
Slurm; the driver, its memory and its faults are simulated. *Why* is what berthd says.
"""
GUARD_ROWS = """
`make test-hard` (`tests/slurm/test_guard.py`): seconds until each thing had happened, on a real Slurm with a simulated
driver; the guest has 2 s to save its work. Beside the guest a job of another user runs on the next GPU: it must get no
signal, never stand still, and run once. v1 and v2 are the hierarchies of control groups. For v2 all controllers but
memory's were moved to the unified hierarchy of the same machine, and Slurm was shown only its line of /proc/PID/cgroup.
"""
FAMILIES = """
`make bench NAME=placement`: how much less Berth takes than PAL with the same jobs, order, backfill and scores, in
percent, in the geometric mean over pairs of a trace and a seed, with 95 % bootstrap intervals. *Gap closed* is the part
of the way from PAL to a relaxation in which every job has the best GPUs of the cluster at once; *relaxation* is what
that gains over PAL, *random* what random places do. *Told* is PAL that is told which nodes are slow, as Berth is.
"""
PUBLISHED = """
`make bench NAME=published`: the model of PAL's artifact (rounds, no backfill, free moves), repeated jobs under FIFO
only. *Allocated* counts GPUs that a job holds, *useful* the ideal time of the measured jobs, both as a part of the
cluster until the last of them ends. The load sweep is drawn: its jobs are not PAL's.
"""
REPLAY_SCORES = """
Three of the seeds again, with the code of 2026-11-28, beside a control that plans as Berth does and knows no GPU to
be slow (`noscores`). Two of the 512 GPUs take 1.68 and 1.47 times the median, 14 more over 1.06. `jct_ratio` and what
follows is Berth over plain Slurm, `over_noscores_*` Berth over the control. A first time, beside other work, Berth
and the control had 38.0 and 38.9 s of JCT, 13.2 and 14.1 s of wait.
"""
GROWTH = """
berthd's own code on made-up clusters, each in a process of its own; all times are of a processor, medians of eleven
passes after ten, and of forty notices. `look_ms`: a reading in which one job is over becomes a snapshot. `pass_ms`:
all waiting jobs are planned. `notice_ms`: one node's Epilog. `picture_ms`: the snapshot goes to the answering
process. `answer_ms`: that one answers a submission. `rss_mb` includes what the process made up. `simulation_s`: Slurm
on paper with Berth's policy, 100,000 jobs an hour on 12,500 nodes of 8 GPUs. `*_exponent`: the slope on logarithmic
axes.
"""
GATEWAY = """
A lone slurmctld with 1,024 nodes and 1,000 held jobs. Reading is slower than pinning because slurmctld counts the GRES
of all nodes anew, under its locks, for every reading of nodes, also for one that says that nothing has changed.
"""
