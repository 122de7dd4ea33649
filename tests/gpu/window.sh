#!/bin/bash
# Ten minutes on a bare machine with one GPU, as root, from the checkout: bash tests/gpu/window.sh
#
# Asks in this order what only a GPU can answer: MPS's limits, tenants' commands, faults; Berth's own
# life cycle of MPS; two products at 30 and 70 %; the library inside PyTorch; calibration; owner and guest.
# All words and figures go to $OUT/window.tgz; docs/develop/gpu-window.md says more.
ARCHIVE=window.tgz
. "$(dirname "$0")/window_steps.sh"
U=65534 # the tenant
G=$("$PY" -c 'import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))')
CLIENT=$PY # which the tenant must be able to run
setpriv --reuid=$U --regid=$U --clear-groups env "$PY" -c '' 2> /dev/null || CLIENT=/usr/bin/python3
export C G U CLIENT

facts() {
  local one
  for one in "-L" "" "topo -m" "nvlink -s" "-q -x"; do echo "--- nvidia-smi $one"; nvidia-smi $one || echo "rc=$?"; done
  echo "MPS: ${C:-none}; GPU: $G"; command -v nvidia-cuda-mps-server nvcc gcc; id; uname -a; grep cgroup /proc/mounts
  "$PY" -c 'import sys; print(sys.version)'; "$PY" -c 'import torch; print("torch", torch.__version__, torch.version.cuda)' || true
}

help() { # what the programs say of themselves
  "$C" -h; echo "rc=$?"; "$C" -p 3 -h; echo "rc=$?"; "$C" -v; echo "rc=$?"
  grep -aoE '[[:print:]]{4,}' "$C" | grep -iE 'multi|static|partition|proto|%s/|Insufficient'
}

mps() { # mps QUESTIONS OPTIONS...: facts of a daemon with these options, and no code of Berth's in between
  local D P S K q questions=$1
  shift
  D=$(mktemp -d /run/w.XXXX); chmod 711 "$D"; mkdir -m 711 "$D/pipe"; mkdir -m 755 "$D/log"
  export CUDA_MPS_PIPE_DIRECTORY=$D/pipe CUDA_MPS_LOG_DIRECTORY=$D/log CUDA_VISIBLE_DEVICES=$G
  setsid "$C" "$@" > "$D/out" 2>&1 < /dev/null & P=$!
  for q in $(seq 50); do
    if [ -e "$D/pipe/control" ] || { [ "$q" -gt 10 ] && ! kill -0 $P 2> /dev/null; }; then break; fi
    sleep 0.1
  done
  [ -s "$D/pipe/nvidia-cuda-mps-control.pid" ] && P=$(cat "$D/pipe/nvidia-cuda-mps-control.pid")
  echo "$P $D" >> "$W/started"
  t() { printf -- '--- root: %s\n' "$*"; echo "$*" | timeout 5 "$C"; echo "rc=$?"; }
  u() { printf -- '--- tenant: %s\n' "$*"; echo "$*" | timeout 5 setpriv --reuid=$U --regid=$U --clear-groups "$C"; echo "rc=$?"; }
  client() { printf -- '--- client: %s\n' "$*"; timeout 30 setpriv --reuid=$U --regid=$U --clear-groups env "$@"; echo "rc=$?"; }
  asked() { client "$CLIENT" -m tests.gpu.client "$@"; }
  serve() {
    t start_server -uid $U
    for q in $(seq 20); do S=$(echo get_server_list | timeout 5 "$C" | head -1); [ -n "$S" ] && break; sleep 0.5; done
    sleep 2; t get_server_list; t get_server_status "$S"; ps -o pid,uid,args -p "$S"; ls -la "$D/pipe" "$D/log"
  }
  if [ -e "$D/pipe/control" ]; then "q_$questions"; else echo "the daemon does not start with: $*"; fi
  echo "### log folder"; ls -la "$D/log"; tail -n 40 "$D"/log/*.log; echo "### stdout"; tail -n 60 "$D/out"
  echo quit -t 2 | timeout 5 "$C"; sleep 1
}

q_limits() {
  t get_default_active_thread_percentage; t set_default_active_thread_percentage 30
  t set_default_device_pinned_mem_limit "$G" 5000M; t get_default_device_pinned_mem_limit "$G"; t get_default_device_pinned_mem_limit 0
  t set_default_device_pinned_mem_limit 0 5000M; t get_default_device_pinned_mem_limit 0
  serve
  t set_active_thread_percentage "$S" 30; t get_active_thread_percentage "$S"; t get_device_pinned_mem_limit "$S" 0
  asked sms; asked allocate 4000; asked allocate 6000
  client CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G "$CLIENT" -m tests.gpu.client allocate 6000
  u set_default_active_thread_percentage 100; u set_active_thread_percentage "$S" 100; u set_device_pinned_mem_limit "$S" 0 80G
  t get_active_thread_percentage "$S"; asked sms; asked allocate 6000
}

q_faults() {
  serve
  (asked loop 12 > "$D/loop" 2>&1) & K=$!
  sleep 4; t get_client_list "$S"; nvidia-smi --query-compute-apps=pid,name,used_memory --format=csv
  q=$(echo get_client_list "$S" | timeout 5 "$C" | tr ' ' '\n' | head -1)
  t terminate_client "$S" "${q:-0}"
  wait $K; cut -c 1-200 "$D/loop"
  asked fault; sleep 1; t get_server_status "$S"; asked sms; t get_server_list
  u shutdown_server "$S" -f; sleep 2; t get_server_list; u quit; t get_server_list; t ps
}

q_many() { # one server for all users, which is root's: what may a tenant tell it?
  t set_default_active_thread_percentage 30; t set_default_device_pinned_mem_limit 0 5000M
  serve
  u set_active_thread_percentage "$S" 100; u set_device_pinned_mem_limit "$S" 0 80G; u terminate_client "$S" 1
  t get_active_thread_percentage "$S"; asked sms; asked allocate 4000; asked allocate 6000
  client CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,1=4G "$CLIENT" -m tests.gpu.client allocate 6000
  client CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=100 "$CLIENT" -m tests.gpu.client sms
  (asked loop 8 > "$D/loop" 2>&1) & K=$!
  sleep 3; asked fault; wait $K; cut -c 1-200 "$D/loop"; t get_server_status "$S"
  u shutdown_server "$S" -f; sleep 1; t get_server_list; u quit; t get_server_list
}

export -f facts help mps q_limits q_faults q_many
step 20 facts bash -c facts
if [ -n "$C" ]; then
  step 10 mps-help bash -c help
  step 75 mps-limits bash -c 'mps limits -f'
  step 60 mps-faults bash -c 'mps faults -d'
  step 60 mps-many-users bash -c 'mps many -f -M'
  tests 100 mps-berth tests/gpu/test_mps_gpu.py -k "up_and_down or cannot_command or percentages or one_name_too_many or fault or nvml_sees or offers"
  tests 60 two-products tests/gpu/test_mps_gpu.py -k "two_loops and gemm"
  tests 50 green-contexts tests/gpu/test_mps_gpu.py -k "green_contexts"
fi
tests 190 inside-pytorch tests/gpu/test_injob_gpu.py
step 90 calibration "$PY" -m tests.gpu.visits 30
step 35 calibration-own "$PY" -m tests.gpu.visits 8 --own-kernels
BERTH_GUARD_S=15 tests 190 owner-and-guest tests/gpu/test_guard_gpu.py
printf '\n=== %s s: all in %s\n' "$SECONDS" "$OUT/$ARCHIVE"
cat "$L/status.txt"
