#!/bin/bash
# SPDX-License-Identifier: MIT
# A storm on a Redis Cluster whose slots move, and whose masters are killed:  cluster_storm_test.sh STORM URI SECONDS
#
# with.sh --private sets DIBS_TEST_REDIS_NODES (script/server/rediscluster).  With replicas=1 no two clients may believe
# to hold a name: the storm's checker compares all of their beliefs.
set -u
storm=$1 uri=$2 seconds=$3
nodes() { bash "$DIBS_TEST_REDIS_NODES" "$@"; }
out=$(mktemp /tmp/dibs-test-cluster.XXXXXX) || exit 1
trap 'rm -f "$out"' EXIT
"$storm" "$uri&replicas=1" --seconds "$seconds" >"$out" 2>&1 &
pid=$!
# The buckets of its names.
buckets() {
  local n
  for n in $(nodes masters); do nodes cli "$n" --scan --pattern '*:{*}:n:*'; done | sed 's/.*:{\([0-9]*\)}:n:.*/\1/' | sort -un
}
some=
for _ in $(seq 200); do
  some=$(buckets)
  [ "$(wc -w <<<"$some")" -lt 4 ] || break
  sleep 0.05
done
[ -n "$some" ] || { echo "cluster_storm_test: the storm has no names" >&2; cat "$out"; exit 1; }
moved=0 killed=0
end=$((SECONDS + seconds))
while [ "$SECONDS" -lt "$end" ] && kill -0 "$pid" 2>/dev/null; do
  mapfile -t masters < <(nodes masters)
  node=${masters[RANDOM % ${#masters[@]}]}
  if [ $((moved % 4)) -lt 3 ]; then
    # shellcheck disable=SC2086  # words
    nodes move "$node" $(shuf -e -n 3 $some) && moved=$((moved + 1))
  else
    nodes kill "$node" && killed=$((killed + 1))
    sleep 3 # the cluster elects its replica meanwhile, and serves without it
    { nodes start "$node" && nodes whole; } || { cat "$out"; exit 1; }
    moved=$((moved + 1))
  fi
done
wait "$pid"
status=$?
cat "$out"
echo "cluster_storm_test: $moved moves, $killed masters killed"
[ "$moved" -gt 0 ] && [ "$killed" -gt 0 ] || { echo 'cluster_storm_test: nothing happened to the cluster' >&2; exit 1; }
exit "$status"
