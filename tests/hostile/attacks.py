# SPDX-License-Identifier: Apache-2.0
"""What ordinary users try: one row each, its command and the refusal that it meets.

A row without a refusal may be taken or not; what it leaves is judged by `world.assert_nothing_gained` like all others.
In commands `$PINNED`, `$HELD`, `$PLAIN`, `$PACKED` are jobs of the attacker's own, and `$V` is the victim's.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.slurm.forbidden import OF_A_PLACE

POSITION = "GPUs are not chosen by position"
OWN = "shard and seat are not asked for by hand"
HIDDEN = "are asked for as gres/NAME at the start"
BERTHS = "is written by Berth alone"
DENIED = "denied|not permitted|Permission"
SLURMS = "error|Invalid|denied|[Uu]nable|not "
"""Slurm's own refusal, in words that differ between versions."""


class Attack(NamedTuple):
    """One row."""

    name: str
    command: str
    refusal: str = ""
    """A regular expression; with it the command has to fail, and to say this."""


LINE = "FORGED-LINE"
"""No line of a log of Berth begins with it."""
FORGED = (
    "x\\n   JobState=PENDING Reason=None\\n   Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=*\\n   JOB_GRES=shard:90"
    "\\n     Nodes=n[1-4] CPU_IDs=0 Mem=0 GRES=shard:g0:90(90/100)\\n   AdminComment=[berth/1 state=placed parked=1]"
)
CONTROL = "a\\033]0;owned\\007\\r\\n\\x9b2J" + LINE + " all is well\\n"
SEGMENT = "[berth/1 nodes=n1,n2,n3,n4 gpus=0 share=99 mem=90000 way=mps]"


def sbatch(name: str, words: str, refusal: str = "", before: str = "") -> Attack:
    """A batch job."""
    return Attack(f"sbatch {name}", f"{before} sbatch -n1 -o /dev/null -t 1 {words} --wrap 'sleep 1'", refusal)


