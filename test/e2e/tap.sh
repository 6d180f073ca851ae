# SPDX-License-Identifier: MIT
# The functions of the end-to-end tests; source it with DIBS set to the command under test. Each test has a folder and a
# store of its own, which are removed at the end. No test sleeps and hopes: until_true checks repeatedly up to a
# deadline.
set -u
: "${DIBS:?names the command under test}"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=$(mktemp -d "${TMPDIR:-/tmp}/dibs-e2e.XXXXXX") || exit 1
export DIBS_STORE=sqlite://$dir/dibs.db
unset DIBS_NAME DIBS_LEASE DIBS_FENCE DIBS_TTL DIBS_SLOT DIBS_HELD
export XDG_CONFIG_HOME=$dir/config # an empty folder
export LC_ALL=C.UTF-8
count=0 failures=0
leftovers=()

# begun PID: prints when a process began.  Another process may have its id since it ended.
begun() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # shellcheck disable=SC2086  # words are meant: the fields after the name in brackets
  set -- ${stat##*) }
  echo "${20}"
}
finish() {
  local leftover pid start
  for leftover in "${leftovers[@]}"; do
    read -r pid start <<<"$leftover"
    if [ "$start" ] && [ "$(begun "$pid")" = "$start" ]; then kill -KILL "$pid" 2>/dev/null; fi
  done
  wait 2>/dev/null
  rm -rf "$dir"
}
trap finish EXIT

# Kill these at the end if they still run.
later() {
  local pid
  for pid; do leftovers+=("$pid $(begun "$pid")"); done
}

report() { # report OK WHAT
  count=$((count + 1))
  if [ "$1" = 0 ]; then
    echo "ok $count - $2"
  else
    failures=$((failures + 1))
    echo "not ok $count - $2"
  fi
}
say() { printf '%s\n' "$@" | sed 's/^/#   /'; }

# ok WHAT COMMAND...: passes if the command succeeds.
ok() {
  local what=$1
  shift
  if "$@" >"$dir/ok.out" 2>&1; then report 0 "$what"; else
    report 1 "$what"
    say "failed: $*"
    head -n 20 "$dir/ok.out" | sed 's/^/#   /'
  fi
}
is() { # is WHAT GOT WANTED
  if [ "$2" = "$3" ]; then report 0 "$1"; else
    report 1 "$1"
    say "got:    $2" "wanted: $3"
  fi
}
like() { # like WHAT GOT PATTERN (extended)
  if printf '%s\n' "$2" | grep -Eq -- "$3"; then report 0 "$1"; else
    report 1 "$1"
    say "got:     $2" "no match: $3"
  fi
}
# exits CODE WHAT COMMAND...: runs it, keeps its output in $out and $err.
exits() {
  local wanted=$1 what=$2 got
  shift 2
  "$@" >"$dir/out" 2>"$dir/err" </dev/null
  got=$?
  out=$(cat "$dir/out") err=$(cat "$dir/err")
  if [ "$got" = "$wanted" ]; then report 0 "$what"; else
    report 1 "$what"
    say "exit $got, wanted $wanted: $*" "$err"
  fi
}
done_testing() {
  echo "1..$count"
  [ "$failures" = 0 ]
}

# until_true SECONDS COMMAND...: runs it until it succeeds; false after the time.
until_true() {
  local by=$(($(now_ms) + $1 * 1000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(now_ms)" -lt "$by" ] || return 1
    sleep 0.02
  done
}
# Shells cannot read the boot-time clock; the wall clock is sufficient for a few seconds.
now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

alive() { # A process that runs: not a zombie.
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  stat=${stat##*) }
  [ "${stat%% *}" != Z ]
}
gone() { ! alive "$1"; }
is_stopped() { [[ $(<"/proc/$1/stat") == *") T "* ]]; }
# The file is not empty.
filled() { [ -s "$1" ]; }
holds() { "$DIBS" ls --json "$1" | grep -q '"state":"holds"'; }
waits() { [ "$("$DIBS" ls --json "$1" | grep -o '"state":"waits"' | wc -l)" = "${2:-1}" ]; }
free() { [ -z "$("$DIBS" ls "$1")" ]; }
minder_of() { # The minder of a dibs run.
  local child
  for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do
    [ "$(cat "/proc/$child/comm" 2>/dev/null)" = dibs-minder ] && echo "$child"
  done
}
