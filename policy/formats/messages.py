"""The stable ids of Berth's messages: one table for plugins, berthd, commands and `berth why`.

A message ends with its id in brackets. A number is never used again for something else, and stays when a text changes:

>>> tagged("it asks for no GPUs", 202)
'it asks for no GPUs [BERTH-202]'

The plugins write the same numbers (slurm_plugins/common/messages.h); docs/troubleshooting.md explains each of them.
"""

import re
from typing import NamedTuple


class MessageEntry(NamedTuple):
    """The explanation of one id."""

    meaning: str
    advice: str
    """The advice: an action of the user or of an admin."""


MOST_BYTES = 512
"""Most bytes of a message that the plugin takes, with its id."""

_TAG = re.compile(r" \[BERTH-([1-9][0-9]{2})\]\Z")


def tag(number: int) -> str:
    """Returns what stands behind a message.

    >>> tag(101)
    ' [BERTH-101]'
    """
    return f" [BERTH-{number}]"


def tagged(text: object, number: int) -> str:
    """Returns a text with its id at the end; one that has an id keeps it, and control characters become `?`."""
    shown = readable(str(text))
    return shown if _TAG.search(shown) else f"{shown}{tag(number)}"


def readable(text: str) -> str:
    r"""Returns a text that changes nothing on a terminal: names and reasons may hold what users wrote.

    >>> readable("a\x1b[2Jb")
    'a?[2Jb'
    """
    return text if text.isprintable() else "".join(one if one.isprintable() or one == "\n" else "?" for one in text)


def one_line(text: str) -> str:
    r"""Returns a readable text in which no line can end, so that it makes one line of a log.

    >>> one_line("a\nberthd: b")
    'a?berthd: b'
    """
    return readable(text).replace("\n", "?")


def untagged(text: str) -> tuple[str, int | None]:
    """Takes a message apart: its text, and the number of its id if it has one.

    >>> untagged("it is held [BERTH-504]"), untagged("it is held")
    (('it is held', 504), ('it is held', None))
    """
    match = _TAG.search(text)
    return (text, None) if match is None else (text[: match.start()], int(match[1]))


_NOTHING = "Nothing."
_REASON = "Read the reason in the message."
_SLURM_CHOOSES = "Nothing: Slurm places the job as without Berth. For a place by Berth, leave the option out."

