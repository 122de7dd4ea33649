# SPDX-License-Identifier: Apache-2.0
"""Handles a job that failed: berthd is told the class of the failure that the end of its log shows.

The controller may not see users' files, and root must not open them. So the job's first node does it, in a process that
the Epilog leaves behind: neither job nor node wait for it, and there is one for all jobs that fail. A second process,
with the rights of the job's user and none of root's, opens the log. A third, with the rights of the user `nobody`, goes
through what was read. Nothing of the text leaves the node.
"""

import json
import os
import re
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prolog_epilog.errors import ExtraError, NodeError
from prolog_epilog.job.escape import escape
from prolog_epilog.job.job import NodeJob, first_node

if TYPE_CHECKING:
    from collections.abc import Sequence

    from prolog_epilog.failed.spool import Failed
    from prolog_epilog.here import Here

TAIL_BYTES = 256 * 1024
"""Bytes of the end of a log that are read."""

_ALL_SECONDS = 65
_READ_SECONDS = 20.0
"""The processes behind an Epilog have a low priority: on a busy node five were too few for one to open a log."""
_CLASSIFY_SECONDS = 30.0
_TELL_SECONDS = 300
"""Slurm's own MinJobAge in seconds: after that Slurm has forgotten a job that is over."""
_MOST_SIGN = 120
_NOBODY = 65_534
_CODE = re.compile(r"[0-9]{1,3}:[0-9]{1,3}")
_ENDED_WELL = frozenset({"0:0", "0:15"})
"""0:15 is a job that was ended by SIGTERM: Slurm's record says enough of it."""
_CLASS = re.compile(r"[a-z_]{1,32}")
_PR_SET_DUMPABLE = 4


@dataclass(frozen=True, slots=True)
class FailureWord:
    """The notice of a failure (docs/develop/formats.md, 11.5)."""

    job: int
    node: str
    failure: str
    transient: bool
    sign: str
    start: int = 0
    """The start of the run; 0 if Slurm does not say."""
    degraded: bool = False
    """True if this node could not set the job's share up: berth-notice says that once, and may not be heard."""

    @property
    def text(self) -> str:
        """Returns the credential's payload."""
        sign = "".join(one if " " <= one <= "~" else "?" for one in self.sign[:_MOST_SIGN])
        return (
            f"berth/1 failed job={self.job} node={self.node} start={self.start} class={self.failure}"
            f" transient={int(self.transient)} sign={escape(sign)}{' degraded' if self.degraded else ''}"
        )


def leave_behind(job: NodeJob, here: "Here") -> None:
    """Leaves a process behind that looks into a failed job; the Epilog goes on at once.

    The job's first node does that, and one that could not set its share up.
    """
    code = job.environment.get("SLURM_JOB_EXIT_CODE2", "0:0")
    if code in _ENDED_WELL or not _CODE.fullmatch(code) or "[berth/1 " not in job.extra:
        return
    degraded = _degraded(job, here)
    if not degraded and first_node(job.environment.get("SLURM_JOB_NODELIST", "")) != job.node:
        return
    from prolog_epilog.failed import spool  # noqa: PLC0415 - most jobs end well

    try:
        spool.add(here.paths, job, code, degraded=degraded)
        with spool.alone(here.paths) as nobody_does:
            pass
        if not nobody_does:
            # The process that looks into the others takes this one too.
            return
        between = os.fork()
    except NodeError as problem:
        here.say(f"what job {job.id} failed of is not looked into: {problem}")
        return
    except OSError as problem:
        here.say(f"what job {job.id} failed of is not looked into: {problem.strerror}")
        return
    if between:
        os.waitpid(between, 0)
        return
    # It runs in a session of its own, and without a parent: Slurm ends what an Epilog leaves in its group.
    try:
        os.setsid()
        if not os.fork():
            _alone(here)
    finally:
        os._exit(0)


