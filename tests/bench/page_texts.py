# SPDX-License-Identifier: Apache-2.0
"""What docs/results/tables says of each table beside its figures."""

CALLS = {
    "coverage": "make coverage",
    "coverage-c": "make coverage-c",
    "mutants": "make mutants",
    "fuzz-tres": "make fuzz-tres",
    "replay": 'make bench NAME=replay ARGS="--systems plain,berth --seeds 6,7,8,9,10"',
    "replay-scores": 'make bench NAME=replay ARGS="--systems plain,noscores,berth --seeds 6,7,8"',
    "replay-published": 'make bench NAME=replay ARGS="--systems plain,berth,pal,pm-first --seeds 6 --jobs 1000"',
    "replay-adversary": 'make bench NAME=replay ARGS="--mode adversary --systems plain,berth --seeds 1"',
    "replay-chaos": 'make bench NAME=replay ARGS="--mode chaos --systems berth --seeds 6"',
    "replay-tree": 'make bench NAME=replay ARGS="--topology tree --systems plain,berth"',
    "replay-adversary-tree": "make bench NAME=replay "
    'ARGS="--mode adversary --topology tree --systems plain,berth --seeds 1"',
    "replay-chaos-tree": 'make bench NAME=replay ARGS="--mode chaos --topology tree --systems berth --seeds 5"',
    "replay-26.05": 'make bench NAME=replay SLURM=26.05 ARGS="--systems plain,berth --seeds 6,7,8,9,10"',
    "replay-paper": 'make bench NAME=replay ARGS="--mode paper --seeds 6,7,8,9,10"',
    "replay-paper-26.05": 'make bench NAME=replay SLURM=26.05 ARGS="--mode paper --seeds 6,7,8,9,10"',
    "replay-26.05-tree": "make bench NAME=replay SLURM=26.05 "
    'ARGS="--topology tree --systems plain,berth --seeds 1 --jobs 500"',
    "owner-memory": 'make bench NAME=owner-memory ARGS="--minutes 75 --seed 12"',
    "owner-memory-managed": 'make bench NAME=owner-memory ARGS="--inject managed --draws 100 --minutes 40 --seed 12"',
    "load-busy": "make bench NAME=load ARGS=busy",
    "load-small": "make bench NAME=load ARGS=small",
    "best-sets": "make test (tests/slurm/test_best_set.py)",
    "matrix": "make test-hard (tests/slurm/test_matrix.py)",
    "failing": "make test-hard (tests/slurm/test_failing.py)",
    "guard-rows": "make test-hard (tests/slurm/test_guard.py)",
    "looks-rows": "make test (tests/slurm/test_looks.py)",
    "placement-families": "make bench NAME=placement",
    "pal-runs": "make bench NAME=published",
}
"""The command that makes a table, where it is not `make bench NAME=` and the table's name."""

