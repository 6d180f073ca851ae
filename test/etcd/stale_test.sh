#!/bin/bash
# SPDX-License-Identifier: MIT
# A renewal that only a member of an earlier term has answered is none:  stale_test.sh DIBS URI, through with.sh.
set -u
dibs=$1 uri=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mktemp -d /tmp/dibs-test-stale.XXXXXX) || exit 1
python3 "$here/stale_leader.py" "${uri#etcd://}" "$out/stale" >"$out/port" 2>"$out/log" &
gateway=$!
trap 'kill "$gateway" 2>/dev/null; rm -rf "$out"' EXIT
for _ in $(seq 600); do
  [ ! -s "$out/port" ] || break
  sleep 0.05
done
through=etcd://127.0.0.1:$(<"$out/port")

"$dibs" run --store "$through" --ttl 3s kept -- sleep 8 >"$out/kept" 2>&1
kept=$?
# The keep-alives do not arrive: the next client may have the name only after the holder's command has ended.
"$dibs" run --store "$through" --ttl 3s stale -- sh -c 'echo $$ >"$1/pid"; touch "$1/stale"; exec sleep 30' sh "$out" \
  >"$out/said" 2>&1 &
holder=$!
for _ in $(seq 600); do
  [ ! -e "$out/stale" ] || break
  sleep 0.05
done
"$dibs" run --store "$uri" --wait 60s stale -- sh -c '! kill -0 "$(cat "$1/pid")" 2>/dev/null' sh "$out" >"$out/next" 2>&1
next=$?
wait "$holder"
stale=$?
if [ "$kept" -eq 0 ]; then echo 'ok 1 - a renewal of the present term counts'; else
  echo 'not ok 1 - a renewal of the present term counts'
  sed 's/^/#   /' "$out/kept" "$out/log"
fi
if [ "$stale" -eq 122 ]; then echo 'ok 2 - a renewal of an earlier term does not'; else
  echo "not ok 2 - a renewal of an earlier term does not: exit $stale, not 122"
  sed 's/^/#   /' "$out/said" "$out/log"
fi
if [ "$next" -eq 0 ]; then echo 'ok 3 - the holder has ended before the next one begins'; else
  echo "not ok 3 - the holder has ended before the next one begins: exit $next"
  sed 's/^/#   /' "$out/next"
fi
echo 1..3
[ "$kept" -eq 0 ] && [ "$stale" -eq 122 ] && [ "$next" -eq 0 ]
