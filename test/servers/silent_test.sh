#!/bin/bash
# SPDX-License-Identifier: MIT
# A server that accepts connections and does not answer delays a client until its deadline, and no longer:
# silent_test.sh DIBS
set -u
dibs=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=$(mktemp -d "${TMPDIR:-/tmp}/dibs-test-silent.XXXXXX") || exit 1
servers=()
trap 'kill "${servers[@]}" 2>/dev/null; rm -rf "$out"' EXIT
declare -A port
for sends in none part much; do
  python3 "$here/silent.py" "$sends" >"$out/$sends" &
  servers+=($!)
done
for sends in none part much; do
  for _ in $(seq 600); do
    [ ! -s "$out/$sends" ] || break
    sleep 0.05
  done
  port[$sends]=$(<"$out/$sends")
done
count=0 failures=0
# tries SENDS URI: its host is replaced; all of them run at once.
declare -A runs
tries() {
  local at=127.0.0.1:${port[$1]} name=$1-${2//[^a-z0-9]/-}
  timeout -s KILL 60 "$dibs" run --try --store "${2/HOST/$at}" name -- true >"$out/$name.said" 2>&1 &
  runs[$name]=$!
}
scheme() { [ -e "${DIBS_MODULE_PATH:-}/dibs-driver-$1.so" ]; }
for sends in none part much; do
  if scheme postgresql; then tries $sends 'postgres://u:p@HOST/x'; fi
  if scheme mysql; then
    tries $sends 'mysql://u:p@HOST/x?ssl=on'
    tries $sends 'mysql://u:p@HOST/x?ssl=off'
  fi
  if scheme redis; then tries $sends 'redis://HOST/0' && tries $sends 'redis://HOST/0?cluster=1'; fi
  if scheme rediss; then tries $sends 'rediss://HOST/0'; fi
  if scheme etcd; then tries $sends 'etcd://HOST'; fi
  if scheme etcds; then tries $sends 'etcds://HOST'; fi
  if scheme zk; then tries $sends 'zk://HOST'; fi
  if scheme mongodb; then tries $sends 'mongodb://HOST/x'; fi
  if scheme http; then tries $sends 'http://HOST'; fi
done
for name in "${!runs[@]}"; do
  count=$((count + 1))
  wait "${runs[$name]}"
  code=$?
  if [ "$code" -eq 123 ] || [ "$code" -eq 124 ] || [ "$code" -eq 125 ]; then
    echo "ok $count - $name"
  else
    failures=$((failures + 1))
    echo "not ok $count - $name"
    { echo "exit $code" && cat "$out/$name.said"; } | sed 's/^/#   /'
  fi
done
echo "1..$count"
[ "$failures" -eq 0 ]
