#!/bin/bash
# SPDX-License-Identifier: MIT
# The contract, and the tests of a cluster, on other servers than the system's: newer Redis, and Valkey.
#
#   newer_test.sh CONTRACT CLUSTER-TEST      script/test --all sets DIBS_TEST_REDIS_SERVERS: their programs
set -u
contract=$1 cluster=$2
with=$(dirname "$0")/../servers/with.sh
if [ -z "${DIBS_TEST_REDIS_SERVERS:-}" ]; then
  echo 'newer_test: DIBS_TEST_REDIS_SERVERS names no servers (script/test --all installs some): skipped' >&2
  exit 77
fi
base=$(mktemp -d /tmp/dibs-test-newer.XXXXXX) || exit 1
trap 'rm -rf "$base"' EXIT
chmod 755 "$base"
failures=0 count=0
# On PATH the server has the name that script/servers looks for.
for server in $DIBS_TEST_REDIS_SERVERS; do
  count=$((count + 1))
  mkdir "$base/$count" && ln -s "$server" "$base/$count/redis-server" || exit 1
  PATH=$base/$count:$PATH "$with" --private DIBS_TEST_REDIS "$contract" '{}' >"$base/$count/contract" 2>&1 &
  eval "contract_$count=$!"
  # One cluster at a time: each has six servers.
  PATH=$base/$count:$PATH "$with" --private DIBS_TEST_REDIS_CLUSTER "$cluster" '{}' >"$base/$count/cluster" 2>&1
  eval "cluster_$count=$?"
done
n=0
for server in $DIBS_TEST_REDIS_SERVERS; do
  n=$((n + 1))
  eval "wait \$contract_$n" || { failures=$((failures + 1)) && cat "$base/$n/contract"; }
  if eval "[ \$cluster_$n -ne 0 ]"; then failures=$((failures + 1)) && cat "$base/$n/cluster"; fi
  echo "$("$server" --version): $(grep -c '^\[       OK' "$base/$n/contract") cases of the contract, $(grep -c '^\[       OK' "$base/$n/cluster") of the cluster"
done
[ "$failures" -eq 0 ]