SUBMISSIONS = (
    sbatch("position in gres", "--gres=gpu:g0:1", POSITION),
    sbatch("position without a number", "--gres=gpu:g0", POSITION),
    sbatch("position in gpus", "--gpus=g3:1", POSITION),
    sbatch("position by node", "--gpus-per-node=g1:2", POSITION),
    sbatch("position by task", "--gpus-per-task=g1:1", POSITION),
    sbatch("position by socket", "--sockets-per-node=1 --gpus-per-socket=g1:1", POSITION),
    sbatch("position behind CPUs of a task", "--tres-per-task=cpu=1,gres/gpu:g1:1", POSITION),
    sbatch("position by environment", "", POSITION, "SBATCH_GRES=gpu:g0:1"),
    sbatch("position behind another GRES", "--gres=gpu:1,gpu:g1:1", f"{POSITION}|Invalid GRES"),
    sbatch("shards", "--gres=shard:10", OWN),
    sbatch("shards of a GPU", "--gres=shard:g0:10", OWN),
    sbatch("shards by task", "--tres-per-task=gres/shard:g0:1", OWN),
    sbatch("a seat", "--gres=seat:1", OWN),
    sbatch("a seat of a GPU", "--gres=seat:g7:1", OWN),
    sbatch("a seat beside a GPU", "--gres=gpu:1,seat:g0:1", OWN),
    sbatch("a seat by task", "--tres-per-task=gres/seat:g0:1", OWN),
    sbatch("a seat in a partition that Berth skips", "-p plain --gres=seat:g0:1", OWN),
    *(
        sbatch(f"shards in a partition that Berth skips: {words}", f"-p plain {words}", f"{OWN}|Invalid generic")
        for words in (
            *("--gres=shard:1", "--gres=shard:g0:1", "--gres=gpu:1,shard:g0:1", "--tres-per-task=gres/shard:g0:1"),
            *("--array=0-31 --gres=shard:g0:1", "-N2 --gres=shard:100", "--exclusive --gres=shard:g7:1"),
        )
    ),
    Attack(
        "sbatch a part with shards in a skipped partition",
        "printf '#!/bin/bash\\n' | sbatch -n1 : -n1 -p plain --gres=shard:1",
        OWN,
    ),
    Attack("srun shards in a skipped partition", "timeout 9 srun -n1 -t 1 -p plain --gres=shard:g0:1 true", OWN),
    Attack("salloc shards in a skipped partition", "timeout 9 salloc -n1 -t 1 -p plain --gres=shard:1 true", OWN),
    sbatch("shards in a list of partitions", "-p plain,gpu --gres=shard:g0:1", OWN),
    sbatch("a seat in a list of partitions", "-p gpu,plain --gres=seat:g0:1", OWN),
    sbatch("a seat that hides", "--gres=xgres/seat:g0:1", SLURMS),
    sbatch("a GPU that hides behind a colon", "--gres=xgres:gpu:g0:1", SLURMS),
    sbatch("a seat that hides in a task", "--tres-per-task=xgres/seat:g0:1", SLURMS),
    sbatch("an Extra of Berth's", f"--gpus=1 --extra='{SEGMENT}'", BERTHS),
    sbatch("an Extra that opens like Berth's", "--gpus=1 --extra='a [berth/'", BERTHS),
    sbatch("an Extra of Berth's without GPUs", f"--extra='{SEGMENT}'", BERTHS),
    sbatch("an Extra of Berth's in a partition that Berth skips", f"-p plain --extra='{SEGMENT}'", BERTHS),
    sbatch("an Extra longer than Slurm's", "--gpus=1 --extra=$(printf 'x%.0s' $(seq 1500))", SLURMS),
    sbatch("an Extra of 70,000 bytes", "--gpus=1 --extra=$(head -c 70000 /dev/zero | tr '\\0' x)", "longer than"),
    sbatch("an AdminComment", f"--gpus=1 --admin-comment='{SEGMENT}'", f"unrecognized|{SLURMS}"),
    sbatch("a comment like Berth's", f"--gpus=1 --comment='{SEGMENT}'"),
    sbatch("a name that poses as scontrol", f"--gpu-share=10 -J $'{FORGED}'"),
    sbatch("a comment that poses as scontrol", f"--gpu-share=10 --comment=$'{FORGED}'"),
    sbatch("a folder that poses as scontrol", f"--gpu-share=10 -D $'/tmp/{FORGED}'"),
    sbatch("a network that poses as scontrol", f"--gpu-share=10 --network=$'{FORGED}'"),
    sbatch("an account that poses as scontrol", f"--gpu-share=10 -A $'{FORGED}'"),
    sbatch("a wckey that poses as scontrol", f"--gpu-share=10 --wckey=$'{FORGED}'"),
    sbatch("a burst buffer that poses as scontrol", f"--gpu-share=10 --bb=$'{FORGED}'"),
    sbatch("a log that poses as scontrol", f"--gpu-share=10 -o $'/tmp/{FORGED}'"),
    sbatch("a mail address that poses as scontrol", f"--gpu-share=10 --mail-type=END --mail-user=$'{FORGED}'"),
    sbatch("a container that poses as scontrol", f"--gpu-share=10 --container=$'/tmp/{FORGED}'"),
    sbatch("a wckey like Berth's", f"--gpus=1 --wckey='{SEGMENT}'"),
    sbatch("a seat as a burst buffer", "--gpus=1 --bb='gres/seat:g0:1 xgres/seat:g0:1'"),
    Attack(
        "sbatch a seat and an Extra of Berth's as burst buffers of the script",
        f"printf '#!/bin/bash\\n#BB gres=seat:g0:1\\n#DW jobdw type=scratch {SEGMENT}\\n#BB_LUA --extra={SEGMENT}\\n'"
        " | sbatch -n1 -t 1 --gpus=1 -o /dev/null",
    ),
    *(
        sbatch(f"control characters in {option}", f"--gpu-share=10 {option}=$'{CONTROL}'")
        for option in ("--job-name", "--comment", "--wckey", "--account", "--constraint", "--chdir", "--reservation")
    ),
    Attack(
        "sbatch a flood that Slurm refuses",
        "for i in $(seq 40); do sbatch -n1 -t 1 -o /dev/null --gpus=8 -x nowhere$i --wrap true; done",
        SLURMS,
    ),
    Attack(
        "sbatch a name for each job",
        "for i in $(seq 40); do sbatch -H -n1 -t 1 -o /dev/null --gpu-share=5 -J many$i --wrap true; done >/dev/null;"
        " squeue -h -u $(id -un) -o '%A %j' | awk '$2 ~ /^many/ {print $1}' | xargs scancel",
    ),
    Attack(
        "sbatch a log that becomes a link to a secret",
        "sbatch -n1 -t 1 --gpus=1 --retry=1 -o /tmp/hers-%j.log"
        " --wrap 'ln -sf /etc/shadow /tmp/hers-$SLURM_JOB_ID.log; exit 1'",
    ),
    sbatch("a link for a log", "--gpus=1 -o /tmp/to-shadow", "", "ln -sf /etc/shadow /tmp/to-shadow;"),
    sbatch("no share", "--gpu-share=0", "gpu-share"),
    sbatch("more than all", "--gpu-share=101", "gpu-share"),
    sbatch("a share with a command", "--gpu-share='30;reboot'", "gpu-share"),
    sbatch("memory below nothing", "--gpu-share=10 --gpu-mem=-1G", "gpu-mem"),
    sbatch("a tier of his own", "--gpus=1 --gpu-tier=exclusive,root", "gpu-tier"),
    sbatch("a wait for ever", "--gpus=2 --locality=nvlink@99999999999999999999", "locality"),
    sbatch("a retry without end", "--gpus=1 --retry=999999", "retry"),
    sbatch("a flag past SPANK", "--gpus=1", before="env _SLURM_SPANK_OPTION_berth_gpu_share=900"),
    sbatch("several models", "--gpus=v100:1,h100:1", "one model only"),
    sbatch("a model with a command", "--gpus='v100;id:1'", SLURMS),
    sbatch("a number with a unit", "--gpus=1mib", SLURMS),
    sbatch("a name of 5,000 bytes", "--gpus=1 -J $(head -c 5000 /dev/zero | tr '\\0' x)"),
    sbatch("a thousand partitions", "--gpus=1 -p $(printf 'gpu,%.0s' $(seq 1000))gpu"),
    sbatch("a thousand features", "--gpus=1 -C \"$(printf 'v100|%.0s' $(seq 1000))v100\""),
    sbatch("a reservation that is none", "--gpus=1 --reservation=nope", SLURMS),
    sbatch("a seat as a licence", "--gpus=1 --licenses=gres/seat:g0:1", SLURMS),
    sbatch("another user", "--gpus=1 --uid=bob", SLURMS),
    sbatch("a negative nice", "--gpus=1 --nice=-10000"),
    sbatch("the highest priority", "--gpus=1 --priority=4294967293"),
    sbatch("a binding to a GPU of others", "--gpus=1 --gpu-bind=map_gpu:7"),
    sbatch("a clock of the GPU", "--gpus=1 --gpu-freq=high"),
    sbatch("an array", "--array=0-2 --gres=gpu:g0:1", POSITION),
    Attack("sbatch a second part with a seat", "sbatch -n1 --gpus=1 : -n1 --gres=seat:g0:1 --wrap true", OWN),
    Attack("sbatch a first part with a position", "sbatch -n1 --gres=gpu:g0:1 : -n1 --gpus=1 --wrap true", POSITION),
    Attack(
        "sbatch a seat by the script", "printf '#!/bin/bash\\n#SBATCH --gres=seat:g0:1\\n' | sbatch -o /dev/null", OWN
    ),
    Attack("srun a position", "timeout 9 srun -n1 -t 1 --gres=gpu:g0:1 true", POSITION),
    Attack("srun a seat", "timeout 9 srun -n1 -t 1 --gres=seat:g0:1 true", OWN),
    Attack("srun a seat by environment", "SLURM_GRES=seat:g0:1 timeout 9 srun -n1 -t 1 true", OWN),
    *(
        Attack(
            f"srun a position, and {name} in the environment",
            f"env {name}={value} timeout 9 srun -n1 -t 1 --gres=gpu:g0:1 true",
            POSITION,
        )
        for name, value in (
            *(("BERTH_SHARE_ASKED", 1), ("BERTH_GUEST", 1), ("BERTH_PREFLIGHT", 1), ("SLURM_SHARDS_ON_NODE", 100)),
            *(("SLURM_GPUS_ON_NODE", 8), ("BERTH_PREFLIGHT_JOB", 1), ("BERTH_PREFLIGHT_ASKED", "must")),
        )
    ),
    *(
        Attack(
            f"{command} a position by a slurm.conf of her own",
            "sed -e '/^CliFilterPlugins/d' -e '/^PlugStackConfig/d' /etc/slurm/slurm.conf >/tmp/hers.conf;"
            f" echo PlugStackConfig=/dev/null >>/tmp/hers.conf; SLURM_CONF=/tmp/hers.conf timeout 9 {command}"
            " -n1 -t 1 --gres=gpu:g0:1 true",
            POSITION,
        )
        for command in ("srun", "salloc")
    ),
    Attack("salloc shards", "timeout 9 salloc -n1 -t 1 --gres=shard:g0:1 true", OWN),
    Attack("salloc an Extra of Berth's", f"timeout 9 salloc -n1 -t 1 --gpus=1 --extra='{SEGMENT}' true", BERTHS),
)