def _degraded(job: NodeJob, here: "Here") -> bool:
    from prolog_epilog.tenants import share_file  # noqa: PLC0415 - most jobs share nothing

    try:
        file = share_file.read(here.paths, job.id) if here.has_file(job.id) else None
    except NodeError:
        return False
    return file is not None and file.degraded and file.start in {0, job.start}


def _alone(here: "Here") -> None:
    """Runs in the process that stays: there is one on a node, however many jobs fail."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(null, file)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir("/")
    os.nice(10)
    try:
        go_through(here)
    except Exception as problem:  # noqa: BLE001 - only the log sees it
        _log(f"failed jobs are not looked into: {problem}")


def _log(sentence: str) -> None:
    import syslog  # noqa: PLC0415 - only where something is wrong

    syslog.openlog("berth-epilog", facility=syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, sentence)


def go_through(here: "Here") -> None:
    """Looks into all failed jobs, and tells berthd; ends at once if another process does that."""
    from prolog_epilog.failed import spool  # noqa: PLC0415 - the Epilog does without

    while True:
        with spool.alone(here.paths) as mine:
            if not mine:
                return
            _tell_all(here)
        # A job that came just before the lock was free again was left to us.
        if not spool.waiting(here.paths):
            return


@dataclass(slots=True)
class _Untold:
    word: FailureWord
    until: float
    due: float
    pause: float = 1.0


def _tell_all(here: "Here") -> None:
    from prolog_epilog.failed import spool  # noqa: PLC0415 - the Epilog does without
    from prolog_epilog.guard import options  # noqa: PLC0415
    from prolog_epilog.guard.tell import notice  # noqa: PLC0415 - the Epilog does without

    _, where = options.load(here.conf)
    untold: list[_Untold] = []
    while True:
        names = spool.waiting(here.paths) if len(untold) < spool.MOST else []
        if names and (failed := spool.take(here.paths, names[0])) and where.hosts:
            word = _looked_into(failed, here)
            now = time.monotonic()
            untold += [_Untold(word, now + _TELL_SECONDS, now)] if word else []
        for one in [one for one in untold if one.due <= time.monotonic()]:
            # berthd takes it once it has looked into the job, which may still be ending on other nodes.
            why = f"no berthd on {', '.join(where.hosts)} took it; is it up?"
            try:
                if notice.tell(where, one.word):
                    untold.remove(one)
                    continue
            except (NodeError, OSError) as problem:
                why = str(problem)
            one.due, one.pause = time.monotonic() + one.pause, min(2 * one.pause, 15.0)
            if one.due > one.until:
                _log(f"job {one.word.job} failed, and berthd was not told of what: {why}")
                untold.remove(one)
        if not (names or untold):
            return
        if not names:
            time.sleep(0.25)


def _looked_into(failed: "Failed", here: "Here") -> FailureWord | None:
    """Returns the notice on a job; None if the cause can no longer be known."""

    def too_long(*_: object) -> None:
        raise NodeError("that takes too long")

    if time.time() - failed.at > _TELL_SECONDS:
        _log(f"job {failed.job.id} failed, and berthd was not told of what: too many failed before it")
        return None
    try:
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(_ALL_SECONDS)
        return replace(look(failed.job, here, failed.code), degraded=failed.degraded)
    except Exception as problem:  # noqa: BLE001 - the next one may be looked into all the same
        _log(f"job {failed.job.id} failed, and berthd was not told of what: {problem}")
        return None
    finally:
        signal.alarm(0)
        # The processes that read logs were not waited for.
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def look(job: NodeJob, here: "Here", code: str) -> FailureWord:
    """Returns the class of failure that the end of a job's log shows."""
    paths = [path for path in here.slurm.logs(job.id) if path.startswith("/")]
    text = read_as(job.uid, paths, _READ_SECONDS)
    rules = [word for path in here.config.failure_rules for word in ("--rules", path)]
    faults = [word for number in _xids(job, here) for word in ("--xid", str(number))]
    # An appended log begins with the runs before.
    since = ["--start", str(job.start)] if job.start else []
    found = classify(text, ["--exit-code", code, *since, *rules, *faults])
    failure, sign = str(found.get("class")), str(found.get("sign", ""))
    if not _CLASS.fullmatch(failure):
        raise NodeError("berth classify gave no class; is it of this release?")
    return FailureWord(job.id, job.node, failure, found.get("transient") is True, sign or "-", job.start)


