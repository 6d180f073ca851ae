#!/bin/bash
# SPDX-License-Identifier: MIT
# What doctor shows of the nodes of a Redis Cluster (cluster_test.sh URI, through with.sh --private), and of the servers of
# redlock:// (cluster_test.sh redlock://..., through nodes.sh): each node, also when it is stopped or killed.
. "$(dirname "$0")/doctor.sh"
uri=$1
export DIBS_STORE=$uri
if [[ $uri == redlock://* ]]; then
  read -r folder port <<<"$DIBS_REDLOCK_NODES"
  server() { "$DIBS_REDLOCK_SERVERS" "$1" --dir "$folder" redis >/dev/null 2>&1; }
  trap 'server resume; finish' EXIT
  says 0 'three servers' "$uri" '^fine +server +3 independent servers of Redis' '^fine +role +3 of 3 answer, and 2 are needed' \
    "^fine +node +127\.0\.0\.1:$port: (Redis|Valkey) [0-9]" "^fine +setting +maxmemory-policy of 127\.0\.0\.1:$port = noeviction"
  is 'a server that forgets waits, so it is no risk' "$(grep -c '^WARNING.*appendonly' <<<"$out")" 0
  server pause
  says 116 'one is stopped' "$uri" '^fine +role +2 of 3 answer' "^TROUBLE +node +127\.0\.0\.1:$port does not answer"
  server resume
  server kill
  says 116 'one was killed' "$uri" '^fine +role +2 of 3 answer' "^TROUBLE +node +127\.0\.0\.1:$port does not answer"
  done_testing
  exit
fi
nodes() { bash "$DIBS_TEST_REDIS_NODES" "$@"; }
trap 'nodes resume 1; finish' EXIT
says 0 'six nodes' "$uri" '^fine +server +(Redis|Valkey) [0-9]+\.[0-9].*, a cluster' '^fine +role +3 masters with all slots, 6 nodes' \
  '^fine +node +127\.0\.0\.1:[0-9]+: master of 546[12] slots' '^fine +node +127\.0\.0\.1:[0-9]+: replica of 127\.0\.0\.1:[0-9]+'
is 'each node has a line' "$(grep -c '^fine *node' <<<"$out")" 6
like 'it is asynchronous' "$out" '^WARNING +setting +replication is asynchronous'
says 0 'replicas that are waited for' "$uri&replicas=1" '^fine +setting +a lease counts when 1 replicas have it'
says 116 'replicas that are missing' "$uri&replicas=2" '^TROUBLE +setting +a lease counts when 2 replicas have it, and a master has 1'
port=$(nodes cli 1 config get port | tail -n 1)
nodes pause 1
says 116 'a node is stopped' "$uri" "^TROUBLE +node +127\.0\.0\.1:$port, .*, does not answer"
is 'the others answer' "$(grep -c '^fine *node' <<<"$out")" 5
nodes resume 1
ok 'it goes on' until_true 60 shows "^fine +node +127\.0\.0\.1:$port"
for n in 0 1 2 3 4 5; do nodes cli "$n" acl setuser dibs '-cluster|nodes' >/dev/null; done
says 0 'a user without CLUSTER NODES' "$uri" '^fine +node +the nodes, and their replicas: not visible to this user'

# A node alone, which has met no other one: it does not know its own address.  First its slots are in 8192 pieces.
alone() { redis-cli -e -p "$lone" "$@"; }
lone=$((port + 100))
for _ in 1 2 3 4 5 6; do
  redis-server --port "$lone" --bind 127.0.0.1 --cluster-enabled yes --save '' --dir "$dir" >"$dir/lone" 2>&1 &
  later $!
  until_true 10 alone ping && break
  lone=$((lone + 7))
done
# shellcheck disable=SC2046  # words are meant
alone cluster addslots $(seq 0 2 16383) >/dev/null
export DIBS_STORE="redis://127.0.0.1:$lone?cluster=1"
says 116 'slots in many pieces' "$DIBS_STORE" '^TROUBLE +role +1 masters have 8192 of the 16384 slots'
# shellcheck disable=SC2046
alone cluster addslots $(seq 1 2 16383) >/dev/null
says 0 'a node alone' "$DIBS_STORE" '^fine +role +1 masters with all slots, 1 nodes' \
  "^fine +node +127\.0\.0\.1:$lone: master of 16384 slots"
is 'it has no replica that could take over' "$(grep -c 'replication is asynchronous' <<<"$out")" 0
done_testing
