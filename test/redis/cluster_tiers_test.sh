#!/bin/bash
# SPDX-License-Identifier: MIT
# A Redis Cluster as the first of several tiers: each bucket has the incarnation of its own node.
#   cluster_tiers_test.sh DIBS URI      with.sh --private sets DIBS_TEST_REDIS_NODES (script/server/rediscluster)
set -u
dibs=$1 uri=$2
count=0 failures=0
ok() { # ok NAME COMMAND...
  count=$((count + 1))
  if "${@:2}"; then echo "ok $count - $1"; else failures=$((failures + 1)) && echo "not ok $count - $1"; fi
}
nodes() { bash "$DIBS_TEST_REDIS_NODES" "$@"; }
folder=$(mktemp -d /tmp/dibs-test-cluster.XXXXXX) || exit 1
trap 'rm -rf "$folder"' EXIT
export DIBS_STORE="$uri,sqlite://$folder/anchor.db"
last=0
# The next fence of the name is larger than the one before.
grows() {
  local fence
  fence=$(timeout 60 "$dibs" run --wait 40s "$1" -- sh -c 'echo "$DIBS_FENCE"') && [ "${fence:-0}" -gt "$last" ] || {
    echo "# the fence is ${fence:-none}, after $last"
    return 1
  }
  last=$fence
}
# Nothing of the name remains when it is released: a move of its slot is seen by what holds the mandates.
serves() { [[ $(timeout 20 "$dibs" tier status 2>&1) == *"redis"*"100"* ]]; }

ok 'the tiers begin' "$dibs" flag set redis.enabled on
ok 'a lease' grows page
ok 'and the next' grows page
bucket=$(timeout 20 "$dibs" run page -- bash -c 'for n in 0 1 2 3 4 5; do
  bash "$DIBS_TEST_REDIS_NODES" cli "$n" --scan --pattern "dibs:{*}:n:page"; done' | sed -n 's/.*{\([0-9]*\)}.*/\1/p' | head -n 1)
ok 'it is in the cluster' test -n "$bucket"
for node in $(nodes masters); do
  ok "its slot moves to node $node" nodes move "$node" "$bucket"
  ok 'and the fence grows' grows page
done
ok 'the tiers serve it' serves
master=$(nodes masters | head -n 1)
ok "the bucket moves to node $master" nodes move "$master" "$bucket"
ok 'the fence grows' grows page
ok "node $master is killed" nodes kill "$master"
ok 'the fence grows, wherever the bucket is now' grows page
ok "node $master is started" nodes start "$master"
ok 'the cluster is whole' nodes whole
ok 'the fence grows again' grows page
echo "1..$count"
[ "$failures" -eq 0 ]
