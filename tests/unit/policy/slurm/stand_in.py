# SPDX-License-Identifier: Apache-2.0
"""A program in place of berth-slurm, which answers from files."""

import os
from pathlib import Path

from tests.programs import python_program

CONFIG = '["config","SLURM_VERSION = 24.11.5%0ASelectTypeParameters = CR_CORE_MEMORY%0ADefMemPerCPU = 100%0A"]'

# Answers a command with what stands in the file of its first word, then in the next one of that name; says "ok" where
# there is none, but for a job which it was given to read. What it was asked is written down.
STAND_IN = """
import json, sys, time
from pathlib import Path
folder = Path({folder!r})
print('["ok"]', flush=True)
for line in sys.stdin.buffer:
    with (folder / "asked").open("ab") as asked:
        asked.write(line)
    word = line.split()[0].decode()
    files = sorted(folder.glob(word + ".*"))
    text = files[0].read_text() if files else ""
    if len(files) > 1:
        files[0].unlink()
    if word == "job" and not files:
        known = (folder / "known").read_text().splitlines()
        text = "".join(one + "\\n" for one in known if json.loads(one)[:2] == ["job", int(line.split()[1])])
    if text == "die":
        sys.exit("slurm went away")
    if text == "hang":
        time.sleep(60)
    print(text + ('' if '["error"' in text else '["ok"]'), flush=True)
"""


class StandIn:
    """A program in place of berth-slurm."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "berth-slurm"
        python_program(self.path, STAND_IN.format(folder=str(folder)))
        self.answers("config", CONFIG)
        self.answers("ping", f'["ping","{os.uname().nodename}",""]')

    def answers(self, word: str, *texts: str) -> None:
        for old in self.folder.glob(f"{word}.*"):
            old.unlink()
        if word == "read":
            (self.folder / "known").write_text(texts[0])
        for number, text in enumerate(texts):
            whole = text if text in {"die", "hang"} or '["error"' in text else text.rstrip("\n") + "\n" * bool(text)
            (self.folder / f"{word}.{number}").write_text(whole)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()
