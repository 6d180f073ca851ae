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
"$dibs" run --store "$through" --ttl 3s stale -- sh -c 'touch "$1"; exec sleep 30' sh "$out/stale" >"$out/said" 2>&1
stale=$?
if [ "$kept" -eq 0 ]; then echo 'ok 1 - a renewal of the present term counts'; else
  echo 'not ok 1 - a renewal of the present term counts'
  sed 's/^/#   /' "$out/kept" "$out/log"
fi
if [ "$stale" -eq 122 ]; then echo 'ok 2 - a renewal of an earlier term does not'; else
  echo "not ok 2 - a renewal of an earlier term does not: exit $stale, not 122"
  sed 's/^/#   /' "$out/said" "$out/log"
fi
echo 1..2
[ "$kept" -eq 0 ] && [ "$stale" -eq 122 ]
