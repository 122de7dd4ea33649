# What both windows share: a copy of the checkout that every user can read, and steps with limits. Read by bash.
#
# OUT: the folder for the archive; PY: a Python with PyTorch; WINDOW_S: seconds for all steps together; ONLY: the names of
# the steps that are wanted, where not all are.
# A step that runs out of time is interrupted, so that pytest still says what failed.
# The archive is written anew after each step, so that a window that is cut off still brings what it has.
OUT=${OUT:-build/window} PY=${PY:-$(command -v python3)} WINDOW_S=${WINDOW_S:-580} SECONDS=0
mkdir -p "$OUT" && OUT=$(realpath "$OUT") && W=$(mktemp -d /tmp/berth-window.XXXXXX) && L=$W/logs || exit 1
mkdir "$L" "$W/tree" && chmod -R a+rx "$W" || exit 1
tar cf - --exclude=./.git --exclude=./build --exclude=./.venv . | tar xf - -C "$W/tree" && chmod -R a+rX "$W/tree" || exit 1
cd "$W/tree" || exit 1
export PYTHONPATH=$W/tree${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
trap 'leftovers; rm -rf "$W"' EXIT
: > "$W/started"
export W L PY

leftovers() { # ends the daemons that a step noted and did not end itself, and removes their folders
  local pid folder child
  while read -r pid folder; do
    for child in $(cat "/proc/$pid/task/$pid/children" 2> /dev/null || pgrep -P "$pid") "$pid"; do kill -9 "$child" 2> /dev/null; done
    rm -rf "$folder"
  done < "$W/started"
  : > "$W/started"
}

step() { # step SECONDS NAME COMMAND...: runs it, prints its end, its exit status and its time, and goes on
  local limit=$1 name=$2 began=$SECONDS left=$((WINDOW_S - SECONDS)) rc figures
  shift 2
  case " ${ONLY:-$name} " in *" $name "*) ;; *) return 0 ;; esac
  printf '\n=== %s s: %s\n' "$SECONDS" "$name"
  if [ "$left" -lt "$limit" ]; then limit=$left; fi
  if [ "$limit" -lt 5 ]; then rc=124; echo "no time is left for it" > "$L/$name.txt"
  else timeout -s INT -k 5 "$limit" "$@" > "$L/$name.txt" 2>&1; rc=$?; leftovers; fi
  tail -n 12 "$L/$name.txt"
  echo "$name rc=$rc $((SECONDS - began)) s" | tee -a "$L/status.txt"
  for figures in build/bench/*.json; do [ ! -e "$figures" ] || mv "$figures" "$L/$name-${figures##*/}"; done
  tar czf "$OUT/$ARCHIVE.new" -C "$L" . && mv "$OUT/$ARCHIVE.new" "$OUT/$ARCHIVE"
}

tests() { # tests SECONDS NAME PYTEST-WORDS...
  local limit=$1 name=$2
  shift 2
  step "$limit" "$name" "$PY" -m pytest -q -rA --durations=12 -p no:cacheprovider -o addopts= -o filterwarnings=default "$@"
}

# NVIDIA's control program: named, on the PATH, or where images for containers have it.
C=${BERTH_MPS_CONTROL:-$(command -v nvidia-cuda-mps-control || ls /usr/local/nvidia/bin/nvidia-cuda-mps-control 2> /dev/null)}
[ -z "$C" ] || export BERTH_MPS_CONTROL=$C PATH=$(dirname "$C"):$PATH
export PATH=$PATH:/usr/sbin:/sbin