def update(job: str, words: str, refusal: str = "") -> Attack:
    """A change of one of his own jobs."""
    return Attack(f"update {job} {words[:60]}", f"scontrol update JobId=${job} {words}", refusal)


HIDDEN_FORMS = ("xgres/seat:g0:1", "xgres/shard:g0:5", "xgres/gpu:g1:1", "xgres:gpu:g0:1", "gres/nic:gres/gpu:g0:1")
FIELDS = ("TresPerNode", "TresPerJob", "TresPerSocket", "TresPerTask")
UPDATES = (
    *(update("HELD", f"{field}={form}") for form in HIDDEN_FORMS for field in FIELDS),
    *(update("PLAIN", f"{field}={form}") for form in HIDDEN_FORMS[:2] for field in FIELDS),
    *(update("HELD", f"TresPerNode=gres/{kind}:g0:1", OWN) for kind in ("seat", "shard")),
    *(update("PLAIN", f"{field}=gres/shard:g0:1", OWN) for field in FIELDS),
    update("HELD", "Partition=plain TresPerNode=gres/shard:g0:1", OWN),
    update("HELD", "TresPerNode=gres/gpu:g1:1", POSITION),
    update("HELD", "Gres=gpu:g1:1", POSITION),
    update("HELD", "TresPerNode=gres/gpu:v100:1", "leave the model out"),
    update("HELD", f"Extra='{SEGMENT}'", BERTHS),
    *(
        update("PINNED", words)
        for words in (
            *OF_A_PLACE,
            *("TresPerNode=", "TresPerJob=gres/gpu:1", "Extra="),
            *("TresPerNode=xgres/shard:g0:1", "TresPerTask=xgres/seat:g0:1"),
        )
    ),
    *(
        update(job, words)
        for job in ("PINNED", "HELD", "PACKED")
        for words in (
            *("Nice=-10000", "Priority=4294967293", "Comment='" + SEGMENT + "'", f"JobName=$'{FORGED}'"),
            *(
                "Reservation=nope",
                "Licenses=gres/seat:g0:1",
                "Contiguous=1",
                "OverSubscribe=yes",
                "QOS=root",
                "Account=root",
            ),
            *("Dependency=afterok:$V", "Partition=other", "UserId=0", "Shared=0", "Requeue=0", "Deadline=now+1hour"),
        )
    ),
    *(
        update(job, f"{field}={text}")
        for job in ("PINNED", "HELD", "PACKED")
        for field in ("BurstBuffer", "WCKey", "MailUser", "StdOut", "JobName")
        for text in (f"'{SEGMENT}'", f"$'{CONTROL}'")
    ),
    *(update(job, f"AdminComment='{SEGMENT}'", SLURMS) for job in ("PINNED", "HELD", "PACKED")),
    update("PACKED", "Extra=", "shares a GPU"),
    update("PACKED", "Extra=mine", "shares a GPU"),
    update("PACKED", f"Extra='{SEGMENT}'", BERTHS),
    update("PACKED", "TimeLimit=+1000", SLURMS),
    update("PACKED", "TresPerNode=gres/shard:g0:1", OWN),
    update("PACKED", "NumNodes=1"),
    update("PACKED", "NodeList=n1", SLURMS),
    Attack("hold what is planned and let it go", "scontrol hold $PINNED; scontrol release $PINNED"),
    Attack("put a planned job on top", "scontrol top $PINNED"),
    Attack(
        "change all numbers",
        "for j in $(seq $((V > 20 ? V - 20 : 1)) $V); do scontrol update JobId=$j Nice=-5; done",
        SLURMS,
    ),
)

