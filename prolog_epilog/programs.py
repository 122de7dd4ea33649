# SPDX-License-Identifier: Apache-2.0
"""The programs berth-prolog and berth-epilog.

    berth-prolog [--config FILE] [--root FOLDER]

slurmd runs them without arguments; the arguments are for tests and for scripts that call them. They read only those
environment variables that slurmd itself sets.

slurmd starts the shell script `front/berth-prolog`, which ends at once for a job that has nothing to do with Berth.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence

from prolog_epilog.errors import CalledWrongly, NodeConfigError
from prolog_epilog.here import DEV, ROOT, Here
from prolog_epilog.job import job as jobs
from prolog_epilog.job.slurm import Scontrol
from prolog_epilog.messages import EPILOG, PROLOG, numbered, tagged
from prolog_epilog.node import logfile
from prolog_epilog.settings import config

_NOT_SLURMDS = frozenset({"LC_CTYPE", "PWD", "OLDPWD", "SHLVL", "_"})
"""Variables that slurmd does not set: Python adds the first when it starts in the C locale, the shell the others."""

_HELP = """\
usage: berth-{name} [--config FILE] [--root FOLDER] [--dev FOLDER]

Berth's {title}: slurmd runs it as root, without arguments,
{when}.
What it says stands in slurmd's log. berth doctor node checks that slurm.conf
calls it.

  --config FILE  berth.conf, where it is not beside slurm.conf
  --root FOLDER  Berth's folder of this boot (default: {root})
  --dev FOLDER   the device files (default: {dev})
"""
_WHEN = {
    "prolog": "when a job starts on a node, and gives it its share of a GPU",
    "epilog": "when a job ends on a node, takes its share back and tells berthd",
}

_WORDS = {"--config": "config", "--root": "root", "--dev": "dev"}


def prolog() -> int:
    """Runs berth-prolog."""
    from prolog_epilog.prolog import run  # noqa: PLC0415 - the Epilog does without it

    return _main("prolog", run, sys.argv[1:])


def epilog() -> int:
    """Runs berth-epilog."""
    from prolog_epilog.epilog import run  # noqa: PLC0415 - the Prolog does without it

    return _main("epilog", run, sys.argv[1:])


class _Report:
    """The output of a call: at once to slurmd's log, and at its end as one line to the file of [node] log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = time.monotonic()
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        """Writes one sentence for the admin; a user's text in it makes no second line."""
        told = tagged(sentence, PROLOG if self.name == "prolog" else EPILOG)
        self.sentences.append(told)
        sys.stderr.write(f"berth-{self.name}: {told}\n")

    def keep(self, path: str, job: int, code: int) -> None:
        """Appends the line; a log that cannot be written is only reported."""
        spent = round((time.monotonic() - self.started) * 1e6)
        words = [f"{time.time():.6f}", self.name, str(job), str(spent), str(code), *self.sentences]
        try:
            logfile.append(path, "\t".join(words))
        except OSError as problem:
            self.say(f"{path}: {problem.strerror}; set [node] log to a file that root can write")


def _main(name: str, run: Callable[[jobs.NodeJob, Here], int], words: Sequence[str]) -> int:
    if {"-h", "--help"} & set(words):
        sys.stdout.write(_HELP.format(name=name, title=name.title(), when=_WHEN[name], root=ROOT, dev=DEV))
        return 0
    report = _Report(name)
    try:
        options = _options(name, words)
        job = jobs.of({key: value for key, value in os.environ.items() if key not in _NOT_SLURMDS}, name)
    except CalledWrongly as problem:
        report.say(numbered(problem))
        # If slurmd called it, any other status would take the node out of service, and this is not the node's fault.
        return 0 if "SLURM_SCRIPT_CONTEXT" in os.environ else 2
    conf = options.get("config") or config.find(os.environ)
    settings, trouble = _settings(conf)
    if trouble:
        report.say(trouble)
    try:
        code = run(job, _here(settings, trouble, report, options)._replace(conf=conf))
    except Exception as problem:  # noqa: BLE001 - a fault of ours must not take the node out of service
        report.say(tagged(f"this is a fault in Berth, please report it: {type(problem).__name__}: {problem}", 927))
        code = 0
    if settings.log:
        report.keep(settings.log, job.id, code)
    return code


def _settings(path: str) -> tuple[config.NodeConfig, str]:
    """Returns what berth.conf says; if it is wrong, the defaults and what is wrong."""
    try:
        return config.load(path), ""
    except NodeConfigError as problem:
        return config.NodeConfig(), f"{problem}; until then nothing is chained and nothing is shared on this node"


def _here(settings: config.NodeConfig, trouble: str, report: _Report, options: dict[str, str]) -> Here:
    slurm = Scontrol(settings.scontrol, os.environ.get("SLURM_CONF", ""), settings.scontrol_timeout)
    return Here(settings, slurm, report.say, options.get("root", ROOT), options.get("dev", DEV), trouble)


def _options(name: str, words: Sequence[str]) -> dict[str, str]:
    """Reads the options by hand: argparse would take as long as all the rest."""
    if len(words) % 2 or not set(words[::2]) <= _WORDS.keys():
        raise CalledWrongly(f"usage: berth-{name} [--config FILE] [--root FOLDER] [--dev FOLDER]")
    return {_WORDS[word]: value for word, value in zip(words[::2], words[1::2], strict=True)}
