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
Three of the seeds again, with the code of 2026-11-28, beside a control that plans as Berth does and knows no GPU to be
slow (`noscores`). Two of the 512 GPUs take 1.68 and 1.47 times the median, 14 more over 1.06. One cluster ran at a
time; beside Berth and the control nothing, beside plain Slurm simulations and unit tests of the lowest priority.
`jct_ratio` and what follows is Berth over plain Slurm, `over_noscores_*` Berth over the control; there the class with
the largest ratio of longest waits is that of jobs without GPUs (10.6 beside 6.2 s). A first time, with unit tests and
clusters of the lowest priority beside them (load 3 to 40), Berth and the control had 38.0 and 38.9 s of JCT, 13.2 and
14.1 s of wait, and a handover of 0.20 s.
Since the five seeds above, running jobs are expected to end at their time limits, a fault in how gangs gather nodes was
mended, and jobs may be split. How much of the difference is chance was not measured: the five seeds were not run again.
"""
GROWTH = """
berthd's own code on made-up clusters, each in a process of its own; all times are of a processor, in the middle of
eleven passes after ten, and of forty notices. `look_ms`: a reading in which one job is over becomes berthd's picture.
`pass_ms`: all waiting jobs are planned. `notice_ms`: one node's Epilog. `picture_ms`: the picture goes to the answering
process. `answer_ms`: that one answers a submission. `rss_mb` is the memory of a process with all of it, also what it
made up. `simulation_s`: Slurm on paper with Berth's policy, 100,000 jobs an hour on 12,500 nodes of 8 GPUs.
`*_exponent`: the slope from the least to the greatest size on logarithmic axes.
"""
GATEWAY = """
A lone slurmctld with 1,024 nodes and 1,000 held jobs. Reading is slower than pinning because slurmctld counts the GRES
of all nodes anew, under its locks, for every reading of nodes, also for one that says that nothing has changed.
"""
LONG_SCRIPTS = """
`script_4mb`: scripts of 524,000 lines `#SBATCH`, the longest that Slurm takes, with a flag of Berth, one at a time,
beside the same with the echo and without a plugin. Before, each such line was searched to the end of the script. The
plugin alone took 153, 627, 2,002 and 8,935 ms for 128 KiB, 256 KiB, 512 KiB and 1 MiB, and now takes 0.23, 0.22, 0.21
and 0.32 ms, and 0.33 ms for 4 MB (`fake_submit` of the library that `tests/unit/plugin_whole.py` builds, 24.11, medians
of five, before and now one after the other on a machine with 2 cores, 24 GB, Debian 12, busy with other work;
2026-11-29).
In turns of this tree and of f4df5c0c, twice, on 24.11.5 (`make bench NAME=hook ARGS="--turns 4 --jobs 100"`, 30 Nov.),
4 MB took 0.93 and 0.23 ms more than the echo, and before 1 MB took 2,630 and 714 ms. `p50_over_echo_ms` was 0.025 and
0.044, before 0.063 and 0.044; `rate_vs_echo` 1.27 and 0.86, before 0.82 and 1.08. The load of the two cores fell from
16 to 3 meanwhile, so smaller differences say nothing.
"""