def _xids(job: NodeJob, here: "Here") -> tuple[int, ...]:
    from prolog_epilog.guard.measure import xids  # noqa: PLC0415 - the Epilog does without
    from prolog_epilog.job import extra  # noqa: PLC0415 - the Epilog does without

    try:
        berth = extra.read(job.extra, job.node)
    except ExtraError:
        return ()
    return xids.of_gpus(here.paths, berth.gpus, job.start) if berth and job.start else ()


def read_as(uid: int, paths: "Sequence[str]", seconds: float) -> bytes:
    """Returns the ends of a user's files, opened with only the user's rights; skips what is no regular file."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            _become(uid)
            for path in dict.fromkeys(paths):
                with suppress(OSError), open(writing, "wb", closefd=False) as out:
                    out.write(_end_of(path))
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return _all_of(reading, len(paths) * TAIL_BYTES, time.monotonic() + seconds)
    finally:
        os.close(reading)
        # A process that hangs in an unreachable file system is not waited for.
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, os.WNOHANG)


def _become(uid: int) -> None:
    """Becomes a user, for good.

    The user's other processes must not take this one over, as it is in none of the user's jobs.
    """
    import ctypes  # noqa: PLC0415 - the Epilog does without
    import pwd  # noqa: PLC0415
    import resource  # noqa: PLC0415

    if os.geteuid() == 0:
        user = pwd.getpwuid(uid)
        os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
        os.setresgid(user.pw_gid, user.pw_gid, user.pw_gid)
        os.setresuid(uid, uid, uid)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (5, 5))


def _end_of(path: str) -> bytes:
    import stat  # noqa: PLC0415

    # A pipe without a reader, or a terminal, must not hold or take this process.
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            return b""
        return os.pread(file, TAIL_BYTES, max(0, status.st_size - TAIL_BYTES))
    finally:
        os.close(file)


def _all_of(pipe: int, most: int, until: float) -> bytes:
    found = bytearray()
    while len(found) < most and (left := until - time.monotonic()) > 0.0:
        if not select.select([pipe], [], [], left)[0]:
            break
        data = os.read(pipe, 65_536)
        if not data:
            break
        found += data
    return bytes(found)


def classify(text: bytes, words: "Sequence[str]") -> dict[str, object]:
    """Has Berth's own command classify a text, as the user `nobody`: the text is a user's."""
    import subprocess  # noqa: PLC0415 - the Epilog does without

    from prolog_epilog.node.children import CLEAN  # noqa: PLC0415

    program = os.path.join(os.path.dirname(sys.executable), "berth")  # noqa: PTH118, PTH120 - as everywhere here
    root = os.geteuid() == 0
    try:
        done = subprocess.run(
            [program, "classify", "-", "--json", *words],
            input=text,
            capture_output=True,
            timeout=_CLASSIFY_SECONDS,
            check=True,
            env=CLEAN,
            cwd="/",
            user=_NOBODY if root else None,
            group=_NOBODY if root else None,
            extra_groups=() if root else None,
        )
        found = json.loads(done.stdout)
    except subprocess.CalledProcessError as problem:
        said = problem.stderr.decode("utf-8", "replace").strip().split("\n")[-1][:200]
        raise NodeError(f"berth classify failed: {said}") from None
    except (OSError, ValueError, subprocess.TimeoutExpired) as problem:
        raise NodeError(f"berth classify: {problem}") from None
    return found if isinstance(found, dict) else {}
