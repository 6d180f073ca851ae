#!/bin/bash
# SPDX-License-Identifier: MIT
# A storm on three members, of which the leader is killed or stopped again and again:  storm_test.sh STORM URI SECONDS
#
# Through members.sh.  The storm's checker compares what its clients believed to hold.
set -u
storm=$1 uri=$2 seconds=$3
members() { bash "$DIBS_TEST_ETCD_MEMBERS" "$@"; }
out=$(mktemp /tmp/dibs-test-storm.XXXXXX) || exit 1
trap 'rm -f "$out"' EXIT
"$storm" "$uri" --seconds "$seconds" --processes 2 --threads 4 >"$out" 2>&1 &
pid=$!
killed=0 paused=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ] && kill -0 "$pid" 2>/dev/null; do
  leader=$(members leader) || break
  if [ $(((killed + paused) % 2)) -eq 0 ]; then
    members kill "$leader" && killed=$((killed + 1))
    sleep 2
    members start "$leader" || { cat "$out"; exit 1; }
  else
    members pause "$leader" && paused=$((paused + 1))
    sleep 3 # another one is elected meanwhile
    members resume "$leader"
  fi
  sleep 1
done
wait "$pid"
status=$?
cat "$out"
echo "storm_test: $killed leaders killed, $paused stopped"
[ "$killed" -gt 0 ] && [ "$paused" -gt 0 ] || { echo 'storm_test: nothing happened to the members' >&2; exit 1; }
exit "$status"