OTHERS = (
    Attack("cancel", "scancel $V", SLURMS),
    Attack("kill", "scancel --full --signal=KILL $V", SLURMS),
    Attack("cancel all of the user's", "scancel -u bob; scancel -A root; false", ""),
    *(
        Attack(verb, f"scontrol {verb} $V", SLURMS)
        for verb in ("hold", "release", "requeue", "requeuehold", "suspend", "resume", "top", "notify hi")
    ),
    Attack("change", "scontrol update JobId=$V Nice=100", SLURMS),
    Attack("change its Extra", "scontrol update JobId=$V Extra=", SLURMS),
    Attack("read its script", "scontrol write batch_script $V - | grep -v Invalid", "failed|denied"),
    Attack("a step in it", "timeout 9 srun --overlap --jobid=$V -n1 true", SLURMS),
    Attack("a step in it by environment", "SLURM_JOB_ID=$V SLURM_JOBID=$V timeout 9 srun --overlap -n1 true", SLURMS),
    Attack("attach", "timeout 9 sattach $V.0", SLURMS),
    Attack(
        "depend on its end and kill it", "sbatch -n1 -o /dev/null --gpus=1 --dependency=singleton -J victim --wrap true"
    ),
    Attack("drain its node", "scontrol update NodeName=n3 State=DRAIN Reason=x", SLURMS),
    Attack("change its partition", "scontrol update PartitionName=gpu State=DOWN", SLURMS),
    Attack("reserve its node", "scontrol create reservation starttime=now duration=10 users=alice nodes=n3", SLURMS),
    Attack("reconfigure", "scontrol reconfigure", SLURMS),
    Attack("give its place back", "berth release $V", SLURMS),
    Attack("give all places back", "berth release --all", SLURMS),
)

