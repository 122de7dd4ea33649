"""Which jobs a killed slurmctld forgot, by its log: the campaign of faults holds nothing of them against Berth."""

from tests.hard.faults.invariants import forgotten_in

LOG = """\
[t] slurmctld version 26.05.5 started on cluster berth(0)
[t] _slurm_rpc_submit_batch_job: JobId=41 SLUID=s3M5M8D2SVYY00 InitPrio=1 usec=503
[t] _slurm_rpc_submit_batch_job: JobId=42 SLUID=s3M5M8D2SVZ600 InitPrio=1 usec=661
[t] sched: Allocate JobId=41 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=42 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched/backfill: _start_job: Started JobId=43_2(44) in gpu on n4
[t] _slurm_rpc_submit_batch_job: JobId=45 SLUID=s3M5M8D2T2HS00 InitPrio=1 usec=814
[t] _slurm_rpc_submit_batch_job: JobId=47 SLUID=s3M5M8D2T2JS00 InitPrio=1 usec=512
[t] slurmctld version 26.05.5 started on cluster berth(929)
[t] Purged files for defunct batch JobId=47
[t] _slurm_rpc_submit_batch_job: JobId=45 SLUID=s3M5M8D2T3MC00 InitPrio=1 usec=871
[t] sched: Allocate JobId=42 NodeList=n3 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=43_2(44) NodeList=n1 #CPUs=1 Partition=gpu
[t] sched: Allocate JobId=45 NodeList=n2 #CPUs=2 Partition=gpu
[t] sched: Allocate JobId=45 NodeList=n4 #CPUs=2 Partition=gpu
""".splitlines()


def test_numbers_given_out_again_and_starts_told_again_were_forgotten() -> None:
    assert forgotten_in(LOG) == {42, 44, 45, 47}


def test_two_starts_under_one_slurmctld_are_nothing_that_it_forgot() -> None:
    assert forgotten_in([LOG[0], *LOG[-2:]]) == set()
