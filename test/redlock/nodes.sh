#!/bin/bash
# SPDX-License-Identifier: MIT
# Runs a program with several Redis servers of its own, which it may kill, pause and start again.
#   nodes.sh COUNT PROGRAM [ARG]...
# DIBS_REDLOCK_NODES has a line "FOLDER PORT" for each node; {} in an ARG becomes redlock:// of all of them.
# Without DIBS_TEST_REDIS the test is skipped (77); with DIBS_TEST_SERVERS=required it fails.
set -u
count=$1
shift
if [ -z "${DIBS_TEST_REDIS:-}" ]; then
  [ "${DIBS_TEST_SERVERS:-}" != required ] || exit 1
  exit 77
fi
servers=$(cd "$(dirname "${BASH_SOURCE[0]}")/../../script" && pwd)/servers
folder=$(mktemp -d "${TMPDIR:-/tmp}/dibs-redlock.XXXXXX") || exit 1
end() {
  for ((i = 0; i < count; i++)); do "$servers" remove --dir "$folder/$i" >/dev/null 2>&1; done
  rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM
hosts= DIBS_REDLOCK_NODES=
for ((i = 0; i < count; i++)); do
  "$servers" start --dir "$folder/$i" --until $$ redis >&2 || exit 1
  uri=$("$servers" env --dir "$folder/$i" | sed -n "s/.*DIBS_TEST_REDIS='\(.*\)'/\1/p")
  port=${uri##*:}
  hosts+=${hosts:+,}127.0.0.1:${port%/*}
  DIBS_REDLOCK_NODES+="$folder/$i ${port%/*}"$'\n'
done
export DIBS_REDLOCK_NODES DIBS_REDLOCK_SERVERS=$servers
uri=redlock://dibs:dibs-secret@$hosts/0
args=()
for arg; do args+=("${arg//\{\}/"$uri"}"); done
"${args[@]}"
