"""How much longer sbatch takes."""
from tests.slurm.test_preflight import *
import time
def test_measure(slurm: Slurm) -> None:
    text = slurm.target.bash("""
cd /home/tests; printf '#!/bin/bash\\nsleep 1\\n' > m.sh; chmod 755 m.sh
for mode in no 5; do for i in 1 2 3 4 5 6 7 8; do s=$(date +%s%N); sbatch --preflight=$mode --gpus=1 -H -o /dev/null m.sh >/dev/null 2>&1; sbatch --preflight=$mode --gpus=1 -o /dev/null -b now+1hour m.sh >/dev/null 2>&1;  e=$(date +%s%N); echo $mode $(( (e-s)/1000000 )); done; done
for mode in no 5; do for i in 1 2 3 4 5 6 7 8 9 10; do s=$(date +%s%N); sbatch --preflight=$mode --gpus=1 -o /dev/null -b now+1hour m.sh >/dev/null 2>&1;  e=$(date +%s%N); echo one $mode $(( (e-s)/1000000 )); done; done
""", user="alice").out
    print(text)