MESSAGES: dict[int, MessageEntry] = {
    # The decision about a job
    101: MessageEntry("The job has a place: its GPUs were free.", _NOTHING),
    102: MessageEntry(
        "The job waits for the GPUs that come free soonest.", "Nothing; `berth queue` shows the expected start."
    ),
    103: MessageEntry("The job is a guest and has a seat on a GPU.", _NOTHING),
    104: MessageEntry("No place is in sight for the job yet; berthd looks for one each second.", _REASON),
    105: MessageEntry("The site only watches: Slurm chooses, and Berth notes what it would have done.", _NOTHING),
    106: MessageEntry("The job was given back to Slurm, which chooses its GPUs.", _REASON),
    107: MessageEntry("The job can start now on several nodes; Slurm chooses its GPUs there.", _NOTHING),
    # Left to Slurm
    201: MessageEntry("The job is left to Slurm, which chooses its GPUs.", _REASON),
    202: MessageEntry("The job asks for no GPUs.", "Nothing, or ask for GPUs, such as `--gpus=2`."),
    203: MessageEntry("The request has an option that only Slurm can honour.", _SLURM_CHOOSES),
    204: MessageEntry("The constraint is more than features joined by `&`.", _SLURM_CHOOSES),
    205: MessageEntry("The request names a range of numbers of nodes.", "Name one number, such as `--nodes=2`."),
    206: MessageEntry(
        "The options do not say clearly how many GPUs each node has to give.",
        "Use `--gpus=N` or `--nodes=N --gpus-per-node=K` alone.",
    ),
    207: MessageEntry(
        "GPUs, tasks, CPUs or memory cannot be the same on each node, as a pin needs it.",
        "Ask for numbers that divide evenly, or submit a heterogeneous job.",
    ),
    208: MessageEntry(
        "`--nodelist` names another number of nodes than the job has.",
        "Name as many nodes as the job has, or leave `--nodelist` out.",
    ),
    209: MessageEntry(
        "The partition of the job is not clear, or not known to berthd.", "Name one partition with `-p`."
    ),
    210: MessageEntry(
        "No node can hold the job as it asks.",
        "Ask for less on each node; `sinfo -N -o '%N %c %m %G'` shows what nodes have.",
    ),
    211: MessageEntry(
        "A setting of Slurm counts CPUs in a way that a pin cannot follow.",
        "For admins: the message names the setting; see docs/like-plain.md.",
    ),
    212: MessageEntry(
        "The texts of the request or of its place are longer than Slurm keeps.",
        "Shorten Extra, comment, lists of nodes or flags, or use fewer nodes.",
    ),
    213: MessageEntry(
        "berthd has just started and has not read Slurm.", "Nothing; `berth status` shows whether it lasts."
    ),
    214: MessageEntry(
        "berthd has not read Slurm for more than 30 seconds.", "For admins: `berth status` and berthd's log say why."
    ),
    215: MessageEntry("berthd met a fault of its own.", "For admins: report the fault that berthd's log shows."),
    216: MessageEntry(
        "Slurm refused a job like this a moment ago, so Berth leaves it alone for five minutes.",
        "Nothing; for admins: the log shows 660.",
    ),
    217: MessageEntry(
        "The cluster is in a federation, or has the plain layout and no node for this job that is better now.",
        _NOTHING,
    ),
    218: MessageEntry(
        "The partition has no GPUs of which Slurm counts parts.",
        "For admins: `berth topo export --slurm` writes the lines for shards.",
    ),
    219: MessageEntry(
        "The job cannot start now where Berth pins jobs, and could on other nodes, so Slurm chooses.", "Nothing."
    ),
    220: MessageEntry(
        "`--switches` asks for more leaves than one, and Slurm counts them as it chooses.",
        "Use `--locality=leaf` or `--locality=pod`.",
    ),
    221: MessageEntry(
        "No node has the GPU model or feature that the job asks for.",
        "Use a model that the message lists; without a change Slurm refuses the job, or it waits for ever.",
    ),
    222: MessageEntry(
        "No node of the partition is large enough for the job.",
        "Ask for at most what the message names, or for more nodes.",
    ),
    223: MessageEntry(
        "The GPUs of the nodes cannot be pinned.",
        "For admins: `berth doctor` tells what is missing, mostly a topology file.",
    ),
    224: MessageEntry("A text in the request cannot be read.", "Correct what the message quotes."),
    225: MessageEntry(
        "The job can start now on several nodes, in a form that no place has, so Slurm chooses.",
        "Nothing, or ask for one node with `--nodes=1`.",
    ),
    # No place now
    300: MessageEntry("No place fits the job now.", "Nothing; it gets one when GPUs come free."),
    301: MessageEntry(
        "The time for an answer was over before a place was found.", "Nothing; the next planning pass looks for one."
    ),
    302: MessageEntry("The cluster has no nodes now.", "For admins: look at `sinfo`."),
    303: MessageEntry(
        "A placement policy chose GPUs that Slurm cannot pin.",
        "For admins: report it to the policy's authors, or set another `policy` in berth.conf.",
    ),
    304: MessageEntry("No GPU has such a part free.", "Nothing, or ask for a smaller `--gpu-share`."),
    305: MessageEntry(
        "There is room, but only beside jobs that would slow the job down, or that it would slow down.",
        "Nothing; it waits for better company for a bounded time.",
    ),
    306: MessageEntry(
        "All nodes that could hold the job are down, drained or reserved.", "`sinfo -R` shows why; ask an admin."
    ),
    307: MessageEntry(
        "Nothing fits now, and no job on these GPUs has an end in sight.",
        "Nothing; time limits of running jobs would help.",
    ),
    308: MessageEntry("The job cannot start now, and the site lets Slurm preempt for it.", _NOTHING),
    309: MessageEntry("The guest may not begin yet.", _NOTHING),
    310: MessageEntry(
        "The guest's seat is chosen by what is known of it and of the owners.", "Nothing; this takes a second or two."
    ),
    311: MessageEntry(
        "No seat is free for the guest.", "Nothing, or submit it with `--gpu-tier=opportunistic,upgrade`."
    ),
    # Refused
    401: MessageEntry("A Berth flag has a wrong value.", "Write it as the message says."),
    402: MessageEntry(
        "`--gpu-share` contradicts another option, or the partition's.", "Leave one of them out, as the message says."
    ),
    403: MessageEntry("The partition or QOS does not allow this tier.", "Use a tier that the message names."),
    404: MessageEntry(
        "No machine can ever meet `--locality=nvlink` for so many GPUs.",
        "Ask for fewer GPUs, or for `--locality=node`.",
    ),
    405: MessageEntry(
        "A guest cannot have this form: it is a batch job with one GPU.",
        "Submit it with `sbatch --gpus=1`, without `--exclusive`.",
    ),
    406: MessageEntry("The GPUs are cut by MIG, so that they cannot be shared.", "Leave `--gpu-share` out."),
    407: MessageEntry(
        "The memory of the GPUs is not known.", "Leave `--gpu-mem` out. For admins: topology files tell it."
    ),
    408: MessageEntry("No GPU has so much memory for packed jobs.", "Ask for at most what the message names."),
    409: MessageEntry(
        "The partition has no seats in Slurm's books.",
        "For admins: `berth topo export --slurm` writes the lines for seats.",
    ),
    412: MessageEntry("The texts of a guest's place are longer than Slurm keeps.", "Shorten Extra."),
    # Why a job waits
    501: MessageEntry("The guest waits for a seat.", "Nothing, or submit it with `--gpu-tier=opportunistic,upgrade`."),
    502: MessageEntry("Another job has to end first.", "`scontrol show job JOBID` shows the dependency."),
    503: MessageEntry(
        "The begin time of the job has not come.", "Nothing, or `scontrol update JobId=JOBID StartTime=now`."
    ),
    504: MessageEntry("The job is held.", "`scontrol release JOBID`, if it is yours to release."),
    505: MessageEntry(
        "The reservation has not begun, or has too little free.", "`scontrol show reservation` shows it."
    ),
    506: MessageEntry("The licences of the job are in use.", "`scontrol show licenses` shows them."),
    507: MessageEntry("The job waits for its pre-flight.", "Nothing; if it fails, `berth why` says of what."),
    508: MessageEntry(
        "A limit of the account, the QOS or the partition holds the job.",
        "The message has Slurm's word for the limit; ask an admin.",
    ),
    509: MessageEntry(
        "All nodes that could hold the job are down, drained or reserved.", "`sinfo -R` shows why; ask an admin."
    ),
    510: MessageEntry("The free GPUs are slow for this job, so it waits for faster ones for a bounded time.", _NOTHING),
    511: MessageEntry("The packed job waits for better company, for a bounded time.", _NOTHING),
    512: MessageEntry(
        "The job waits for GPUs that are as near to each other as it insists on, or on fewer nodes.",
        "Nothing, or submit it with a shorter time, such as `--locality=nvlink@5`.",
    ),
    513: MessageEntry(
        "GPUs that fit are free, and kept for jobs with a higher priority.",
        "Nothing; `sprio` shows the priorities. A shorter time limit may let it start before.",
    ),
    514: MessageEntry("No GPU has such a part free.", "Nothing, or ask for a smaller `--gpu-share`."),
    515: MessageEntry("Fewer GPUs are free than the job needs.", "Nothing, or ask for fewer GPUs."),
    516: MessageEntry(
        "Enough GPUs are free, but not together on as few nodes as the job needs.",
        "Nothing, or ask for fewer GPUs on each node, or for more nodes.",
    ),
    517: MessageEntry(
        "The job could start, and lets others go first for a bounded time, so that all jobs together end sooner.",
        "Nothing; an admin can turn it off (`look_ahead` in berth.conf).",
    ),
    # berthd's log
    600: MessageEntry("A line of berthd's log without an id of its own.", _REASON),
    601: MessageEntry(
        "A job could not have its share, and was not sent elsewhere.",
        "The reason stands behind it; Slurm may have lost the job.",
    ),
    602: MessageEntry(
        "A node held a job that differs from what Berth planned.",
        "Look at the job with `scontrol show job`; the reason stands behind it.",
    ),
    603: MessageEntry(
        "A job could not have its share and has ended.", "See the node's log; docs/shares-on-nodes.md has the causes."
    ),
    604: MessageEntry(
        "A job could not have its share on several nodes, and is not sent on.",
        "Run `berth doctor node` on these nodes.",
    ),
    605: MessageEntry(
        "A job could not have its share on a node and goes to another one.", "Run `berth doctor node` on that node."
    ),
    606: MessageEntry("A waiting job was given back to Slurm.", "Nothing; the reason stands behind it."),
    607: MessageEntry(
        "Slurm refused to change a waiting job, which keeps its place.",
        "The reason is Slurm's; if it lasts, `berth release JOBID`.",
    ),
    608: MessageEntry("A guest lost its seat before it began, and waits.", _NOTHING),
    609: MessageEntry("A guest has its GPU for itself from now on.", _NOTHING),
    610: MessageEntry("A waiting job was pinned to GPUs.", _NOTHING),
    612: MessageEntry(
        "A packed job brought MPS down; its user's jobs are put beside nobody for an hour.",
        "Look at that job's errors.",
    ),
    613: MessageEntry("A guest leaves its seat for the owner.", _NOTHING),
    614: MessageEntry(
        "A guest could not be warned or sent away; it is tried again, and ended after 10 s.", "The reason is Slurm's."
    ),
    615: MessageEntry(
        "A guest that was sent away takes long to end.",
        "KillWait in slurm.conf bounds it; look at the job's processes.",
    ),
    616: MessageEntry("The list of nodes that a job excludes could not be updated.", "The reason is Slurm's."),
    617: MessageEntry(
        "Slurm does not know a node any more that waiting jobs exclude by name.",
        "Add the node with `State=FUTURE` to slurm.conf.",
    ),
    618: MessageEntry(
        "The end of a job was not looked into.", "The reason is Slurm's; with `--retry`, submit it again."
    ),
    619: MessageEntry("A job failed, and its failure was classified.", "docs/failures.md explains the classes."),
    620: MessageEntry("It was decided whether a failed job is tried again.", _NOTHING),
    621: MessageEntry("Somebody else than Berth put a job back into the queue.", _NOTHING),
    622: MessageEntry("berthd does not know whether a job's nodes booted anew.", _NOTHING),
    623: MessageEntry(
        "A pre-flight could not be ended, or its result could not be written.",
        "The reason is Slurm's; `scancel` the pre-flight.",
    ),
    624: MessageEntry("A pre-flight ended, or its job goes on without it.", _NOTHING),
    625: MessageEntry(
        "The class of a failure could not be written into the accounting.",
        "Make SlurmUser an admin of the accounting: `sacctmgr add user slurm AdminLevel=Admin`.",
    ),
    626: MessageEntry(
        "A notice of a node was refused.",
        "The message says why; the hosts need this cluster's munge key and clocks that agree.",
    ),
    627: MessageEntry("A user's question was refused.", "As for 626."),
    628: MessageEntry("berthd hears no notices of Epilogs.", "Free the port, or change `[notice] port` of berth.conf."),
    629: MessageEntry("Step times cannot be written.", "Make the file `[berthd] steps` writable for SlurmUser."),
    630: MessageEntry("How a share is held could not be written into the job.", "The reason is Slurm's."),
    631: MessageEntry(
        "A job runs on another part of a GPU than Berth planned.",
        "Look whether Prolog and the SPANK plugin are installed on that node.",
    ),
    632: MessageEntry("The time of a job's best loss could not be written.", "The reason is Slurm's."),
    633: MessageEntry("berthd has read the topology files.", _NOTHING),
    634: MessageEntry(
        "A topology file cannot be read, or contradicts Slurm's own topology.",
        "Run `berth topo discover` on that node anew, or correct Slurm's file.",
    ),
    635: MessageEntry(
        "Leaves and pods are not known.", "Correct the file that the message names, or `fabric` of berth.conf."
    ),
    636: MessageEntry("The reason why a job waits could not be written into it.", "The reason is Slurm's."),
    637: MessageEntry("The scores could not be refreshed from step times.", "Run `berth scores refresh` by hand."),
    638: MessageEntry(
        "The state file cannot be written: `berth nodes`, `queue`, `top`, `web` and the metrics are out of date.",
        "Make the folder of berthd's socket writable for SlurmUser.",
    ),
    639: MessageEntry(
        "Berth places no job on a node.", "`berth doctor` tells what is missing, mostly a topology file."
    ),
    640: MessageEntry("berthd has read the score table.", _NOTHING),
    641: MessageEntry(
        "The score table cannot be read, so that all GPUs count as equally fast.",
        "Correct the file that the message names.",
    ),
    642: MessageEntry("The profiles cannot be read or written.", "Make the file readable and writable for SlurmUser."),
    643: MessageEntry("berthd has read the profiles.", _NOTHING),
    645: MessageEntry("What Slurm chose, and what Berth would have chosen (observe = true).", _NOTHING),
    646: MessageEntry(
        "The helper that matches guests and GPUs has failed; guests are seated one by one.",
        "Nothing; if it lasts, report it.",
    ),
    647: MessageEntry(
        "The fit of the predictor cannot be read, so that guests are seated by rules alone.",
        "Correct `[sharing] fit` of berth.conf.",
    ),
    648: MessageEntry("A node's guard sends a guest away.", "Nothing; docs/guard.md explains the reasons."),
    649: MessageEntry("Slurm can be read again.", _NOTHING),
    650: MessageEntry(
        "Slurm cannot be read; berthd goes on with what it knows.", "Look whether slurmctld answers: `scontrol ping`."
    ),
    651: MessageEntry("A request to berthd could not be read.", "Install plugin and berthd of one release."),
    652: MessageEntry(
        "berthd met a fault of its own, and the job was left to Slurm.", "Report the line; it has all that is needed."
    ),
    653: MessageEntry(
        "A process of berthd has ended or cannot be started.", "The lines before say why; it is started again."
    ),
    654: MessageEntry(
        "The requests of one user take long to answer and are left to Slurm for a while.",
        "Look at what that user submits.",
    ),
    655: MessageEntry("berthd cannot accept a connection.", "Raise LimitNOFILE of berthd's unit."),
    656: MessageEntry("berthd answers.", _NOTHING),
    657: MessageEntry(
        "The planning process hung and was killed.",
        "Look whether slurmctld and the file systems of berthd's files answer.",
    ),
    658: MessageEntry("The planning process has ended; a new one starts.", "The lines before say why."),
    659: MessageEntry("berthd has stopped.", _NOTHING),
    660: MessageEntry(
        "Slurm refused a job with the place that Berth gave it; the next of its kind are left to Slurm.",
        "Look for Slurm's reason in slurmctld's log, and report it.",
    ),
    661: MessageEntry(
        "A running job is moved to other GPUs, or stays after all.", "Nothing; docs/moving.md explains the steps."
    ),
    662: MessageEntry(
        "A step of the plan failed, and a job or the step is left out for a while.",
        "Report the line; it has all that is needed.",
    ),
    663: MessageEntry(
        "Jobs of one user were given places and never came into Slurm's queue; that user's places are not kept.",
        "Look in slurmctld's log why their submissions are refused.",
    ),
    664: MessageEntry(
        "A job's record has a form that Berth does not know, so that the job is left to Slurm; others are planned.",
        "Report the line and the Slurm release.",
    ),
    670: MessageEntry(
        "No metrics are served, because the token's file cannot be read.",
        "Make `[metrics] token_file` readable for SlurmUser.",
    ),
    671: MessageEntry(
        "Slurm does not tell who may see what: what it said last holds, and before that everything is private.",
        "Look whether slurmctld answers: `scontrol ping`.",
    ),
    672: MessageEntry("A request for metrics met a fault of berthd's own.", "Report the line."),
    # Commands
    700: MessageEntry("A command cannot do what it was asked.", _REASON),
    701: MessageEntry("A command was called wrongly.", "The message has the right call, or `--help` has it."),
    702: MessageEntry(
        "berth.conf has a wrong setting.", "Correct the line that the message names; `berthd --check-config` checks it."
    ),
    703: MessageEntry(
        "Slurm does not answer, refused, or does not know the job.",
        "Look whether `scontrol ping` answers, and whether the number is right.",
    ),
    704: MessageEntry(
        "Slurm answered in a form that Berth does not know.",
        "Install a Berth that supports this Slurm; README has the releases.",
    ),
    705: MessageEntry("A text for a job's record is longer than Slurm takes.", "Shorten Extra or the list of nodes."),
    706: MessageEntry(
        "berthd does not answer.", "Look at `systemctl status berthd`, and at `[users] hosts` of berth.conf."
    ),
    707: MessageEntry(
        "A file or a text does not have the form that belongs there.",
        "Correct what the message names; docs/formats.md has the forms.",
    ),
    708: MessageEntry("A Python package is missing.", "Install Berth with `.[daemon]` or `.[user]`."),
    709: MessageEntry(
        "A topology file, a score table or a hardware query has a fault.",
        "Correct the file that the message names, or run `berth topo discover` anew.",
    ),
    711: MessageEntry("The job has no pin of Berth, so that there is nothing to give back.", "Nothing."),
    712: MessageEntry("A list is not whole, because too many jobs wait.", "Use `squeue` for all of them."),
    713: MessageEntry(
        "A file is not as `berth migrate` left it.", "Take out what others changed, or restore the file by hand."
    ),
    727: MessageEntry(
        "Jobs end that Slurm may put back by RequeueExit: `berth release` waits for them, half a minute at most.",
        "Nothing; if some keep their place, repeat `berth release --all` when they wait.",
    ),
    # The plugins
    801: MessageEntry("A text of a job is longer than Slurm takes.", "Make it shorter."),
    802: MessageEntry("Extra has text that Berth alone writes.", "Leave `[berth/` out of it."),
    803: MessageEntry("A job asks for GPUs of several models.", "Ask for one model, or submit a heterogeneous job."),
    804: MessageEntry("The GPU model is no word.", "Use a model that `sinfo -o %f` lists."),
    805: MessageEntry("The number of GPUs is no number.", "Write `--gpus=2` or `--gpus=MODEL:2`."),
    806: MessageEntry("GPUs are asked for in a form that hides them.", "Write `--gres=gpu:N`."),
    807: MessageEntry("GPUs are asked for by position.", "Ask for a number of GPUs, and use `--locality`."),
    808: MessageEntry("Shards or seats are asked for by hand.", "Use `--gpu-share` or `--gpu-tier`."),
    809: MessageEntry("Licences that count GPUs are asked for by hand.", "Leave them out, and ask for `gpu:MODEL:N`."),
    810: MessageEntry(
        "The GPU model cannot be joined to the constraint.", "Put the model into the constraint yourself."
    ),
    811: MessageEntry("slurmctld is out of memory.", "Try again; tell an admin."),
    812: MessageEntry("berthd did not answer, so that a flag was not applied.", "Look at `systemctl status berthd`."),
    813: MessageEntry(
        "berthd does not answer, and the site takes no GPU job without it (`fail = closed`).",
        "Try again later; for admins: look at `systemctl status berthd`.",
    ),
    814: MessageEntry(
        "The request is too long for berthd, and the site takes no GPU job that berthd has not seen.",
        "Shorten what the message names.",
    ),
    816: MessageEntry("A change could take a job where its tier is not allowed.", "Cancel it and submit it again."),
    820: MessageEntry("A job with a planned place cannot be changed in this way.", "Cancel it and submit it again."),
    821: MessageEntry("A guest that waits for a seat cannot be changed in this way.", "Cancel it and submit it again."),
    822: MessageEntry("The Extra of a running job that shares a GPU cannot be changed.", "Leave it as it is."),
    823: MessageEntry("berthd has not listed a job that shares a GPU yet.", "Try again in half a minute."),
    824: MessageEntry("berthd has not listed a guest yet.", "Try again in half a minute."),
    825: MessageEntry("The licences of a job count its GPUs and cannot be changed.", "Cancel it and submit it again."),
    826: MessageEntry(
        "A job with GPUs cannot move from or to a partition that Berth does not look at.",
        "Cancel it and submit it there.",
    ),
    827: MessageEntry("Partition, QOS or GPUs of a job cannot be changed yet.", "Try again in half a minute."),
    828: MessageEntry(
        "A change to another GPU model needs the model as a feature.", "Give `Features=MODEL` in the same change."
    ),
    830: MessageEntry("What a job asked for could not be kept in its admin_comment.", "Look at the job's flags."),
    831: MessageEntry("The plugin cannot read berth.conf, and uses defaults.", "Correct the line that the log names."),
    832: MessageEntry("This Slurm lacks a function, so that no job is pinned.", "Use a Slurm that README lists."),
    833: MessageEntry("The hook log cannot be written.", "Make the file writable for SlurmUser."),
    834: MessageEntry("berthd's answer was dropped.", "Install plugin and berthd of one release."),
    835: MessageEntry("berthd does not answer the plugin.", "Look at `systemctl status berthd`."),
    836: MessageEntry("A guest has to be requeued when the owner of its GPU comes.", "Leave `Requeue` as it is."),
    841: MessageEntry("A flag cannot be registered.", "Remove the other SPANK plugin with that flag."),
    842: MessageEntry("A value could not be handed to the job.", "Submit it again; tell an admin if it lasts."),
    843: MessageEntry(
        "There is no pre-flight here.", "Use sbatch; as an admin, add `CliFilterPlugins=berth` to slurm.conf."
    ),
    844: MessageEntry("Slurm did not take the runner of a pre-flight.", "Read slurmd's log on the node."),
    845: MessageEntry("plugstack.conf has a word that Berth does not know.", "Use one that the message lists."),
    846: MessageEntry(
        "A packed job is wrong on its node: no share file, other GPUs than Slurm says, or MPS is gone.",
        "Read the reason in the message; for wrong GPUs look at `ConstrainDevices` in cgroup.conf.",
    ),
    847: MessageEntry("The GPU model cannot be taken out of an option.", "Leave the model out."),
    848: MessageEntry("`--gpu-share` of several GPUs works in sbatch only.", "Use sbatch, or ask for one GPU."),
    849: MessageEntry(
        "The pre-flight of a job: whether it runs, or why there is none.", "Read the reason in the message."
    ),
    851: MessageEntry("There is no pre-flight, so that nothing was submitted.", "Mend what the message names."),
    852: MessageEntry("A pre-flight was cancelled, because its job was not submitted.", "Nothing."),
    853: MessageEntry("The job cannot be made to depend on its pre-flight.", "Submit it with `--preflight=no`."),
    854: MessageEntry("A heterogeneous job has no pre-flight.", "Submit it with `--preflight=no`."),
    # The nodes
    901: MessageEntry("A line of berth-prolog without an id of its own.", _REASON),
    902: MessageEntry("A line of berth-epilog without an id of its own.", _REASON),
    903: MessageEntry("A line of berth-guard without an id of its own.", _REASON),
    904: MessageEntry("What a pre-flight does, or how it ended.", _REASON),
    905: MessageEntry("The part of Berth inside a job cannot do its work; the job goes on.", _REASON),
    910: MessageEntry("A program of the node met an error.", _REASON),
    911: MessageEntry(
        "A job cannot have its share on this node; it is sent elsewhere.", "Run `berth doctor node` there."
    ),
    912: MessageEntry("Files under /run/berth cannot be read or written.", "Look at the folder and its file system."),
    913: MessageEntry("Another Prolog or Epilog held the GPU too long.", "Look for a Prolog or Epilog that hangs."),
    914: MessageEntry(
        "The NVIDIA driver does not answer, or does not do what it was told.", "Run `nvidia-smi` on the node."
    ),
    915: MessageEntry(
        "The control program of MPS does not start or answer.",
        "Do what the message says; see the daemon's log under /run/berth/mps.",
    ),
    916: MessageEntry("A GPU needs a human, and the node was drained.", "See the reason in `sinfo -R`; test the GPU."),
    917: MessageEntry("The table [node] of berth.conf is wrong.", "Correct the line that the message names."),
    918: MessageEntry("A job's Extra does not say what Berth writes there.", "Look who wrote it; users cannot."),
    919: MessageEntry(
        "What Slurm gave a job and what its Extra says do not agree; it does not start.",
        "Look who changed the job; `scontrol release` starts it anew.",
    ),
    920: MessageEntry("A file of the node does not have its form.", "Remove it when no job shares the GPU."),
    921: MessageEntry("Slurm could not be asked or changed from the node.", "Run `scontrol ping` there."),
    922: MessageEntry(
        "A user's text looks like what scontrol prints, so that the answer is not believed.",
        "Look at the job's name and comment.",
    ),
    923: MessageEntry("A script of the site's own failed.", "Look at that script's output."),
    924: MessageEntry("A program did not end in its time.", "Look whether the node is overloaded."),
    925: MessageEntry("Slurm ended the Prolog or Epilog.", "Look at PrologTimeout and EpilogTimeout in slurm.conf."),
    926: MessageEntry(
        "berth-prolog or berth-epilog was called by somebody else than slurmd.", "Nothing, or call it as slurmd does."
    ),
    927: MessageEntry("A program of the node met a fault of its own; the job goes on.", "Report the line."),
    931: MessageEntry("MPS failed on a GPU.", "The message names the job that caused it, if it is known."),
    932: MessageEntry(
        "A job lost its GPU when MPS failed.", "Nothing if it is requeued; else look at the jobs beside it."
    ),
    933: MessageEntry("A job used more than its share.", "The message says what was done; look at that job."),
    934: MessageEntry("What a job left behind on a node was removed.", "Look why its Epilog did not run."),
    935: MessageEntry(
        "berth-guard could not tell berthd or Slurm something; it tries again.", "Look whether berthd answers."
    ),
    936: MessageEntry("A job that was frozen runs again.", "Nothing."),
    937: MessageEntry(
        "A job was stopped or held on the node, because it differs from what Berth planned.",
        "`berth why JOBID` says what differs.",
    ),
}
"""By number: 1xx places, 2xx left to Slurm, 3xx no place now, 4xx refused, 5xx waits, 6xx berthd's log, 7xx commands,
8xx plugins, 9xx nodes."""