REMARKS = {
    "stragglers": """
150 drawn jobs of each kind, with known truth: 2 to 256 ranks, speeds 0.6 % apart, and one disturbance. `part`: a GPU
is slow for a part of the time; `role`: a rank has more to do on a sound GPU; `two`: two slow GPUs; `mixed`: a slow
GPU beside pauses or stalls, both to be named. `ranks_*`: all of the right ranks and no other one; `blame_*`: hardware
or program. They follow the model of the analysis, so the figures say nothing about causes outside it.
""",
    "hangs": """
Jobs are drawn and played look by look (15 s) through the node's law and berthd's; no `/proc` and no GPU is in it.
`false_*`: a checkpoint of up to ten minutes, an evaluation of up to forty, a stall of the data of up to eight,
compilation of up to twenty, a debugger, JAX without heartbeats that compiles or waits for up to 25 minutes, a service
without requests, a terminal. `told_*`: hangs that were told, `late_*` the latest after what the job's rhythm allowed.
The patterns and the law have one author.
""",
    "plan": """
A pass is timed from a reading to the plan, with 1,000 waiting jobs of twenty shapes on a full cluster; one job has
ended since the pass before. `event_*` is what one Epilog's notice costs: `2048` with 300 waiting jobs on 256 nodes
that are full, `ahead` with `look_ahead`, `30k_jobs` with 30,000 waiting jobs on 2,048 nodes. The naive peer counts
free GPUs by node and looks for room for each job once; it keeps no order, no later starts, and no cores or memory.
""",
    "coverage": """
By coverage.py in every process with the environment's interpreter. Named are the files under 85 %. What only runs on
a cluster is not counted, nor what a process did that was killed.
""",
    "mutants": """
A change is one operator, number or statement; it is noticed if one of the tests that run its line fails, or needs four
times its processor time and 20 s more. Tests of one change take 60 s at most, the quickest first. Changes are drawn by
the seed. Some make no difference to any result, such as a step that only saves time.
""",
    "coverage-c": """
By gcov: unit tests of the plugins, then the fuzzer's corpus. What no unit test builds is run by tests on a cluster,
which count no lines. Under ASan and UBSan the same runs find nothing (`make sanitize`).
""",
    "fuzz-tres": """
Random request texts, read by the plugin's parser and by `slurm_get_next_tres()` of that Slurm's own library. A
difference is a text with GPUs, shards or seats for Slurm that ours neither reads with the same type and number nor
refuses; one with GPUs for ours that Slurm does not read; or one that says something else to Slurm after its GPUs or
their models were taken out. The run ends at the first.
""",
    "gateway": """
A lone slurmctld with 1,024 nodes and 1,000 held jobs. Reading is slower than pinning because slurmctld counts the GRES
of all nodes anew, under its locks, for every reading of nodes, also for one that says that nothing has changed.
""",
    "replay": """
The same 1,500 jobs, a third without GPUs, on a real Slurm with 64 nodes of 8 GPUs in blocks of 4 nodes. Each job
sleeps its duration times the stretch of the GPUs that it really got, by a table that no policy sees; Berth knows
scores as calibration would measure them. Plain Slurm has the same SchedulerParameters, the links in gres.conf and
topology/block. Jobs of the first 15 and the last 5 percent of the arrivals are not measured. All programs share two
cores; one cluster ran at a time. An unplanned job is one whose submission berthd did not answer within 50 ms.
`weighed_wait_ratio` counts each wait with the job's GPUs. `handover_p50_s`: how long a GPU stands idle between two
jobs, the second of which waits.

The rules were chosen on paper on seeds 1 to 5. One account submits all jobs, a gang every two seconds. The machine was
slow (Python added five million numbers in 0.50 s), and the rule that turns costly users away left 263 jobs to Slurm
until the next pass. Since then it pays off five times as much; the replay was not repeated.

Jobs on 1, 2 and 4 GPUs wait 0.40, 0.47 and 0.64 times as long in the mean, those on 8, 16 and 32 0.94, 0.92 and 0.91
times. The mean of the five runs' longest waits is 0.91 of plain Slurm's. Each backfill pass of plain Slurm in which
something started was made again on paper: `sim_same_passes` of them start just the same jobs, `sim_same_nodes` of
these starts are on the same nodes.

On 2026-11-24, with the same seeds: JCT 0.82, wait 0.60, makespan 0.98, 95th percentile 0.91, longest wait 0.90. Chance
then: plain Slurm's seed 6 once more had 0.85 of the first run's mean wait. The control that pins random GPUs (seeds 6
and 7): JCT 40.7 s beside plain Slurm's 45.4, wait 15.4 beside 20.0, longest wait 175 beside 123. Plain Slurm with an
Epilog, after which slurmctld makes a pass: JCT 45.1, wait 19.7 s, longest wait 114 s. The simulator was within 4 % in
mean waits and makespans.
""",
    "replay-scores": """
Three of the seeds again, with the code of 2026-11-28, beside a control that plans as Berth does and knows no GPU to
be slow (`noscores`). Two of the 512 GPUs take 1.68 and 1.47 times the median, 14 more over 1.06. `jct_ratio` and what
follows is Berth over plain Slurm, `over_noscores_*` Berth over the control. A first time, beside other work, Berth
and the control had 38.0 and 38.9 s of JCT, 13.2 and 14.1 s of wait.
""",
    "growth": """
berthd's own code on made-up clusters, each in a process of its own; all times are of a processor, medians of eleven
passes after ten, and of forty notices. `look_ms`: a reading in which one job is over becomes a snapshot. `pass_ms`:
all waiting jobs are planned. `notice_ms`: one node's Epilog. `picture_ms`: the snapshot goes to the answering
process. `answer_ms`: that one answers a submission. `rss_mb` includes what the process made up. `simulation_s`: Slurm
on paper with Berth's policy, 100,000 jobs an hour on 12,500 nodes of 8 GPUs. `*_exponent`: the slope on logarithmic
axes.
""",
    "replay-adversary": """
The replay's cluster under a stream of jobs of one GPU or two, in which four nodes never fall empty by themselves, and
five jobs of 32 GPUs.
""",
    "replay-chaos": """
The replay while berthd is killed every 20 s, slurmctld restarted, nodes drained and resumed, half of the Epilogs'
notices lost, and the clocks of 16 nodes two minutes late. Jobs whose submission slurmctld cuts off are submitted
again.
""",
    "replay-tree": """
As the replay with topology/block, but with leaves of 4 nodes, topology/tree, and for plain Slurm `--switches=1@15`
for jobs on several nodes. Both clusters ran at the same time on two cores. What jobs on few GPUs wait less, those on
32 wait more: with plain Slurm the p95 of the wait is about the same for every size (79 to 87 s in seed 5), with Berth
it grows with the size (26 to 96 s).

Seed 5 once more, one cluster after the other: JCT 0.81, wait 0.60, makespan 1.04, p95 of the worst class 1.12,
longest wait 1.18 of plain Slurm's; 2 of 994 jobs unplanned. The control that pins random GPUs: JCT 42.1 s beside
Berth's 38.7 and plain Slurm's 48.1, longest wait 134 s beside 106 and 89.
""",
    "replay-adversary-tree": """
The replay's cluster under a stream of jobs of one GPU or two, in which four nodes never fall empty by themselves, and
five jobs of 32 GPUs. It had the machine to itself.
""",
    "replay-26.05": """
As with 24.11. The longest wait is one job of some thousands, in seed 7 with both: 109.6 beside 111.7 s. In three
seeds it is 2 to 4 % shorter with Berth, in seeds 9 and 10 14 and 18 % longer; the mean of the five is 1.039 of plain
Slurm's. With 24.11 two runs of plain Slurm's seed 6 had 112 and 93 s. Without `policy/placement/keep_together.py`
(five seeds): longest wait 1.055, JCT 0.838, wait 0.640, makespan 0.969, p95 1.088.

Jobs on 32 GPUs wait 1.03 times as long as with plain Slurm, those on 16, 8, 4, 2 and 1 GPUs 0.94, 0.90, 0.63, 0.45
and 0.33 times, and the p95 is 1.007 of plain Slurm's at most. From 25.05.1 on jobs on other nodes do not put off a
planned start any more, so small jobs pass those before them less.
""",
    "replay-26.05-tree": """
One seed, one cluster after the other. Jobs come for 79 s only, so it measures how the cluster fills. The class of
`p95_wait_ratio` is that of 8 GPUs (44 jobs, 28 s beside 24 s); the 13 jobs of 32 GPUs, fewer than the 30 from which on
a class counts there, waited 31 s in the mean beside plain Slurm's 19 s.
""",
    "replay-chaos-tree": """
The replay while berthd is killed every 20 s, slurmctld restarted, nodes drained and resumed, and half of the Epilogs'
notices lost; no clock is off.
""",
    "node": """
Prolog and Epilog as slurmd calls them, with a simulated driver and MPS: what starting MPS takes on a real GPU comes
on top. `shared_extra_ms` is what a Prolog that starts MPS costs beyond MPS's own start.
""",
    "guard": """
The guard's own code in a closed loop with a model of the device that is fitted on half of the published pairs. The
laws of TGS, AntMan and MuxFlow are reconstructions from papers and notes. `launches_*` is a quarter of the pairs, on
which the reserve was chosen; on the other three quarters it has a p99 of 0.0481 and a guest's share of 0.767.
`antman_*` are of all pairs, `muxflow_*` of 250 that are matched anew as MuxFlow does it (`muxflow_s`: every guest has
the same share), with Berth's guard on the same pairs beside them (2026-11-30). Hosts of MuxFlow report no steps.
""",
    "injob": """
Costs are processor time. Launches and the library's duty are measured on a simulated driver, the hooks' on PyTorch's
CPU build. `library_gpu_*`: how much busier the GPU was than ordered.
""",
    "scores": """
Simulated fleets of 512 GPUs with Longhorn's noise; the peer is the exact posterior of the same fleets, by one who
knows their parameters. `pal_jct_honest`: scores from other runs than the one that jobs meet.
""",
    "predictor": """
On the published pairs of Lucid (ASPLOS'23), each pair or model predicted from the others, margins made anew in every
fold. Widths and structure were chosen with all models in view. `*_models`: one model is new; `*_families`: one
family; `*_few_families`: one family is new and three are known. The peer there promises by numbers only; berthd
promises what is like a measured job or was tried twice. A trial that harms lasts a minute, any other pair an hour:
`false_safe_*` is the part of that time that harmed, `*_promises` the part of the promises. `*_hosts`: only the host
counts, as in berthd. `false_safe_nearest_neighbours` has every family known and the bound chosen afterwards.
""",
    "matching": """
True speeds are the measured pairs'; work counts only while the host keeps 0.95 of its speed. `realised` is the mean
of sixty one-minute rounds with trials and what they teach; `realised_first` is the first round, by prediction alone.
""",
    "packing": """
Alibaba's pods fed until as many GPUs were asked for as there are. FGD is our own implementation of its published
measure; what its authors published stands beside it. "Live" leaves jobs without GPUs to Slurm, as berthd does.
""",
    "company": """
Jobs of half a GPU each, in turn; true speeds are the measured pairs', of which the fit has seen one half and the other
is counted. `company` goes wherever there is room, `picky` rather waits than take bad company: it is not placed here.
""",
    "replay-published": """
One seed of 1,000 jobs, as in replay.csv; berthd with its own placement, with PAL's (`policy = "pal"`) and with
PM-First's. Light work ran beside it. 18 of PAL's and 17 of PM-First's jobs had no place at first. An hour before, with
jobs that let others go first on 64 nodes too, Berth had a mean time of 32.0 s, a makespan of 334 s and a longest wait
of 129 s.
""",
    "owner-memory": """
Guests take all memory that they can get, and launch once they are full. With 419 draws of 2026-11-30 before that, in
six runs at loads of up to 38: 0 of 146 owners failed beside guests inside the library, 51 of 66 beside guests outside
it, and 0 of 207 with the retry. In those runs owners with the retry waited up to 1.15 s under MPS and 1.84 s by time.
""",
    "owner-memory-managed": """
The simulated driver moves managed memory at once and refuses none. So the table shows that Berth's own parts do what
they should with `inject = "managed"`, and not what a driver needs for that (docs/develop/gpu-window.md). What graphs
hold, and guests outside the library, does not give way.
""",
    "sharing-day": """
A simulation, not measured. All rules have the same guard, seats and limits; the oracle knows the true slowdowns. `all`
is berthd's rule: predictor, matching, and what pairs of jobs did beside each other; each `without_*` leaves one out.
Services (`idle`, `muxflow`) were played by `--gpus 250 --seeds 1 --fleets muxflow,idle` in a run of their own.
""",
    "app-classes": """
Shares of a V100's kernel time, by Orion, stand for those of pipes and DRAM: of whole jobs none are published. A site is
a draw of the workloads. Classes by thresholds depend on no other job; with those of K-Means the peer's column says how
many jobs change their class with the site, and how many workloads have several.
""",
    "classify": """
Rules were mended with all logs but those of `fresh` (docs/results/failures.md has the first results of each set).
`retried_*`: faults of programs that are tried again, with a passing trouble in the same log.
""",
    "classify-public": """
The logs of row C in docs/results/failures.md, with the rules that were frozen before they were looked for.
""",
    "retry": """
Failing jobs are drawn from Philly's table 7 and played in the simulator; excluding nodes is given no credit.
""",
    "replay-paper": """
No real run: the replay's jobs in the simulator of berthd beside slurmctld, two plays of each seed. The oracle is
berthd's own plan that is told how long each job takes; all other rows know time limits only, which are whole minutes
for jobs of 25 s. `wait_8`: of jobs on 8 GPUs; `weighed_wait` counts each wait with the job's GPUs; `longest_of_a_run`
is the mean over the plays. `epilog_` is plain Slurm with an Epilog: slurmctld makes a pass whenever one ends. Counted
with their GPUs, jobs wait 0.90 times as long with Berth as with plain Slurm, and 0.84 times with the oracle.
""",
    "replay-paper-26.05": """
The same with the backfill of 25.05.1 and later.
""",
    "passes": """
Jobs of 8 GPUs on nodes of 8. `fill`: from the first of 1,024 submissions until the last of these jobs has started.
`wait`: a submission of one of 200 more, for which no GPU is free. Then slurmctld is left alone for 20 s; `backfill`
is a pass in it, `tested` how many jobs it gets to before its time is up, `test_over_plain` a pass over these jobs.
Plain Slurm's GPUs have one type, and there are neither shards nor seats.

Slurm tests a job on all nodes that its request leaves open, and GPUs with a type each make that test dearer. Without
excluded nodes (`exclude_others = 0`) a pass gets to 21 of the jobs before its time is up, with plain Slurm to 100,
with Berth to all of them in less than a tenth of that time. On 64 nodes a pass over all 200 takes 48 ms with plain
Slurm, 19 ms with lists and 192 ms without.
""",
    "harm": """
One `srun` at a time on four nodes that share two cores with everything else. `row`: five back to back; `apart`: with
3 s between them. `prolog_ms` and `epilog_ms` (with berth-notice) are those of a job without GPUs, called on a node.
`scripts` is the `row` once more beside plain Slurm with a Prolog and an Epilog that are /bin/true.

On four nodes in a row 1.05 is missed, as by any site with an Epilog here: plain Slurm, `srun -N4 true` in a row,
takes 191 ms without scripts, 210 with a Prolog and an Epilog that are /bin/true, 223 with a second Epilog. Single
figures of `apart` swing by 0.05 from run to run. In a row the GPU job waits for the Epilog of the one before. srun
asks whether the Prolog is over after 0.1 s, then after 1 s more: a Prolog that takes longer costs a second.
""",
    "flood": """
A lone slurmctld with 1,024 nodes in 64 partitions that overlap, all nodes but 128 in use. One user submits a job on
one GPU five times a second, first without others (*calm*), then beside another user's flood; the same with plain
Slurm. The flood's requests, each never seen before, are gangs of 129 nodes in 64 partitions, the same with 32 KB of
excluded nodes, 8,192 excluded nodes in few bytes, and gangs that insist on one leaf, as heterogeneous jobs of 16
components; Slurm refuses them after the hook. The flood's clients have the lowest priority; all else shares two
cores.

`hook` is the time inside the victim's hook, `client` a whole submission; `victim_unanswered` counts hers that berthd
gave no answer to. `flood_open` are those of the flood that were left to Slurm without asking berthd. `wait` is in
whole seconds. `hook_p99_over_calm_from_ms` and `_to_ms` are the 5th and the 95th percentile of the difference, by
2,000 drawings. Memory is the median of seven looks; 300 jobs of the victim make berthd grow in calm too.

With 26.05.5 on a quiet machine (`make bench NAME=flood SLURM=26.05`, 2026-11-27): hook p99 0.55 ms over calm (-0.12
to 1.62), none of 300 `open` or unanswered, wait p99 1 s as with plain Slurm, berthd 9.3 MiB more (calm 6.8).
""",
    "hook": """
Submissions through libslurm from one client. Three slurmctlds stand side by side and get the same in turns of half a
second. Without a prefix: held jobs of one kind, as from a loop. `limits`: held jobs with time limits of their own.
`new`: held jobs, none of a kind that was seen before. `taken`: jobs that start, on nodes of a cloud; slurmctld
schedules meanwhile. berthd reads and plans all the time. Latencies are those inside the hook; a rate beside the
echo's is the median over the rounds. `hung_rate_1` is with berthd stopped and the breaker open. `look_ms` is berthd's
look.

`placed_rate_vs_echo`: the echo's slurmctld with jobs that say themselves what Berth writes into a job of the first
kind: so much slower is slurmctld, and but for chance no plugin can have a `rate_vs_echo` above it. In `new` each job
needs a search of its own, and its rate is missed: at 0.9 of the echo's a submission may take 1.00 ms, of which
slurmctld needs 0.95 for a job that names its place. `script_4mb`: a script of 524,000 lines `#SBATCH` with a flag of
Berth; the plugin takes 0.33 ms for it (24.11, median of five, 2 cores, 24 GB, Debian 12, beside other work;
2026-11-29).
""",
    "placement": """
The same jobs, order, backfill and scores for all policies, in the model of PAL's artifact. Each figure is the *worst*
row of the table further below: of the flat families where the relaxation gains 3 % or more, of those with leaves and
pods, of that with events. Events delay PAL's jobs about as much as fail-slow does in the field: 1.39 and 1.29 times
by order beside 1.34 (arXiv 2410.12588). `events_mean_told` is the gain over PAL that is told what our detector finds.
""",
    "events": """
Gains in mean JCT, geometric means over 32 pairs. `delay` is what the events cost PAL's jobs that are not told.
`bound` is Berth that is told each event at once and exactly, over PAL that is told by our detector. `detector` is the
oracle's mean JCT over the detector's, both under Berth.
""",
    "topology": """
Loading is what a new process takes of a processor to read and check 12,500 files in the kernel's cache. Node sets are
the first ten of all five levels, for the slowest of five demands, with random GPUs busy. `best_of_16_ms` is the
median for the slowest k; the first question about a k ranks its sets (`ranking_of_16_ms`), once for each machine
shape.
""",
    "placement-speed": """
All jobs wait, and as many as fit are placed. The artifact's times are its own `place()` on the same queue where
BERTH_PAL_ARTIFACT names a checkout, else the documented ones of another machine.
""",
    "simulate": """
`sia_s` is the least of three runs. The artifact's 85 s were measured on another machine; under load its policies took
up to 250 s for the same trace. The big cluster is played once, with a queue. `timed_s` is of 2026-11-30, Python 3.11,
beside other work on both cores.
""",
    "philly": """
Means over seeds that draw what the trace lacks: limits, models, classes, scores. Compare ratios within one scenario.
`pinned-random` is the control. `*_h` are hours of waiting by reason: over quota, enough GPUs free but none at the
level (fragmentation), too few GPUs free (capacity), behind others (priority). `slow_down` is time from submission to
end over run time, of which 10 s count at least; `worst_account` is the mean of the virtual cluster that fares worst.
Mean waits depend on single events: one job that blocks the cluster of 64 GPUs moves the mean wait of VC 103959 by 600
s.
""",
    "runtime": """
By time: each prediction knows only jobs that had ended when the job came. The trace has neither users nor names, so
account and size are all there is to learn from; real accounting has more. `prediction_us` is of a quiet machine before
2026-11-22; beside other work (load 15) it was 68.6 on 2026-11-30. Pinball loss on the logarithm of seconds: 0.1
is about 10 %.
""",
    "best-sets": """
Every row is two jobs on a real Slurm, seen by the device files that opened. In brackets GB/s across the narrowest cut
and over the widest path of the weakest pair. Each of Berth's sets is compared with all subsets by brute force. The
rows below are those where Slurm alone chose less.
""",
    "matrix": """
Every form of asking for GPUs x every form of `srun` inside, plus the same request to `srun` and `salloc`; plain Slurm
beside Berth with berthd alive and dead. "Same" is the exit code and the number of GPUs opened; requests by socket get
one GPU or two, as the sockets happen to be free, with plain Slurm too. Forms that name a model are compared with the
same request by feature, in the test itself.
""",
    "failing": """
Each way to fail is a real one, of a job with `--retry=auto` on a real Slurm; the driver, its memory and its faults
are simulated. *Why* is what berthd says.
""",
    "web": """
A made-up day in a real browser on the same host, beside other work (load 13 to 17). `axe_serious_*`: findings of
axe-core in five views, light, dark and 390 pixels wide.
""",
    "guard-rows": """
Seconds until each thing had happened, on a real Slurm with a simulated driver; the guest has 2 s to save its work.
Beside the guest a job of another user runs on the next GPU: it must get no signal, never stand still, and run once.
v1 and v2 are the hierarchies of control groups. For v2 all controllers but memory's were moved to the unified
hierarchy of the same machine, and Slurm was shown only its line of /proc/PID/cgroup.
""",
    "looks-rows": """
Seconds from each trouble's begin until its user reads it in `berth why`, on a real Slurm with simulated drivers. Looks
and laws are forty times as quick as a site's, and an hour of step times is 30 s. The look (15 s at a site, 0.4 s here),
the notice and berthd's pass come on top of the law. Beside each job in trouble ran one without that trouble: one that
trains, one whose data stalled for half of what is allowed, one whose ranks are alike. None was told.
""",
    "placement-families": """
How much less Berth takes than PAL with the same jobs, order, backfill and scores, in percent, in the geometric mean
over pairs of a trace and a seed, with 95 % bootstrap intervals. *Gap closed* is the part of the way from PAL to a
relaxation in which every job has the best GPUs of the cluster at once; *relaxation* is what that gains over PAL,
*random* what random places do. *Told* is PAL that is told which nodes are slow, as Berth is.
""",
    "pal-runs": """
The model of PAL's artifact (rounds, no backfill, free moves), repeated jobs under FIFO only. *Allocated* counts GPUs
that a job holds, *useful* the ideal time of the measured jobs, both as a part of the cluster until the last of them
ends. The load sweep is drawn: its jobs are not PAL's.
""",
}
"""What a reader would ask about a figure."""
