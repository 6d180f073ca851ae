#!/bin/bash
# SPDX-License-Identifier: MIT
# A server is restarted, killed and started again, and its processes are ended one by one, in the middle of load:
# callers get UNAVAILABLE or UNKNOWN, never a wrong answer, and continue when it runs again.
#   restart_test.sh SERVERS STRESS
set -u
servers=$1 stress=$2
if [ -z "${DIBS_TEST_POSTGRES:-}" ]; then
  [ "${DIBS_TEST_SERVERS:-}" != required ] || exit 1
  exit 77
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/dibs-restart.XXXXXX")
end() {
  "$servers" remove --dir "$dir" >/dev/null 2>&1
  rm -rf "$dir"
}
trap end EXIT
trap 'exit 130' INT TERM
"$servers" start --dir "$dir" --until $$ postgres || exit 1
variables=$("$servers" env --dir "$dir") && eval "$variables"
uri=$DIBS_TEST_POSTGRES

# during WHAT: runs WHAT in the middle of a load; afterwards the checker finds nothing wrong, except waiters that slept
# while the server was unreachable. The load decides the duration, and WHAT does not wait for a moment in it.
during() {
  local trouble
  ("$1" >/dev/null 2>&1) &
  trouble=$!
  "$stress" "$uri?schema=$1" --calm --seconds 8 >"$dir/said" 2>&1 # it has records of its own
  wait "$trouble"
  cat "$dir/said"
  if ! grep -q '^checked: ' "$dir/said" || grep '^BROKEN' "$dir/said" | grep -qv '^BROKEN  waking'; then
    echo "restart_test: $1: the checker found broken rules (above)" >&2
    exit 1
  fi
}
restarted() {
  sleep 2
  "$servers" restart --dir "$dir" postgres
}
killed() {
  sleep 2
  "$servers" kill --dir "$dir" postgres
  "$servers" start --dir "$dir" postgres
}
picked_off() {
  for _ in $(seq 12); do
    sleep 0.4
    psql -X -q -A -t "$uri" <<<"SELECT pg_terminate_backend(pid) FROM pg_stat_activity
      WHERE usename = 'dibs' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 3"
  done
}
during restarted
during killed
during picked_off