SAYS_NOTHING = (
    "exec 3<>/dev/tcp/ctl/6826 && {{ {send}; }} >&3 && timeout 3 cat <&3 | grep -q . && exit 0; echo hung up; exit 1"
)
"""Succeeds where berthd answers."""

CONTROLLER = (
    Attack(
        "berthd's socket",
        "python3 -c 'from socket import *; socket(AF_UNIX, SOCK_SEQPACKET).connect(\"/run/berth/berthd.sock\")'",
        DENIED,
    ),
    Attack("the list of pinned jobs", "echo x >/run/berth/pinned", DENIED),
    Attack("a new list", "echo x >/run/berth/pinned.new", DENIED),
    Attack("a link in its place", "ln -sf /tmp/mine /run/berth/pinned", DENIED),
    Attack("remove the socket", "rm -f /run/berth/berthd.sock", DENIED),
    Attack("the topology", "echo x >/etc/slurm/berth/topology/n1.json", DENIED),
    Attack("berth.conf", "echo x >>/etc/slurm/berth.conf", DENIED),
    # That a job ends anyone may say: berthd reads the job at Slurm then. Nothing else is heard without a credential.
    *(
        Attack(f"no credential: {text[:30]}", SAYS_NOTHING.format(send=f'echo "{text}"'), "hung up")
        for text in (
            "berth/1 epilog job=$V node=n3 degraded",
            "berth/1 guard node=n3 gpu=0 job=$V state=unhealthy word=evict",
            "berth/1 failed job=$V node=n3 start=0 class=gpu_lost transient=1 sign=x",
        )
    ),
    Attack("an answer to a wrong one", SAYS_NOTHING.format(send="echo MUNGE:AwQFAAD:"), "hung up"),
    Attack("an answer to a long line", SAYS_NOTHING.format(send="head -c 100000 /dev/zero | tr '\\\\0' M"), "hung up"),
    *(
        Attack(f"a user's word: {text[:30]}", SAYS_NOTHING.format(send=f'echo -n "{text}" | munge'), "hung up")
        for text in (
            "berth/1 epilog job=$V node=n3",
            "berth/1 epilog job=$V node=n3 degraded",
            "berth/1 guard node=n3 gpu=0 job=$V state=unhealthy word=evict",
            "berth/1 failed job=$V node=n3 start=0 class=gpu_lost transient=1 sign=x",
        )
    ),
)

