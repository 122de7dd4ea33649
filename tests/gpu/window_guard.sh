#!/bin/bash
# A second window of ten minutes on the same kind of machine, for the guard: bash tests/gpu/window_guard.sh
#
# Whether managed memory of a guest makes room for its owner; owner and guest under the guard, by time slices and by MPS alone, with runs as long as the figures in the docs; then what
# the guard rests on: standing still, the driver's own gate, a busy client that is killed, busy multiprocessors; and two
# whole visits of a calibration. All goes to $OUT/window-guard.tgz; docs/develop/gpu-window.md says more.
ARCHIVE=window-guard.tgz
. "$(dirname "$0")/window_steps.sh"
tests 60 owner-memory tests/gpu/test_memory_gpu.py
tests 270 owner-and-guest tests/gpu/test_guard_gpu.py
if [ -n "$C" ]; then
  tests 75 standing-still tests/gpu/test_mps_gpu.py -k "standing_still"
  tests 40 own-gate tests/gpu/test_mps_gpu.py -k "own_gate or multiprocessors_are_seen"
  tests 75 killed-clients tests/gpu/test_mps_gpu.py -k "killing_a_busy_client"
  tests 40 two-loops tests/gpu/test_mps_gpu.py -k "two_loops and not gemm"
fi
step 75 calibrate-node "$PY" -c 'from policy.cli.main import main; raise SystemExit(main(["calibrate", "node", "--node", "n1"]))'
printf '\n=== %s s: all in %s\n' "$SECONDS" "$OUT/$ARCHIVE"
cat "$L/status.txt"
