#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a test against a daemon of its own.
#
#   with_daemon.sh DIBS STORE PROGRAM [ARG]...      {daemon} in an ARG becomes its URI
#
# STORE "sqlite:" is a file of this run.  The daemon ends with the test.
set -u
dibs=$1 store=$2
shift 2
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-daemon.XXXXXX") || exit 1
[ "$store" = sqlite: ] && store=sqlite:$folder/store.db
"$dibs" serve --store "$store" --listen "unix:$folder/socket" --body 33554432 >"$folder/log" 2>&1 </dev/null &
daemon=$!
# The exit code of the test, unless the daemon did not survive it.
finish() {
  local code=$?
  if kill -TERM "$daemon" 2>/dev/null; then
    wait "$daemon" || { echo "with_daemon.sh: the daemon ended with $?" >&2; code=1; }
  else
    echo 'with_daemon.sh: the daemon did not survive the test' >&2
    code=1
  fi
  [ "$code" = 0 ] || cat "$folder/log" >&2
  rm -rf "$folder"
  exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM
for ((i = 0; i < 600; i++)); do
  [ -S "$folder/socket" ] && grep -q 'serving .* at' "$folder/log" && break
  kill -0 "$daemon" 2>/dev/null || exit 1
  sleep 0.05
done
args=()
for arg; do args+=("${arg//\{daemon\}/http:$folder/socket}"); done
"${args[@]}"
