#!/bin/bash
# SPDX-License-Identifier: MIT
# A MongoDB server is stopped past every ttl, killed and started again in the middle of load; so are its clients.  Callers
# get UNAVAILABLE or UNKNOWN, never a wrong answer, and continue when it runs again.
#   restart_test.sh STRESS URI    (with.sh --private)
set -u
stress=$1 uri=$2
said=$(mktemp "${TMPDIR:-/tmp}/dibs-mongodb-said.XXXXXX")
trap 'rm -f "$said"' EXIT
trap 'exit 130' INT TERM

# during WHAT ARG...: a load beside the function WHAT.  Afterwards the checker finds nothing wrong, except waiters that slept
# while the server was unreachable.
during() {
  local trouble
  ("$1" >/dev/null 2>&1) &
  trouble=$!
  "$stress" "$uri?prefix=$1_" --processes 3 --threads 3 --names 8 "${@:2}" >"$said" 2>&1
  wait "$trouble"
  cat "$said"
  if ! grep -q '^checked: ' "$said" || grep '^BROKEN' "$said" | grep -qv '^BROKEN  waking'; then
    echo "restart_test: $1: the checker found broken rules (above)" >&2
    exit 1
  fi
}
killed() {
  sleep 3
  "$DIBS_TEST_SERVERS_SCRIPT" kill mongodb
  "$DIBS_TEST_SERVERS_SCRIPT" start mongodb
}
paused() {
  sleep 3
  "$DIBS_TEST_SERVERS_SCRIPT" pause mongodb
  sleep 3
  "$DIBS_TEST_SERVERS_SCRIPT" resume mongodb
}
clients_die() { :; } # the load itself stops and kills its processes
during killed --calm --seconds 12
during paused --calm --seconds 10
during clients_die --seconds 8