OWN_STEP = "timeout 60 srun --overlap --jobid=$PACKED -n1 bash -c {words}"

LINKS = (
    Attack(
        "a link for the folder of words",
        OWN_STEP.format(words="'ln -sfnT /tmp /run/berth/words'"),
        # Where a host or a guest was on that node, the folder is there.
        f"{DENIED}|cannot overwrite directory",
    ),
    Attack(
        "links beside the sockets of her own MPS",
        OWN_STEP.format(words="'cd $CUDA_MPS_PIPE_DIRECTORY; ln -s /etc/shadow x || ln -s /etc/shadow ../x'"),
        DENIED,
    ),
    Attack(
        "a link where root writes",
        OWN_STEP.format(
            words='"for d in /run/berth /run/berth/* /var/lib/berth /var/log/berth /var/spool/berth;'
            ' do ln -s /etc/shadow \\$d/hers && echo \\$d takes links && exit 0; done; exit 1"'
        ),
        f"{DENIED}|No such",
    ),
)

NODE = (
    Attack(
        "write where root reads",
        "find /run/berth -xdev -writable ! -type s ! -type p 2>/dev/null | grep . || echo denied; exit 1",
        "^denied$",
    ),
    Attack("a share file", "echo x >/run/berth/jobs/999999", DENIED),
    Attack("a link for a share file", "ln -s /etc/passwd /run/berth/jobs/999998", DENIED),
    Attack("list whose jobs share", "ls /run/berth/jobs", DENIED),
    Attack("the books", "cat /run/berth/gpus/*/state.json", f"{DENIED}|No such"),
    Attack("a folder for MPS", "mkdir /run/berth/mps/mine", DENIED),
    Attack("the victim's MPS", "cd $PIPE && ls", DENIED),
    Attack("end the victim's MPS", "export CUDA_MPS_PIPE_DIRECTORY=$PIPE; echo quit | nvidia-cuda-mps-control"),
    Attack(
        "the victim's word",
        "for f in /run/berth/words/$V/*; do echo x >$f; done; echo x >/run/berth/words/$V/y",
        f"{DENIED}|No such",
    ),
    Attack("end the guard", "kill $(pgrep -of berth-guard)", DENIED),
    Attack("the guard's lock", "flock -n /run/berth/guard.lock true", DENIED),
    Attack(
        "the Epilog by hand",
        "export SLURM_SCRIPT_CONTEXT=epilog_slurmd SLURM_JOB_ID=$V SLURM_JOB_UID=0 SLURMD_NODENAME=n3;"
        " /opt/berth/bin/berth-epilog",
    ),
)
