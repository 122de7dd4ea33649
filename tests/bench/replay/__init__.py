# SPDX-License-Identifier: Apache-2.0
"""`make bench NAME=replay`: Berth beside plain Slurm, the same jobs on a real Slurm of 64 nodes x 8 GPUs.

`workload` draws the jobs of a seed. `testbed` brings the cluster up and makes it plain or one of `systems`. `execute`
submits the jobs at their times and keeps the logs. Each job runs tests/bench/c/replay_job, which sleeps its duration
times the stretch of the GPUs that it really has (`stretch`): no code of Berth's says how long a job takes. `outcome`
joins the logs by job, `analysis` and `figures` compare systems, `simulated` asks the simulator about the same arrivals,
`chaos` makes trouble meanwhile. A run that is done lies in build/replay and is not run again.
"""
